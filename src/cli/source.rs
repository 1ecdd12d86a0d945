//! What `cuckood import` sends: a file, which can be read again when a connection breaks, or standard input, which can't.

use indicatif::{ProgressBar, ProgressStyle};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// How many bytes are shown, how fast they go and how long it will take; for standard input nobody knows that.
const OF_A_FILE: &str = "{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta} left {msg}";
const OF_INPUT: &str = "{spinner} {bytes} {bytes_per_sec} {msg}";

/// Where an upload comes from.
pub struct Source {
    /// None for standard input.
    path: Option<PathBuf>,
    /// Bytes, for a file.
    length: Option<u64>,
    progress: ProgressBar,
}

impl Source {
    /// The file at a path, or standard input for `-`. Progress is shown where standard error is a terminal.
    ///
    /// # Errors
    /// The file can't be read.
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
    /// The file can't be read any more.
    pub fn read(&self) -> io::Result<Box<dyn Read + Send>> {
        self.progress.set_position(0);
        self.progress.set_message("");
        let progress = self.progress.clone();
        Ok(match &self.path {
            Some(path) => Box::new(progress.wrap_read(File::open(path)?)),
            None => Box::new(progress.wrap_read(io::stdin())),
        })
    }

    /// Shows what is waited for.
    pub fn say(&self, what: String) {
        self.progress.set_message(what);
        self.progress.tick();
    }

    /// Leaves the terminal as it was.
    pub fn finish(&self) {
        self.progress.finish_and_clear();
    }
}
