//! The input of `cuckood import`: a file, which can be read again when a connection breaks, or standard input, which can't.

use indicatif::{ProgressBar, ProgressStyle};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The progress bars: bytes, speed and remaining time; the last is unknown for standard input.
const OF_A_FILE: &str = "{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta} left {msg}";
const OF_INPUT: &str = "{spinner} {bytes} {bytes_per_sec} {msg}";

/// The input of an upload.
pub struct Source {
    /// `None` for standard input.
    path: Option<PathBuf>,
    /// Its length in bytes, for a file.
    length: Option<u64>,
    progress: ProgressBar,
}

impl Source {
    /// Opens the file at a path, or standard input for `-`. Progress is shown if standard error is a terminal.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn open(path: &Path) -> io::Result<Self> {
        let (path, length) = if path == Path::new("-") {
            (None, None)
        } else {
            // A pipe has no length.
            let about = File::open(path)?.metadata()?;
            (Some(path.to_owned()), about.is_file().then_some(about.len()))
        };
        let (progress, template) = match length {
            Some(length) => (ProgressBar::new(length), OF_A_FILE),
            None => (ProgressBar::new_spinner(), OF_INPUT),
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            progress.set_style(style);
        }
        Ok(Self { path, length, progress })
    }

    /// Whether it can be read more than once.
    pub fn is_repeatable(&self) -> bool {
        self.length.is_some()
    }

    /// Its bytes, from the start.
    ///
    /// # Errors
    /// If the file can no longer be read.
    pub fn read(&self) -> io::Result<Box<dyn Read + Send>> {
        self.progress.set_position(0);
        self.progress.set_message("");
        let progress = self.progress.clone();
        Ok(match &self.path {
            Some(path) => Box::new(progress.wrap_read(File::open(path)?)),
            None => Box::new(progress.wrap_read(io::stdin())),
        })
    }

    /// Shows what the upload is waiting for.
    pub fn say(&self, what: String) {
        self.progress.set_message(what);
        self.progress.tick();
    }

    /// Restores the terminal.
    pub fn finish(&self) {
        self.progress.finish_and_clear();
    }
}
