//! Entry points of the fuzz targets in `fuzz/`; the program uses the same code.

pub use super::imports::lines::{Delimiter, Line, Lines, UploadFault, UploadFormat};

use super::items::pairs;
use super::response::Problem;
use super::users::users_to_add;
use cuckood_filter::Digest;
use cuckood_state::FilterView;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// Parses the body of an add.
///
/// # Errors
/// The problem that the service returns.
pub fn items(
    body: &[u8],
    view: &FilterView,
    items_max: usize,
) -> Result<(Vec<Digest>, bool), Problem> {
    complete(users_to_add(body, view, items_max))
}

/// Parses the body of a replacement of items.
///
/// # Errors
/// The problem that the service returns.
pub fn replacements(
    body: &[u8],
    view: &FilterView,
    items_max: usize,
) -> Result<(Vec<Digest>, Vec<Digest>), Problem> {
    complete(pairs(body, view, items_max))
}

/// Runs a future that waits for nothing.
fn complete<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            return output;
        }
    }
}
