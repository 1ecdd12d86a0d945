//! Conversions from the configuration to the options of each part of the service.

use super::{Config, JournalKind};
use crate::engine::journal::JournalOptions;
use crate::engine::{EngineOptions, SnapshotOptions};
use crate::http::options::{HostOptions, HttpOptions, LimitOptions, RequestTimeouts};
use crate::resp::RespOptions;
use cuckood_log::journal::{Durability, LocalOptions};
use cuckood_log::store::StoreOptions;
use cuckood_state::domain::Settings;
use cuckood_state::domain::command::{IDEMPOTENCY_ROOM_MAX_BYTES, IDEMPOTENCY_ROOM_MIN_BYTES};
use std::time::Duration;

/// Maximum age of rendered metrics that are served again.
const METRICS_AGE_MAX: Duration = Duration::from_secs(1);

impl Config {
    /// Whether TLS is configured.
    pub fn tls(&self) -> bool {
        !self.server.tls_cert.as_os_str().is_empty()
    }

    /// The options of the engine.
    pub fn engine_options(&self) -> EngineOptions {
        let journal = match self.journal.kind {
            JournalKind::Local => JournalOptions::Local(LocalOptions {
                durability: self.storage.durability,
                segment_bytes: self.storage.wal_segment.0,
            }),
            JournalKind::Nats => JournalOptions::Nats(Box::new(self.nats.options(&self.cluster))),
        };
        EngineOptions {
            path: self.storage.path.clone(),
            store: StoreOptions {
                // A snapshot is as durable as the log after it.
                sync_snapshots: journal.durability() == Durability::Fsync,
                free_space_min_bytes: self.storage.free_space_min.0,
                ballast_bytes: self.storage.ballast.0,
                open_timeout: self.storage.open_timeout.0,
                cache_bytes: self.storage.cache.0,
                ..StoreOptions::default()
            },
            settings: Settings {
                redemptions_retention_seconds: self.redemptions.retention.0.as_secs(),
                idempotency_retention_seconds: self.idempotency.retention.0.as_secs(),
                idempotency_retention_min_seconds: self.idempotency.retention_min.0.as_secs(),
                idempotency_room_bytes: self
                    .idempotency
                    .room
                    .bytes(self.limits.memory.0)
                    .clamp(IDEMPOTENCY_ROOM_MIN_BYTES, IDEMPOTENCY_ROOM_MAX_BYTES),
                idempotency_keys: self.auth.keys.len() as u64,
                // Only 0 disables events.
                events_retention_seconds: self.events.retention.0.as_millis().div_ceil(1_000)
                    as u64,
                imports_retention_seconds: self.imports.retention.0.as_secs(),
                filters_max: self.limits.filters,
                line_ups_max: self.limits.line_ups,
            },
            snapshots: SnapshotOptions {
                log_bytes_min: self.snapshots.log_min.0,
                log_bytes_max: self.snapshots.log_max.0,
                ..SnapshotOptions::default()
            },
            cluster: self.cluster.options(),
            memory_max_bytes: self.limits.memory.0,
            events_room_bytes: self.events.room.0,
            queue_commands_max: self.limits.queue_commands,
            queue_bytes_max: self.limits.queue_bytes.0,
            commit_timeout: journal.commit_timeout(),
            journal,
        }
    }

    /// Returns the options of the listener for Redis clients.
    pub fn resp_options(&self) -> RespOptions {
        RespOptions {
            default_capacity: self.resp.default_capacity,
            keys: self.resp.keys.clone(),
            buffers_bytes_max: self.resp.buffers.0,
            request_timeout: self.server.request_timeout.0,
            slow_request: self.telemetry.slow_request(),
            // Known once it is bound.
            ..RespOptions::default()
        }
    }

    /// The options of the HTTP layer.
    pub fn http_options(&self) -> HttpOptions {
        HttpOptions {
            auth: self.auth.clone(),
            limits: LimitOptions {
                body_bytes_max: usize::try_from(self.limits.body.0).unwrap_or(usize::MAX),
                bodies_bytes_max: self.limits.bodies.0,
                responses_bytes_max: self.limits.responses.0,
            },
            guessing: self.guessing.clone(),
            rate_limit: self.rate_limit.clone(),
            metrics: self.metrics.clone(),
            metrics_age_max: METRICS_AGE_MAX,
            slow_request: self.telemetry.slow_request(),
            timeouts: RequestTimeouts {
                request: self.server.request_timeout.0,
                body: self.server.body_timeout.0,
            },
            hosts: HostOptions {
                names: self.server.hosts.clone(),
                is_public: !self.server.listen.ip().to_canonical().is_loopback(),
            },
        }
    }
}
