//! Nodes in the test's own process, with settings that a real program can't have, such as a wrong clock.

use crate::nats::Servers;
use crate::timeouts::TIMEOUT;
use cuckood::clock::Clock;
use cuckood::config::Config;
use cuckood::engine::journal::JournalOptions;
use cuckood::engine::{ClusterOptions, Engine, EngineOptions, SubmitError};
use cuckood_filter::{Digest, Growth, Mode};
use cuckood_nats::NatsOptions;
use cuckood_state::domain::{
    Applied, Command, Digests, Kind, Name, Normalization, Outcome, Settings, Sizing, Spec, Target,
    Window,
};
use std::path::Path;
use std::time::Instant;

/// The documented defaults.
pub fn config() -> Config {
    Config::load(None, [("CUCKOOD__NATS__REPLICAS", "1")]).unwrap()
}

/// How a node of this name reaches a log of one replica.
pub fn nats_options(servers: Vec<String>, stream: &str, node: &str) -> NatsOptions {
    let Config { nats, cluster, .. } = config();
    let stream = stream.to_owned();
    let node = node.to_owned();
    NatsOptions {
        servers,
        stream,
        node,
        ..nats.options(&cluster)
    }
}

/// A node by this clock.
pub async fn start(servers: &Servers, dir: &Path, name: &str, clock: Clock) -> Engine {
    let nats = nats_options(servers.urls(), "engines", name);
    start_with(dir, nats, config().cluster.options(), clock).await
}

/// A node with these options.
pub async fn start_with(
    dir: &Path,
    nats: NatsOptions,
    cluster: ClusterOptions,
    clock: Clock,
) -> Engine {
    let journal = JournalOptions::Nats(Box::new(nats));
    let path = dir.to_owned();
    let settings = Settings::default();
    let mut options = EngineOptions {
        path,
        journal,
        cluster,
        settings,
        ..config().engine_options()
    };
    (
        options.store.free_space_min_bytes,
        options.store.ballast_bytes,
    ) = (0, 0);
    options.commit_timeout = TIMEOUT;
    let engine = Engine::start(options, clock);
    engine.recovered().await;
    engine
}

pub async fn create(engine: &Engine, name: &str) -> Target {
    let mode = Mode::Strict;
    let growth = Growth::Auto;
    let sizing = Sizing::Exact;
    let spec = Spec {
        capacity: 1_000,
        mode,
        growth,
        sizing,
        normalization: Normalization::Exact,
        supply: Default::default(),
        forget: None,
    };
    let creation = cuckood::engine::creation(
        Kind::Coupon,
        Name::new(name).unwrap(),
        spec,
        Window::default(),
        Default::default(),
    )
    .unwrap();
    let Command::Create { id, .. } = creation else {
        unreachable!()
    };
    assert!(matches!(
        engine.submit(None, creation, None).await.unwrap().outcome,
        Outcome::Created(_)
    ));
    Target(id)
}

pub async fn insert(engine: &Engine, target: Target, item: u64) -> Result<Applied, SubmitError> {
    let digests = Digests(vec![Digest(item << 40)]);
    engine
        .submit(
            None,
            Command::Insert {
                target,
                digests,
                if_absent: false,
                revive: false,
            },
            None,
        )
        .await
}

pub async fn until(mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(
            began.elapsed() < TIMEOUT,
            "what is waited for does not come"
        );
        tokio::task::yield_now().await;
    }
}
