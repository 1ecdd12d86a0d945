//! Metrics of when keys and the certificate expire.

use super::metrics::Figures;
use crate::access::Access;
use crate::domain::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What expires; clones share the same values.
#[derive(Clone)]
pub(super) struct Expiries {
    access: Arc<Access>,
    /// In milliseconds since the epoch; 0 if there is no certificate.
    certificate: Arc<AtomicU64>,
}

impl Expiries {
    pub(super) fn new(access: Arc<Access>) -> Self {
        Self { access, certificate: Arc::default() }
    }

    pub(super) fn note_certificate(&self, expires_at: Option<Timestamp>) {
        self.certificate.store(expires_at.map_or(0, |at| at.0), Ordering::Relaxed);
    }

    pub(super) fn certificate(&self) -> Option<Timestamp> {
        Some(Timestamp(self.certificate.load(Ordering::Relaxed))).filter(|at| at.0 > 0)
    }

    pub(super) fn keys(&self) -> Vec<(String, Timestamp)> {
        self.access.entry.expiries()
    }
}

impl fmt::Debug for Expiries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Expiries").finish_non_exhaustive()
    }
}

impl Collector for Expiries {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (mut figures, keys) = (Figures(encoder), self.keys());
        let seconds = |at: Timestamp| (at.0 / 1_000) as i64;
        if !keys.is_empty() {
            let help = "Time at which a key expires, since the epoch";
            let keys = keys.iter().map(|(key, at)| (key.as_str(), seconds(*at)));
            figures.gauges("key_expiry_timestamp_seconds", help, "key", keys)?;
        }
        if let Some(at) = self.certificate() {
            let help = "Time at which the certificate expires, since the epoch";
            figures.gauge("certificate_expiry_timestamp_seconds", help, seconds(at))?;
        }
        Ok(())
    }
}
