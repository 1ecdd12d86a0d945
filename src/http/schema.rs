//! Schemas of the document that no type of a handler gives.

use utoipa::ToSchema;

/// A body of bytes, sent and read as a stream, whatever its media type.
#[derive(ToSchema)]
#[schema(value_type = String, format = Binary)]
pub(super) struct Bytes(());
