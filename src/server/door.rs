//! What serves the connections of a listener.

use super::activity::Activity;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};

/// Serves the connections of one listener.
pub(super) trait Door {
    /// A connection that has been accepted.
    type Visit: Visit;

    /// Lets a connection in. From here on the drain waits for it.
    fn admit(&self, peer: SocketAddr, activity: Arc<Activity>) -> Self::Visit;

    /// Tells all connections to end once what they do is done. Resolves when none is left.
    fn drain(&mut self) -> impl Future<Output = ()> + 'static;
}

/// One connection.
pub(super) trait Visit: Send + 'static {
    /// Serves it until it ends.
    fn serve<S>(self, stream: S) -> impl Future<Output = io::Result<()>> + Send
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static;
}
