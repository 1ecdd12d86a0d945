//! Engines in temporary directories.

use cuckood::clock::{Clock, ClockLimits};
use cuckood::config::Config;
use cuckood::engine::journal::JournalOptions;
use cuckood::engine::{Engine, EngineOptions, EngineStatus};
use cuckood_log::testing::memory_log::MemoryLog;
use cuckood_state::domain::{Outcome, Settings, Target};
use cuckood_state::testing::commands::NewFilter;
use std::path::Path;

/// The documented defaults with the settings of a new log.
pub fn defaults(directory: &Path) -> EngineOptions {
    let config = Config::load(None, [("CUCKOOD__LIMITS__MEMORY", "1GiB")]).unwrap();
    let path = directory.to_owned();
    let settings = Settings::default();
    EngineOptions {
        path,
        settings,
        ..config.engine_options()
    }
}

/// Options of a small engine that reserves no space on the disk.
pub fn options(directory: &Path) -> EngineOptions {
    let mut options = defaults(directory);
    (
        options.store.free_space_min_bytes,
        options.store.ballast_bytes,
    ) = (0, 0);
    (options.store.preallocate_bytes, options.store.cache_bytes) = (0, 8 << 20);
    options
}

/// A recovered engine by the system's clock.
pub async fn start(options: EngineOptions) -> Engine {
    start_by(Clock::system(ClockLimits::default()), options).await
}

pub async fn start_by(clock: Clock, options: EngineOptions) -> Engine {
    let engine = Engine::start(options, clock);
    assert_eq!(engine.recovered().await, EngineStatus::Ready);
    engine
}

pub async fn create(engine: &Engine, target: Target, filter: &NewFilter) {
    let outcome = engine
        .submit(None, filter.create(target), None)
        .await
        .unwrap()
        .outcome;
    assert!(matches!(outcome, Outcome::Created(_)), "{outcome:?}");
}

/// The options of an engine that joins this log.
pub fn on_log(log: &MemoryLog) -> JournalOptions {
    JournalOptions::Other(std::sync::Arc::new(log.clone()))
}
