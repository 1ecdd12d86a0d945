//! Why `cuckood shadow` ends with exit status 1.

use super::address::AddressError;
use super::link::RedisError;
use crate::cli::client::ClientError;
use thiserror::Error;

/// Why it ends with exit status 1.
#[derive(Debug, Error)]
pub enum ShadowError {
    /// The address of Redis can't be read.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The service refused something, or a file can't be read.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Redis refused something, or can't be reached.
    #[error(transparent)]
    Redis(#[from] RedisError),
    /// Something can't be mirrored or compared.
    #[error("{0}")]
    Unfit(String),
    /// Changes are missing.
    #[error("changes may be missing, see gaps, skipped and not_mirrored: compare the two with --compare")]
    Incomplete,
    /// Redis and the service disagree.
    #[error("{0} disagreements, more than --max-disagreements allows")]
    Disagree(u64),
}
