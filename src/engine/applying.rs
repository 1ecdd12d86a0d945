//! Applies entries. A panic in `apply` becomes an error that names the entry: the state can't be used after it, and the same entry
//! would panic at every later start.

use crate::domain::{Applied, Command, Entry, FilterId, Kind, Name, Seq, Target, UploadId};
use crate::journal::JournalError;
use crate::state::State;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use thiserror::Error;

/// An entry that can't be applied.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("entry {} ({command}{subject}) can't be applied: {panic}", .entry.0)]
pub struct Unappliable {
    /// Its position.
    pub entry: Seq,
    /// Its command.
    pub command: &'static str,
    /// What it concerns, with a space before it; empty if that is not known.
    pub subject: String,
    /// The message of the panic.
    pub panic: String,
}

impl Unappliable {
    /// The next step for the operator of a directory with a log of its own.
    pub(super) fn next_step(&self, dir: &str) -> String {
        format!("update cuckood, or run `cuckood repair skip --entry {} {dir}`", self.entry.0)
    }
}

/// What a command concerns, as far as the command says.
enum Subject {
    Filter(FilterId),
    Named(Kind, Name),
    LineUp(Name),
    Image(UploadId),
}

impl Subject {
    fn of(command: &Command) -> Option<Subject> {
        match command {
            Command::Create { kind, name, .. }
            | Command::Delete { kind, name }
            | Command::ImageBegin { kind, name, .. } => Some(Subject::Named(*kind, name.clone())),
            Command::PutLineUp { name, .. } | Command::DeleteLineUp { name } => {
                Some(Subject::LineUp(name.clone()))
            }
            Command::ImagePart { upload, .. }
            | Command::ImageEnd { upload, .. }
            | Command::ImageAbandon { upload } => Some(Subject::Image(*upload)),
            other => other.target().map(|Target(filter)| Subject::Filter(filter)),
        }
    }

    fn describe(self, state: &mut State) -> String {
        match self {
            Subject::Named(kind, name) => format!(" of {} `{name}`", kind.as_str()),
            Subject::LineUp(name) => format!(" of line-up `{name}`"),
            Subject::Image(upload) => format!(" of image {:032x}", upload.0),
            Subject::Filter(id) => {
                // A replay shows readers nothing before its end.
                state.publish();
                let view = state.view();
                let all =
                    [Kind::Campaign, Kind::Coupon].map(|kind| view.list(kind, "", None, usize::MAX)).concat();
                let found = all.iter().find(|filter| filter.id == id);
                found.map_or_else(
                    || format!(" of filter {:016x}", id.0),
                    |filter| format!(" of {} `{}`", filter.kind.as_str(), filter.name),
                )
            }
        }
    }
}

/// Applies the entry that follows the last one.
///
/// # Errors
/// [`Unappliable`]. The state must not be used any more.
pub(super) fn apply(state: &mut State, entry: Entry) -> Result<Applied, Unappliable> {
    let (seq, command) = (entry.seq, entry.proposal.command.word());
    let subject = Subject::of(&entry.proposal.command);
    catch(|| {
        #[cfg(debug_assertions)]
        fault::panic_if_asked(seq);
        state.apply(entry)
    })
    .map_err(|panic| {
        let subject = subject.map(|subject| catch(|| subject.describe(state)).unwrap_or_default());
        let subject = subject.unwrap_or_default();
        Unappliable { entry: seq, command, subject, panic }
    })
}

/// Rejects what follows a position at which a version is enabled that this build does not understand.
///
/// # Errors
/// [`JournalError::Newer`].
pub(super) fn check_version(at: Seq, version: u16, understands: u16) -> Result<(), JournalError> {
    if version > understands { Err(JournalError::Newer { at, version, understands }) } else { Ok(()) }
}

/// [`check_version`] for an entry.
pub(super) fn check_understood(entry: &Entry, understands: u16) -> Result<(), JournalError> {
    match entry.proposal.command {
        Command::Enable { version } => check_version(entry.seq, version, understands),
        _ => Ok(()),
    }
}

/// Runs something, and returns the message if it panics. What it has changed must not be used then.
pub(super) fn catch<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| message(&*panic))
}

/// The message of a panic.
pub(super) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_owned()
}

/// An entry that can't be applied, for tests of the real program. Builds without debug assertions, so every release, lack it.
#[cfg(debug_assertions)]
pub mod fault {
    use crate::domain::Seq;
    use std::sync::OnceLock;

    static PANIC_AT: OnceLock<Vec<Seq>> = OnceLock::new();

    /// Lets the entries of these positions panic from here on.
    pub fn panic_at(entries: impl IntoIterator<Item = u64>) {
        // Only the first call counts.
        let _ = PANIC_AT.set(entries.into_iter().map(Seq).collect());
    }

    pub(super) fn panic_if_asked(entry: Seq) {
        let is_asked = PANIC_AT.get().is_some_and(|entries| entries.contains(&entry));
        assert!(!is_asked, "a test asked for this panic");
    }
}
