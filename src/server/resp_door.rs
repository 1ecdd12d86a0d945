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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{Access, AuthOptions, GuessingOptions, RateLimitOptions};
    use crate::clock::{Clock, ClockLimits, ManualTime};
    use crate::domain::Timestamp;
    use crate::engine::{Engine, EngineOptions};
    use crate::resp::RespOptions;
    use futures_util::FutureExt;
    use std::pin::pin;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Without keys, and over an engine that is still starting.
    fn door(directory: &tempfile::TempDir) -> resp::Door {
        let clock = Clock::new(Arc::new(ManualTime::at(Timestamp(0))), ClockLimits::default());
        let engine = Engine::start(EngineOptions::new(directory.path()), clock);
        let access =
            Access::new(&AuthOptions::default(), &RateLimitOptions::default(), &GuessingOptions::default());
        resp::Door::new(engine, Arc::new(access.unwrap()), RespOptions::default())
    }

    /// The sweep measures time by the changes of the phase: a request that drips in must not change it with each drop.
    #[tokio::test]
    async fn a_request_that_drips_in_is_one_phase() {
        let directory = tempfile::tempdir().unwrap();
        let (mut client, socket) = tokio::io::duplex(1 << 10);
        let activity = Arc::<Activity>::default();
        let stream = activity::Watched::new(socket, activity.clone());
        let (_draining, receiver) = watch::channel(false);
        let door = door(&directory);
        let served = door.serve(stream, None, Watched(activity.clone()), receiver);
        let mut served = pin!(served);
        assert!((&mut served).now_or_never().is_none());
        assert_eq!(activity.phase(), activity::Phase::Idle);
        for round in 0..3 {
            let mut head = None;
            let request = b"*2\r\n$4\r\nECHO\r\n$5\r\nhello\r\n";
            for (at, byte) in request.iter().enumerate() {
                client.write_all(&[*byte]).await.unwrap();
                assert!((&mut served).now_or_never().is_none());
                let moment = activity.moment();
                if at < request.len() - 1 {
                    assert_eq!(moment.phase, activity::Phase::Head);
                    assert_eq!(*head.get_or_insert(moment), moment, "byte {at} of request {round}");
                }
            }
            assert_eq!(activity.phase(), activity::Phase::Idle);
            let mut answer = [0; 11];
            client.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"$5\r\nhello\r\n");
        }
    }
}
