//! The endpoint about several machines: this node, the others last heard of, and the log between them.

use super::answer::reply;
use super::call::{Call, Read};
use crate::domain::{FORMAT_VERSION, StateHash, Timestamp};
use crate::engine::Peer;
use axum::response::Response;
use serde::Serialize;
use serde_with::skip_serializing_none;
use std::time::Instant;
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
    enabled: u16,
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
    /// Whether the log responds: it does not without a majority of its servers.
    quorum: bool,
    /// For how long it has not responded; 0 while it does.
    no_quorum_seconds: f64,
    /// For how long it has rejected messages because it is full; 0 while it does not.
    log_full_seconds: f64,
    /// For how long this node has not reached a position that the log has shown it; 0 if it has reached all.
    lag_seconds: f64,
    /// Messages of the log that are waiting to be read.
    behind_messages: u64,
    /// Messages that were sent and not read back.
    in_flight: u64,
    reconnects: u64,
    /// How often the log was opened again because it had not come as it should.
    reopened: u64,
    /// How often messages were sent again because their outcome was unknown.
    resent: u64,
    /// Messages in the stream that are not of this service; they are skipped.
    foreign_messages: u64,
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
    let now = Instant::now();
    let log = replication.map(|mut figures| Log {
        quorum: figures.silence(now).is_zero(),
        no_quorum_seconds: figures.silence(now).as_secs_f64(),
        log_full_seconds: figures
            .full_since
            .map_or(0.0, |since| now.saturating_duration_since(since).as_secs_f64()),
        lag_seconds: figures.lag(now).as_secs_f64(),
        connected: figures.disconnected_since.is_none(),
        behind_messages: figures.behind_messages(),
        node: figures.node,
        stream: figures.stream,
        replicas: figures.replicas,
        server: figures.server,
        server_version: figures.server_version,
        in_flight: figures.in_flight as u64,
        reconnects: figures.reconnects,
        reopened: figures.reopened,
        resent: figures.resent,
        foreign_messages: figures.foreign,
        hash: figures.hash.map(Hash::from),
    });
    let (build, understands) = (env!("CARGO_PKG_VERSION"), FORMAT_VERSION);
    let (position, enabled) = (engine.position().0, engine.format());
    let body = Cluster { journal, position, build, understands, enabled, log, nodes };
    reply::ok(&body)
}
