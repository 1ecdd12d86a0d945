//! A network to servers, for a node or another server. It can delay or damage data in either direction, and cut all connections. It can
//! redirect requests to a subject without responses.

use parking_lot::{Condvar, Mutex};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

/// One direction of the network.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    ToServers = 0,
    ToNode = 1,
}

#[derive(Default)]
struct Condition {
    is_cut: bool,
    /// Data in this direction waits.
    is_held: [bool; 2],
    /// What happens the next time that these bytes are sent.
    accident: Option<(&'static [u8], Direction)>,
    /// Requests to JetStream with these bytes in their subject get no response.
    unanswered: Option<&'static [u8]>,
    open: Vec<TcpStream>,
}

/// Separate addresses for servers, reached through this network.
pub struct Network {
    urls: Vec<String>,
    condition: Arc<(Mutex<Condition>, Condvar)>,
    /// The first server.
    server: u16,
}

/// Where requests to JetStream are published, and where requests are published that get no response.
const API: &[u8] = b"$JS.API.";
const NOWHERE: &[u8] = b"$JS.APX.";

impl Network {
    /// A network to the servers at these ports. Its threads end with the process.
    pub fn to(servers: &[u16]) -> Network {
        let condition = Arc::<(Mutex<Condition>, Condvar)>::default();
        let urls = servers.iter().map(|&server| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            let condition = condition.clone();
            thread::spawn(move || {
                listener
                    .incoming()
                    .flatten()
                    .for_each(|node| connect(node, server, &condition))
            });
            format!("nats://127.0.0.1:{port}")
        });
        Network {
            urls: urls.collect(),
            condition: condition.clone(),
            server: servers[0],
        }
    }

    pub fn urls(&self) -> String {
        self.urls.join(",")
    }

    /// Delays data sent from now on.
    pub fn hold(&self, direction: Direction) {
        self.condition.0.lock().is_held[direction as usize] = true;
    }

    /// Forwards everything, delayed data first.
    pub fn release(&self) {
        let mut condition = self.condition.0.lock();
        (condition.is_held, condition.is_cut, condition.unanswered) = ([false; 2], false, None);
        self.condition.1.notify_all();
    }

    /// Lets requests to JetStream get no response that have these bytes in their subject.
    pub fn silence(&self, part: &'static [u8]) {
        // With a subscriber, the server does not report that there is none.
        let mut subscriber = TcpStream::connect(("127.0.0.1", self.server)).unwrap();
        subscriber
            .write_all(b"CONNECT {\"verbose\":false}\r\nSUB $JS.APX.> 1\r\nPING\r\n")
            .unwrap();
        let mut received = Vec::new();
        while !received.ends_with(b"PONG\r\n") {
            let mut byte = [0];
            subscriber.read_exact(&mut byte).unwrap();
            received.extend(byte);
        }
        let mut condition = self.condition.0.lock();
        condition.open.push(subscriber);
        condition.unanswered = Some(part);
    }

    /// Damages these bytes, the next time that they are sent to the node.
    pub fn damage(&self, bytes: &'static [u8]) {
        self.condition.0.lock().accident = Some((bytes, Direction::ToNode));
    }

    /// Breaks a connection once these bytes are sent to the servers. They arrive, and the node learns nothing of it.
    pub fn break_after(&self, bytes: &'static [u8]) {
        self.condition.0.lock().accident = Some((bytes, Direction::ToServers));
    }

    /// Whether that has happened.
    pub fn had_accident(&self) -> bool {
        self.condition.0.lock().accident.is_none()
    }

    /// Breaks all connections, and refuses others until it is released.
    pub fn cut(&self) {
        let mut condition = self.condition.0.lock();
        condition.is_cut = true;
        for stream in condition.open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn connect(node: TcpStream, server: u16, condition: &Arc<(Mutex<Condition>, Condvar)>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else {
        return;
    };
    let mut locked = condition.0.lock();
    if locked.is_cut {
        return;
    }
    for (from, to, direction) in [
        (&node, &server, Direction::ToServers),
        (&server, &node, Direction::ToNode),
    ] {
        let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else {
            return;
        };
        let condition = condition.clone();
        thread::spawn(move || pump(from, to, direction, &condition));
    }
    locked.open.extend([node, server]);
}

/// Redirects requests whose subject has these bytes.
fn redirect(bytes: &mut [u8], part: &[u8]) {
    for line in bytes.split_mut(|byte| *byte == b'\n') {
        let find = |line: &[u8], sought: &[u8]| {
            line.windows(sought.len()).position(|found| found == sought)
        };
        if let (Some(at), Some(_)) = (find(line, API), find(line, part)) {
            line[at..at + API.len()].copy_from_slice(NOWHERE);
        }
    }
}

fn pump(
    mut from: TcpStream,
    mut to: TcpStream,
    direction: Direction,
    condition: &(Mutex<Condition>, Condvar),
) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count) = from.read(&mut bytes) {
        let mut locked = condition.0.lock();
        while locked.is_held[direction as usize] {
            condition.1.wait(&mut locked);
        }
        if let Some(part) = locked
            .unanswered
            .filter(|_| direction == Direction::ToServers)
        {
            redirect(&mut bytes[..count], part);
        }
        let is_here = |(_, at): &(&[u8], Direction)| *at == direction;
        if let Some((sought, _)) = locked.accident.filter(is_here)
            && let Some(at) = bytes[..count]
                .windows(sought.len())
                .position(|found| found == sought)
        {
            locked.accident = None;
            match direction {
                Direction::ToNode => bytes[at] ^= 1,
                Direction::ToServers => drop(from.shutdown(Shutdown::Both)),
            }
        }
        drop(locked);
        if count == 0 || to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
