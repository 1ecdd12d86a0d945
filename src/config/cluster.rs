//! The sections of the configuration that concern several machines: kind of log, how to reach it, and the node's identity.

use super::values::{Bytes, DurationSetting, list};
use crate::engine::ClusterOptions;
use cuckood_nats::{NatsLogin, NatsOptions, NatsTls, OPEN_TIME};
use serde::Deserialize;
use std::path::PathBuf;

/// The section `journal`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JournalSettings {
    /// Which log the service runs on.
    pub kind: JournalKind,
}

/// Which log the service runs on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JournalKind {
    /// One in the data directory, for a single machine.
    Local,
    /// A stream of NATS JetStream, for several.
    Nats,
}

/// A text that must not appear in a log.
#[derive(Clone, Default, derive_more::Debug, Deserialize)]
#[debug("{}", if _0.is_empty() { "none" } else { "secret" })]
#[serde(transparent)]
pub struct SecretText(String);

/// The section `nats`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nats {
    /// Addresses of servers.
    #[serde(deserialize_with = "list")]
    pub servers: Vec<String>,
    /// The stream that is the log.
    pub stream: String,
    /// Servers that hold the stream, if it is created.
    pub replicas: usize,
    /// User name; empty for none.
    pub user: String,
    /// The user's password.
    pub password: SecretText,
    /// A token; empty for none.
    pub token: SecretText,
    /// File with a JWT and its key; empty for none.
    pub credentials: PathBuf,
    /// File with the authority's certificates; empty for the system's.
    pub tls_ca: PathBuf,
    /// File with this node's certificate; empty for none.
    pub tls_cert: PathBuf,
    /// File with its private key.
    pub tls_key: PathBuf,
    /// How long the servers may take to be reached at a start.
    pub connect_timeout: DurationSetting,
}

/// The section `cluster`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterSettings {
    /// The name of the cluster, the same on all its nodes; empty for none.
    pub name: String,
    /// The name of this node; empty for the machine's.
    pub node: String,
    /// Maximum lag of a ready node.
    pub lag_max: DurationSetting,
    /// How long a read waits for its position or barrier.
    pub wait: DurationSetting,
    /// Whether this node's settings replace those in the log.
    pub configure: bool,
    /// Whether this node shares snapshots with the others.
    pub share_snapshots: bool,
    /// How old the newest shared snapshot may be.
    pub snapshot_interval: DurationSetting,
    /// Bytes of the log that are retained before the older of two shared snapshots.
    pub log_margin: Bytes,
}

impl ClusterSettings {
    /// The engine's options.
    pub fn options(&self) -> ClusterOptions {
        let share_every = self.share_snapshots.then_some(self.snapshot_interval.0);
        ClusterOptions {
            lag_max: self.lag_max.0,
            wait: self.wait.0,
            configure: self.configure,
            share_every,
        }
    }

    fn node(&self) -> String {
        let machine = || {
            rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned()
        };
        Some(self.node.clone())
            .filter(|node| !node.is_empty())
            .unwrap_or_else(machine)
    }
}

impl Nats {
    /// How this node reaches the log.
    pub fn options(&self, cluster: &ClusterSettings) -> NatsOptions {
        NatsOptions {
            servers: self.servers.clone(),
            stream: self.stream.clone(),
            cluster: cluster.name.clone(),
            replicas: self.replicas,
            node: cluster.node(),
            login: NatsLogin {
                user: self.user.clone(),
                password: self.password.0.clone(),
                token: self.token.0.clone(),
                credentials: self.credentials.clone(),
            },
            tls: NatsTls {
                ca: self.tls_ca.clone(),
                cert: self.tls_cert.clone(),
                key: self.tls_key.clone(),
            },
            connect_timeout: self.connect_timeout.0,
            log_margin: cluster.log_margin.0,
            open_time: OPEN_TIME,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, ConfigError};
    use crate::engine::journal::JournalOptions;
    use std::time::Duration;

    fn load(variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
        Config::load(None, variables.iter().copied())
    }

    #[test]
    fn cluster_node_is_configured_by_environment() {
        let nats = ("CUCKOOD__JOURNAL__KIND", "nats");
        let config = load(&[
            nats,
            ("CUCKOOD__NATS__SERVERS", "nats://a:4222, tls://b"),
            ("CUCKOOD__NATS__PASSWORD", "hunter2"),
            ("CUCKOOD__CLUSTER__NODE", "node-1"),
            ("CUCKOOD__CLUSTER__LAG_MAX", "3s"),
        ])
        .unwrap();
        assert!(!format!("{config:?}").contains("hunter2"));
        let engine = config.engine_options();
        let JournalOptions::Nats(options) = &engine.journal else {
            panic!("{:?}", engine.journal)
        };
        assert_eq!(options.servers, ["nats://a:4222", "tls://b"]);
        assert_eq!(
            (options.node.as_str(), options.replicas, options.log_margin),
            ("node-1", 3, 64 << 20)
        );
        assert_eq!(engine.cluster.lag_max, Duration::from_secs(3));
        assert!(!format!("{engine:?}").contains("hunter2"));
        for (name, value) in [
            ("CUCKOOD__NATS__SERVERS", "[]"),
            ("CUCKOOD__NATS__SERVERS", "nats://shop:hunter2@a:4222"),
            ("CUCKOOD__NATS__TLS_CERT", "cert.pem"),
        ] {
            let rejected = load(&[nats, (name, value)]).unwrap_err().to_string();
            assert!(!rejected.contains("hunter2"), "{rejected}");
            assert!(load(&[(name, value)]).is_ok(), "{name} without such a log");
        }
    }

    #[test]
    fn numeric_secret_remains_string() {
        for (value, wanted) in [
            ("12345678", "12345678"),
            ("0x1F", "0x1F"),
            ("1_000", "1_000"),
            ("true", "true"),
            ("2027-01-31", "2027-01-31"),
            ("\"12345678\"", "12345678"),
            ("a \"b\"", "a \"b\""),
        ] {
            let Nats {
                password, token, ..
            } = load(&[
                ("CUCKOOD__NATS__PASSWORD", value),
                ("CUCKOOD__NATS__TOKEN", value),
            ])
            .unwrap()
            .nats;
            assert_eq!((password.0.as_str(), token.0.as_str()), (wanted, wanted));
        }
    }
}
