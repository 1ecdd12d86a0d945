//! RESP connections: whatever HTTP has, too, in the way of TLS, places, time-outs and the drain.

use super::activity::{self, Activity};
use super::door::{Door, Visit};
use crate::resp;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

/// The RESP service.
pub(super) struct RespDoor {
    door: resp::Door,
    /// Each connection has a receiver.
    draining: watch::Sender<bool>,
}

impl RespDoor {
    pub(super) fn new(door: resp::Door) -> Self {
        Self { door, draining: watch::Sender::new(false) }
    }
}

impl Door for RespDoor {
    type Visit = Connection;

    fn admit(&self, peer: SocketAddr, activity: Arc<Activity>) -> Connection {
        Connection { door: self.door.clone(), peer, activity, draining: self.draining.subscribe() }
    }

    fn drain(&mut self) -> impl Future<Output = ()> + 'static {
        let draining = self.draining.clone();
        draining.send_replace(true);
        async move { draining.closed().await }
    }
}

/// Everything that one connection needs to be served.
pub(super) struct Connection {
    door: resp::Door,
    peer: SocketAddr,
    activity: Arc<Activity>,
    draining: watch::Receiver<bool>,
}

impl Visit for Connection {
    async fn serve<S>(self, stream: S) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self { door, peer, activity, draining } = self;
        door.serve(stream, Some(peer), Watched(activity), draining).await
    }
}

/// Tells the sweep what a connection is waiting for.
struct Watched(Arc<Activity>);

impl resp::Watcher for Watched {
    fn enter(&self, phase: resp::Phase) {
        self.0.enter(match phase {
            resp::Phase::Stranger => activity::Phase::New,
            resp::Phase::Idle => activity::Phase::Idle,
            resp::Phase::Request => activity::Phase::Head,
            resp::Phase::Busy => activity::Phase::Busy,
            resp::Phase::Closing => activity::Phase::Closing,
        });
    }
}
