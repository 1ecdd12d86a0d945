//! The source of events: MONITOR over successive connections, or a file; and signals. All use one bounded queue.

use super::changes::{Interest, KeyEvent, KeyType};
use super::commands::{CommandFile, parse};
use super::redis::Redis;
use crate::cli::client::pauses;
use crate::cli::{note, open, stop_signals};
use redis::Client;
use std::io;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::thread;

/// Maximum number of queued events.
pub const QUEUE_MAX: usize = 65_536;

/// The exit status after a second signal, as shells have it for SIGINT.
const INTERRUPTED: i32 = 130;

/// The queue of events.
pub type Sender = SyncSender<KeyEvent>;

/// Sends the changes that MONITOR reports from now on.
///
/// # Errors
/// If the first connection can't be made.
pub fn monitor(client: Client, mut interest: Interest, to: Sender) -> anyhow::Result<()> {
    let key = interest.key.clone();
    let connect = move || {
        let mut redis = Redis::connect(&client)?;
        // A user without access to the key's type can still mirror it.
        let name = redis
            .query::<String>(redis::cmd("TYPE").arg(&key))
            .unwrap_or_default();
        redis.query::<()>(&redis::cmd("MONITOR"))?;
        anyhow::Ok((redis, KeyType::named(&name)))
    };
    let (mut redis, key_type) = connect()?;
    interest.key_type = key_type;
    thread::spawn(move || {
        loop {
            note("connected to Redis: changes are mirrored from now on; Ctrl-C ends it");
            // A queue that is no longer read ends it.
            let Some(why) = follow(redis, &mut interest, &to) else {
                return;
            };
            if to.send(KeyEvent::Broken(why)).is_err() {
                return;
            }
            let connected = pauses().find_map(|pause| {
                thread::sleep(pause);
                connect().ok()
            });
            let Some(connected) = connected else { return };
            (redis, interest.key_type) = connected;
        }
    });
    Ok(())
}

/// Sends changes until the connection breaks, and returns the reason; `None` if the queue is no longer read. If the queue is full, closes the
/// connection. Otherwise Redis would queue the events, by default without a limit.
fn follow(redis: Redis, interest: &mut Interest, to: &Sender) -> Option<String> {
    let mut sent = Ok(());
    let ended = redis.monitor(|line| {
        let effect = parse(line.as_bytes()).and_then(|command| interest.effect(&command));
        sent = effect.map_or(Ok(()), |effect| to.try_send(effect));
        sent.is_ok()
    });
    match (sent, ended) {
        (Err(TrySendError::Disconnected(_)), _) => None,
        (Err(TrySendError::Full(_)), _) => {
            Some("changes arrive faster than they can be mirrored".to_owned())
        }
        (Ok(()), ended) => Some(
            ended
                .err()
                .map_or_else(String::new, |error| error.to_string()),
        ),
    }
}

/// Sends the changes of a file, or of standard input for `-`.
///
/// # Errors
/// If it can't be opened.
pub fn file(path: &Path, mut interest: Interest, to: Sender) -> anyhow::Result<()> {
    let mut commands = CommandFile::new(open(path)?);
    let name = path.display().to_string();
    thread::spawn(move || {
        let end = loop {
            match commands.read() {
                Ok(Some(command)) => match interest
                    .effect(&command)
                    .map_or(Ok(()), |event| to.send(event))
                {
                    Ok(()) => {}
                    Err(_) => return,
                },
                Ok(None) => break KeyEvent::End,
                Err(error) => {
                    break KeyEvent::Fault(format!("{name}, command {}: {error}", commands.number));
                }
            }
        };
        // The queue may no longer be read.
        let _ = to.send(end);
    });
    Ok(())
}

/// Sends an event, and a message to the returned receiver, at the first SIGINT or SIGTERM. Events before it are still mirrored; a second
/// signal ends the process.
///
/// # Errors
/// If the system can't start a thread.
pub fn on_signals(to: Sender) -> io::Result<Receiver<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    let inside = runtime.enter();
    let mut stopped = stop_signals()?;
    drop(inside);
    let (request, requested) = mpsc::channel();
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            runtime.block_on(stopped());
            // Nothing waits for it any more if the mirror has ended.
            let _ = request.send(());
            // The queue may be full for as long as the service can't be reached.
            thread::spawn(move || to.send(KeyEvent::End));
            runtime.block_on(stopped());
            std::process::exit(INTERRUPTED);
        })?;
    Ok(requested)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::time::Duration;

    #[test]
    fn monitor_is_closed_when_too_many_events_wait() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let redis = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream
                .set_read_timeout(Some(Duration::from_secs(60)))
                .unwrap();
            stream
                .read_exact(&mut [0; "*2\r\n$4\r\nTYPE\r\n$1\r\nk\r\n".len()])
                .unwrap();
            stream.write_all(b"+set\r\n").unwrap();
            stream
                .read_exact(&mut [0; "*1\r\n$7\r\nMONITOR\r\n".len()])
                .unwrap();
            let lines = [1, 2, 3].map(|item| format!("+1.2 [0 a:1] \"SADD\" \"k\" \"{item}\"\r\n"));
            stream
                .write_all(format!("+OK\r\n{}", lines.concat()).as_bytes())
                .unwrap();
            // The other side ends it, or resets it because it has not read everything.
            let ended = stream
                .read_to_end(&mut Vec::new())
                .map_err(|error| error.kind());
            assert!(
                matches!(ended, Ok(0) | Err(io::ErrorKind::ConnectionReset)),
                "{ended:?}"
            );
        });
        let (to, events) = mpsc::sync_channel(1);
        let interest = Interest {
            key: b"k".to_vec(),
            database: None,
            key_type: KeyType::Unknown,
        };
        monitor(
            crate::cli::shadow::redis::client(&url, None).unwrap(),
            interest,
            to,
        )
        .unwrap();
        // Nothing is taken from the queue before the connection has ended.
        redis.join().unwrap();
        let found = [(); 2].map(|()| events.recv().unwrap());
        assert!(
            matches!(&found, [KeyEvent::Change(..), KeyEvent::Broken(why)] if why.contains("faster")),
            "{found:?}"
        );
    }
}
