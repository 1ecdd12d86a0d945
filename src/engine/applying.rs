//! Applies entries. A panic in `apply` becomes an error that names the entry: the state can't be used after it, and the same entry
//! would panic at every later start.

use cuckood_log::store::panic_message;
use cuckood_state::State;
use cuckood_state::domain::{Applied, Command, Entry, ImageBegin, Kind, Seq, Target};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use thiserror::Error;

/// Entries that panic in a test of the real program.
#[cfg(feature = "testing")]
pub static PANIC_AT: std::sync::OnceLock<Vec<u64>> = std::sync::OnceLock::new();

/// An entry that can't be applied.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("entry {} ({command}{subject}) can't be applied: {panic}", .entry.0)]
pub struct Unappliable {
    /// Its position.
    pub entry: Seq,
    /// Its command.
    pub command: &'static str,
    /// The filter or import of the command, with a space before it; empty if unknown.
    pub subject: String,
    /// The message of the panic.
    pub panic: String,
}

impl Unappliable {
    /// The message for the operator of a data directory.
    pub(super) fn advice(&self, dir: &Path, is_replicated: bool) -> String {
        let dir = dir.display();
        let entry = self.entry.0;
        match is_replicated {
            true => format!("{dir}: {self}; update cuckood on every node (docs/CLUSTER.md)"),
            false => {
                format!(
                    "{dir}: {self}; update cuckood, or run `cuckood repair skip --entry {entry} {dir}`"
                )
            }
        }
    }
}

/// The filter that a command names, with a space before it.
fn named(command: &Command) -> Option<String> {
    if let Command::Create { kind, name, .. }
    | Command::Delete { kind, name }
    | Command::ImageBegin(ImageBegin { kind, name, .. }) = command
    {
        return Some(format!(" of {} `{name}`", kind.as_str()));
    }
    None
}

/// The filter that a command addresses, with a space before it.
fn addressed(state: &mut State, Target(id): Target) -> String {
    // A replay shows readers nothing before its end.
    state.publish();
    let view = state.view();
    let kinds = [Kind::Campaign, Kind::Coupon].into_iter();
    match kinds
        .flat_map(|kind| view.list(kind, "", None, usize::MAX))
        .find(|filter| filter.id == id)
    {
        Some(filter) => format!(" of {} `{}`", filter.kind.as_str(), filter.name),
        None => format!(" of filter {:016x}", id.0),
    }
}

/// Applies the entry that follows the last one.
///
/// # Errors
/// [`Unappliable`]. The state must not be used any more.
pub(super) fn apply(state: &mut State, entry: Entry) -> Result<Applied, Unappliable> {
    let seq = entry.seq;
    let command = &entry.proposal.command;
    let word = command.word();
    let named = named(command);
    let target = command.target();
    catch(|| {
        #[cfg(feature = "testing")]
        assert!(
            PANIC_AT
                .get()
                .is_none_or(|entries| !entries.contains(&seq.0)),
            "a test asked for this panic"
        );
        state.apply(entry)
    })
    .map_err(|panic| {
        let subject = named.or_else(|| catch(|| Some(addressed(state, target?))).ok()?);
        Unappliable {
            entry: seq,
            command: word,
            subject: subject.unwrap_or_default(),
            panic,
        }
    })
}

/// Runs a closure, and returns the message if it panics. Data that it has changed must not be used then.
pub(super) fn catch<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| panic_message(&*panic).to_owned())
}
