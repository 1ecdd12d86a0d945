//! The log's segments. Each is a tree of the store, named by its first position and dropped as a whole.

use crate::domain::Seq;
use crate::store::Store;

/// What a value counts in its segment beside its bytes. It makes a segment hold 16 000 small commits, not 80 000: dropping ten of
/// them takes sled some microseconds.
const VALUE_ROOM_BYTES: u64 = 512;

const PREFIX: &str = "log/";

/// The tree of the segment that begins at a position.
pub(super) fn tree(first: Seq) -> String {
    format!("{PREFIX}{:016x}", first.0)
}

/// The first position of a segment's tree; the inverse of [`tree`].
fn first_of(tree: &str) -> Option<Seq> {
    let digits = tree.strip_prefix(PREFIX).filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok().map(Seq)
}

/// The first positions of all segments, in order.
pub(super) fn list(store: &Store) -> Vec<Seq> {
    let mut segments: Vec<Seq> =
        store.backing().tree_names().iter().filter_map(|name| first_of(name)).collect();
    segments.sort_unstable();
    segments
}

/// The index of the segment that holds a position.
pub(super) fn find(segments: &[Seq], position: Seq) -> Option<usize> {
    segments.iter().rposition(|first| *first <= position)
}

/// The oldest segment's tree if all its entries lie at or before `through`. The last segment always stays.
pub(super) fn prunable(store: &Store, through: Seq) -> Option<String> {
    match list(store)[..] {
        [oldest, next, ..] if next.0 <= through.0 + 1 => Some(tree(oldest)),
        _ => None,
    }
}

/// What a value counts in its segment, in bytes.
pub(super) fn room(value: &[u8]) -> u64 {
    value.len() as u64 + VALUE_ROOM_BYTES
}
