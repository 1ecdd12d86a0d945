//! Errors of storage. Every message names the path and what to do.

use std::io;
use std::path::{Path, PathBuf};

/// A failure of storage. Refusals by the state machine are not errors of this kind.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has the directory open.
    #[error(
        "{path} is in use by another cuckood process, which holds {path}/lock; stop that first"
    )]
    Locked {
        /// The data directory.
        path: PathBuf,
    },
    /// A directory to be served holds something else. Nothing was changed.
    #[error("{path} is not a cuckood data directory: {found}; name an empty or absent directory")]
    NotOurs {
        /// The directory.
        path: PathBuf,
        /// The content found in it.
        found: String,
    },
    /// A directory to be read is no data directory. Nothing was changed.
    #[error("{path} is not a cuckood data directory: {found}; name the directory of storage.path")]
    NotData {
        /// The directory.
        path: PathBuf,
        /// The content found there.
        found: String,
    },
    /// Root opens a directory of another user, who could not open the files that it leaves there. Nothing was changed.
    #[error(
        "{path} belongs to user {owner}, who can't open the files that root leaves there; run the command as that user, such as with runuser"
    )]
    NotOwner {
        /// The directory.
        path: PathBuf,
        /// The number of its user.
        owner: u32,
    },
    /// A directory to be filled by a restore holds data. Nothing was changed.
    #[error("{path} holds data; restore into an empty or absent directory")]
    NotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// A file is no backup. Nothing was changed.
    #[error(
        "{path} is not a cuckood backup: {found}; name a file that `cuckood backup FILE` wrote"
    )]
    NotBackup {
        /// The file.
        path: PathBuf,
        /// The content found there.
        found: &'static str,
    },
    /// A later version of cuckood wrote the directory or archive. Nothing was changed.
    #[error(
        "{path} has format {found}, and this program knows formats up to {known}: run a newer cuckood"
    )]
    Newer {
        /// The data directory or archive.
        path: PathBuf,
        /// Its format number.
        found: u32,
        /// The newest format number that this program knows.
        known: u32,
    },
    /// The bytes on disk differ from the acknowledged ones. Such data is never opened.
    #[error("{path} is damaged: {what}; run `{command}`")]
    Damaged {
        /// The file or directory.
        path: PathBuf,
        /// The tree, the position and the fault.
        what: String,
        /// The command that helps.
        command: String,
    },
    /// The state in the directory is not that of the other nodes.
    #[error("{path} can't be served again: {why}; replace it with an empty directory")]
    Diverged {
        /// The data directory.
        path: PathBuf,
        /// How it showed.
        why: String,
    },
    /// Too little space is free. Nothing was written.
    #[error(
        "{path}: {free_bytes} bytes are free, expected at least {needed_bytes}; free disk space, then try again"
    )]
    DiskFull {
        /// The data directory.
        path: PathBuf,
        /// Bytes that are free for this user.
        free_bytes: u64,
        /// The watermark, in bytes.
        needed_bytes: u64,
    },
    /// The operating system failed: it may have found no space, on the disk or within a quota.
    #[error("{path}: can't {operation}: {source}{}", remedy(.source))]
    Io {
        /// The file.
        path: PathBuf,
        /// The failed operation.
        operation: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// A write or sync failed. Whether it took effect is unknown until the next start. Every later write fails with the same
    /// reason.
    #[error(
        "{path}: storage failed ({reason}); restart, and if that fails run `cuckood verify {path}`"
    )]
    Failed {
        /// The data directory.
        path: PathBuf,
        /// The first failure.
        reason: String,
    },
    /// A manifest is longer than a reader accepts. It was not written.
    #[error("the snapshot's manifest has {0} bytes, more than can be read again")]
    TooLong(usize),
    /// The caller broke the contract of an operation. Nothing was written.
    #[error("storage was used wrongly: {0}")]
    Misuse(String),
}

impl StoreError {
    /// Damage in a data directory, to be examined with `cuckood verify`.
    pub fn damaged(dir: &Path, what: impl Into<String>) -> StoreError {
        StoreError::Damaged {
            path: dir.to_owned(),
            what: what.into(),
            command: format!("cuckood verify {}", dir.display()),
        }
    }

    /// A write or sync that failed.
    pub fn failed(dir: &Path, reason: String) -> StoreError {
        StoreError::Failed {
            path: dir.to_owned(),
            reason,
        }
    }

    /// Wraps an error of the operating system.
    pub fn io(path: &Path, operation: &'static str) -> impl FnOnce(io::Error) -> StoreError {
        move |source| StoreError::Io {
            path: path.to_owned(),
            operation,
            source,
        }
    }

    /// Returns whether there is too little space.
    pub fn is_disk_full(&self) -> bool {
        match self {
            StoreError::DiskFull { .. } => true,
            StoreError::Io { source, .. } => is_full(source),
            _ => false,
        }
    }
}

fn remedy(error: &io::Error) -> &'static str {
    if is_full(error) {
        ": make room, then try again"
    } else {
        ""
    }
}

/// Whether an error says that there is no space. sled passes some of these on as text only.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    ) || error.to_string().contains("No space left")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn disk_full_errors_ask_for_space() {
        let refused =
            |errno: Errno| StoreError::io(Path::new("data/format"), "write")(errno.into());
        for errno in [Errno::NOSPC, Errno::DQUOT] {
            let error = refused(errno);
            assert!(error.is_disk_full(), "{error:?}");
            assert!(error.to_string().contains("make room"), "{error}");
        }
        let other = refused(Errno::ACCESS);
        assert!(
            !other.is_disk_full() && !other.to_string().contains("make room"),
            "{other}"
        );
    }
}
