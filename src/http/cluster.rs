//! The endpoint about several machines: this node, the others last heard of, and the log between them.

use super::answer::reply;
use super::call::{Call, Read};
use crate::domain::{FORMAT_VERSION, StateHash, Timestamp};
use crate::engine::Peer;
use axum::response::Response;
use http::StatusCode;
use serde::Serialize;
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

/// This node among several.
#[skip_serializing_none]
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "journal": "local", "position": 4711, "build": "0.1.0", "understands": 3, "enabled": 3, "nodes": []
}))]
struct Cluster {
    /// `local` for a service on its own, `nats` for one of several nodes.
    #[schema(example = "nats")]
    journal: &'static str,
    /// The last position of the log that this node has applied.
    position: u64,
    /// The build of this node.
    #[schema(example = "0.1.0")]
    build: &'static str,
    /// The highest version of the log's entries that this node understands.
    understands: u16,
    /// The version of entries that is enabled in the log: whatever needs a higher one is not written yet.
    enabled: u64,
    /// What is known about the log that the nodes share. Absent for a service on its own.
    log: Option<Log>,
    /// The other nodes that the log has told of since this one was started.
    nodes: Vec<Node>,
}

/// The log that the nodes share.
#[skip_serializing_none]
#[derive(Serialize, ToSchema)]
#[schema(as = ClusterLog)]
struct Log {
    /// The name of this node.
    #[schema(example = "node-1")]
    node: String,
    #[schema(example = "cuckood")]
    stream: String,
    /// Servers that hold the stream.
    replicas: usize,
    /// The server that this node is connected to.
    server: String,
    server_version: String,
    connected: bool,
    /// Whether what this node has written to the log lately came back: it does not without most of the servers.
    quorum: bool,
    /// For how long it can't be shown that this node has everything that others were told is acknowledged.
    lag_seconds: f64,
    /// Messages of the log that are waiting to be read.
    behind_messages: u64,
    /// Commits that were sent and have not come back.
    in_flight: u64,
    reconnects: u64,
    /// How often the log was opened again because it had not come as it should.
    reopened: u64,
    /// How often this node has announced itself anew, to learn what became of a commit.
    sessions: u64,
    /// The hash of this node's state at the last position at which the nodes compare theirs. Absent before the first.
    hash: Option<Hash>,
}

/// The hash of a node's state at a position.
#[derive(Serialize, ToSchema)]
#[schema(as = ClusterHash)]
struct Hash {
    /// The position, a multiple of 65 536.
    #[schema(example = 65_536)]
    position: u64,
    #[schema(example = "9f0c2a5e6f0b4d7c8e1a3b5d7f901234")]
    hash: String,
}

impl From<StateHash> for Hash {
    fn from(StateHash { at, hash }: StateHash) -> Hash {
        Hash { position: at.0, hash: format!("{hash:032x}") }
    }
}

/// Another node.
#[skip_serializing_none]
#[derive(Serialize, ToSchema)]
#[schema(as = ClusterNode)]
struct Node {
    #[schema(example = "node-2")]
    node: String,
    /// The last position that it said it had applied.
    position: u64,
    /// When the log last told of it, by the log's clock.
    heard_at: Timestamp,
    /// Its build. Absent until it has told.
    build: Option<String>,
    /// The highest version of the log's entries that it understands. Absent until it has told.
    understands: Option<u16>,
    /// The hash of its state that it told last. Absent until it has told one.
    hash: Option<Hash>,
    /// Whether its state differs from that of this node. Absent until both have told a hash of one position.
    differs: Option<bool>,
}

impl From<Peer> for Node {
    fn from(peer: Peer) -> Node {
        Node {
            build: (!peer.build.is_empty()).then_some(peer.build),
            understands: (peer.understands > 0).then_some(peer.understands),
            node: peer.node,
            position: peer.applied.0,
            heard_at: peer.heard_at,
            hash: peer.hash.map(Hash::from),
            differs: peer.differs,
        }
    }
}

/// Show this node, the others and the log that they share
///
/// Positions, lag, quorum and state hashes as this node knows them.
#[utoipa::path(
    get,
    path = "/v1/cluster",
    operation_id = "cluster",
    tag = "operations",
    responses((status = 200, description = "As of now, as this node sees it", body = Cluster))
)]
pub(super) async fn show(call: Call<Read>) -> Response {
    let engine = &call.api.engine;
    let replication = engine.replication();
    let journal = if replication.is_some() { "nats" } else { "local" };
    let peers = replication.iter().flat_map(|replication| replication.peers.clone());
    let nodes = peers.map(Node::from).collect();
    let log = replication.map(|figures| Log {
        quorum: figures.connected && figures.lag.is_zero(),
        lag_seconds: figures.lag.as_secs_f64(),
        node: figures.node,
        stream: figures.stream,
        replicas: figures.replicas,
        server: figures.server,
        server_version: figures.server_version,
        connected: figures.connected,
        behind_messages: figures.behind_messages,
        in_flight: figures.in_flight,
        reconnects: figures.reconnects,
        reopened: figures.reopened,
        sessions: figures.sessions,
        hash: figures.hash.map(Hash::from),
    });
    let (build, understands) = (env!("CARGO_PKG_VERSION"), FORMAT_VERSION);
    let (position, enabled) = (engine.position().0, engine.format());
    let body = Cluster { journal, position, build, understands, enabled, log, nodes };
    reply::json(StatusCode::OK, false, &body)
}
