//! The committed OpenAPI document is the code's.

use cuckood::http::openapi;

#[test]
fn the_committed_document_is_fresh() {
    let committed = include_str!("../../openapi/openapi.json");
    // Compared as wholes, so that a failure does not print both.
    assert!(committed == openapi::pretty(), "openapi/openapi.json is stale: run `make openapi`");
}
