//! Schemas of the OpenAPI document that no handler's type gives.

use utoipa::ToSchema;

/// A body of bytes that is streamed, whatever its media type.
#[derive(ToSchema)]
#[schema(value_type = String, format = Binary)]
pub(super) struct Bytes(());
