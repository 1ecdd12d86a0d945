//! What the fuzz targets in `fuzz/` use; the program uses the same inside.

pub use super::imports::lines::{Format, Line, Lines, UploadFault};
pub use super::items::{pairs as replacements, users_to_add as items};
