//! Entry points of the fuzz targets in `fuzz/`; the program uses the same code.

pub use super::imports::lines::{Delimiter, Line, Lines, UploadFault, UploadFormat};
pub use super::items::pairs as replacements;
pub use super::users::users_to_add as items;
