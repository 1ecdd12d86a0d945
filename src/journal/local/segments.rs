//! The log's segments: a tree of the store for each, named by its first position and dropped whole.

use crate::domain::Seq;
use crate::store::Store;

/// What a value takes up of a segment beside its bytes, so that a segment holds 16 000 small commits, not 80 000: to drop it
/// takes sled some microseconds for every ten.
const VALUE_ROOM_BYTES: u64 = 512;

const PREFIX: &str = "log/";

/// The tree of the segment that begins at a position.
pub(super) fn tree(first: Seq) -> String {
    format!("{PREFIX}{:016x}", first.0)
}

/// The inverse of [`tree`].
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

/// The index of the segment that a position lies in.
pub(super) fn find(segments: &[Seq], position: Seq) -> Option<usize> {
    segments.iter().rposition(|first| *first <= position)
}

/// The oldest segment's tree, if its entries all lie at or before `through`; the last segment always stays.
pub(super) fn prunable(store: &Store, through: Seq) -> Option<String> {
    match list(store)[..] {
        [oldest, next, ..] if next.0 <= through.0 + 1 => Some(tree(oldest)),
        _ => None,
    }
}

/// What a value takes up of its segment, in bytes.
pub(super) fn room(value: &[u8]) -> u64 {
    value.len() as u64 + VALUE_ROOM_BYTES
}
