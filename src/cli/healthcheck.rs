//! `cuckood healthcheck`: is the service ready? For containers, whose image has no other client.

use super::client::{ClientError, Connection};
use std::time::Duration;

/// Ask a service whether it is ready; the exit status tells.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// How to reach it.
    #[command(flatten)]
    pub connection: Connection,
}

/// Asks `/readyz`.
///
/// # Errors
/// When it is not ready, or not there.
pub fn run(args: &Args) -> Result<(), ClientError> {
    let path = "/readyz";
    let request = args.connection.agent().get(args.connection.address(path));
    let answer = request.config().timeout_global(Some(Duration::from_secs(3))).build().call();
    args.connection.accept(path, answer).map(drop)
}
