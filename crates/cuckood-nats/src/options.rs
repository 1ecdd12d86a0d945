//! How a node reaches the replicated log.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Maximum length of a node's name, in bytes.
pub(super) const NODE_BYTES_MAX: usize = 128;

/// How long a node whose state differs continues by default. Every node reports its last hash every five seconds.
pub const OPEN_TIME: Duration = Duration::from_secs(30);

/// Options of the log on NATS JetStream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NatsOptions {
    /// Addresses of servers, such as `nats://10.0.0.1:4222` or `tls://nats.example.com`. The others are learned from them.
    pub servers: Vec<String>,
    /// Name of the stream; it is created if it does not exist. Its subject is the name followed by `.log`.
    pub stream: String,
    /// Name of the cluster that the stream belongs to. Nodes of another one are rejected.
    pub cluster: String,
    /// How many servers hold the stream, if it is created.
    pub replicas: usize,
    /// The name of this node, which no other running node may have.
    pub node: String,
    /// How the node says who it is.
    pub login: NatsLogin,
    /// TLS, in addition to the addresses' schemes.
    pub tls: NatsTls,
    /// How long the servers may take to be reached at the start.
    pub connect_timeout: Duration,
    /// Bytes of the log that are retained before the older of the two shared snapshots.
    pub log_margin: u64,
    /// How long a node continues whose state differs from another's, unless more nodes agree with it than differ.
    pub open_time: Duration,
}

/// How a node says who it is.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct NatsLogin {
    /// User name; empty for none.
    pub user: String,
    /// The user's password.
    pub password: String,
    /// A token; empty for none.
    pub token: String,
    /// File with a user's JWT and key (`.creds`); empty for none.
    pub credentials: PathBuf,
}

impl fmt::Debug for NatsLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsLogin")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// TLS to the servers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NatsTls {
    /// File with the certificates of the authority; empty for the system's.
    pub ca: PathBuf,
    /// File with this node's certificate; empty for none.
    pub cert: PathBuf,
    /// File with its private key.
    pub key: PathBuf,
}

impl NatsOptions {
    /// The first fault of the options. Does not print secrets.
    pub fn fault(&self) -> Option<String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        let stream = &self.stream;
        let node = &self.node;
        if !(1..=64).contains(&stream.len()) || !stream.chars().all(is_plain) {
            return Some(format!(
                "nats.stream is `{stream}`: up to 64 letters, digits, - and _ are allowed"
            ));
        }
        if !(1..=NODE_BYTES_MAX).contains(&node.len()) {
            return Some(format!(
                "cluster.node has 1 to {NODE_BYTES_MAX} bytes, not {}",
                node.len()
            ));
        }
        let with_user = self
            .servers
            .iter()
            .find_map(|server| Some(server.rsplit_once('@')?.1));
        with_user.map(|host| {
            format!("nats.servers: {host} has a user in its address; set nats.user and nats.password, or nats.token")
        })
    }
}
