//! Progress on standard error, if it is a terminal: done and total, unit, speed, and time left.

use indicatif::{ProgressBar, ProgressStyle};
use std::path::Path;

const OF_BYTES: &str = "{bar:30} {bytes} of {total_bytes} {msg} {bytes_per_sec} {eta} left";
const BYTES: &str = "{spinner} {bytes} {msg} {bytes_per_sec}";
const OF_ITEMS: &str = "{bar:30} {human_pos} of {human_len} {msg} {per_sec} {eta} left";

/// Shows bytes of `unit`; of an unknown total if there is no length.
pub fn bytes(length: Option<u64>, unit: &'static str) -> ProgressBar {
    match length {
        Some(length) => styled(ProgressBar::new(length), OF_BYTES, unit),
        None => styled(ProgressBar::new_spinner(), BYTES, unit),
    }
}

/// Shows bytes of a file that is read this many times.
pub fn file(path: &Path, times: u64) -> ProgressBar {
    bytes(
        path.metadata().ok().map(|about| times * about.len()),
        "of the archive",
    )
}

/// Shows items of a total.
pub fn items(length: u64, unit: &'static str) -> ProgressBar {
    styled(ProgressBar::new(length), OF_ITEMS, unit)
}

fn styled(progress: ProgressBar, template: &str, unit: &'static str) -> ProgressBar {
    if let Ok(style) = ProgressStyle::with_template(template) {
        progress.set_style(style);
    }
    progress.with_message(unit)
}
