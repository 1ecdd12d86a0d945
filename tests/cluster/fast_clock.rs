//! A node whose clock is ahead starts, and doesn't change the log's time.

use crate::engines::{config, nats_options};
use crate::nats::Servers;
use crate::timeouts::TIMEOUT;
use cuckood::clock::{Clock, ClockLimits, Evidence, system_reading};
use cuckood::engine::journal::JournalOptions;
use cuckood::engine::{Engine, EngineOptions, EngineStatus, SubmitError};
use cuckood_log::journal::Durability;
use cuckood_log::store::Store;
use cuckood_log::testing::stores::{entries, options};
use cuckood_nats::{NatsJournal, NatsOptions};
use cuckood_state::domain::{ClockReading, Settings};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A node alone doesn't detect fifty minutes as a jump.
#[test]
fn startup_entries_ignore_fast_clock() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let servers = Servers::start(1);
    let join = |node: &str| NatsOptions {
        connect_timeout: TIMEOUT,
        ..nats_options(servers.urls(), "ahead", node)
    };
    let dir = tempfile::tempdir().unwrap();
    let other_dir = tempfile::tempdir().unwrap();
    let seconds_ahead = Arc::new(AtomicU64::new(3_000));
    let ahead = seconds_ahead.clone();
    let clock = move || {
        let ClockReading { wall, uptime } = system_reading();
        ClockReading {
            wall: wall.plus_seconds(ahead.load(Ordering::Relaxed)),
            uptime,
        }
    };
    let journal = JournalOptions::Nats(Box::new(join("ahead")));
    // A startup logs them.
    let settings = Settings {
        filters_max: 7,
        ..Settings::default()
    };
    let path = dir.path().to_owned();
    let store = options(Durability::Fsync);
    let engine_options = EngineOptions {
        path,
        journal,
        store,
        settings,
        ..config().engine_options()
    };
    let engine = Engine::start(engine_options, Clock::new(clock, ClockLimits::default()));
    assert_eq!(runtime.block_on(engine.recovered()), EngineStatus::Ready);
    let refused = engine.writes_refused();
    let Some(SubmitError::ClockUnsure(unsure)) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(unsure.evidence, Evidence::Log);

    let store = Arc::new(Store::open(other_dir.path(), &options(Durability::Fsync)).unwrap());
    let mut other = NatsJournal::open(store, &join("other")).unwrap();
    let logged = entries(&mut other, 0).unwrap();
    // The version of entries, and the settings.
    assert_eq!(logged.len(), 2);
    let latest = system_reading().wall.plus_seconds(1_000);
    assert!(logged.iter().all(|entry| entry.proposal.at < latest));
    seconds_ahead.store(0, Ordering::Relaxed);
    runtime.block_on(engine.shutdown());
}
