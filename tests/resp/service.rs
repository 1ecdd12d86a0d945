//! A service for Redis clients on a free port, in a separate runtime.

use crate::engines;
use crate::manual_time::ManualTime;
use crate::redis_client::Connection;
use cuckood::access::{Access, AuthOptions, GuessingOptions, KeyOptions, RateLimitOptions, Scope};
use cuckood::budget::Budget;
use cuckood::clock::ClockLimits;
use cuckood::engine::journal::JournalOptions;
use cuckood::engine::{BackupDownload, Engine, EngineStatus, SubmitError};
use cuckood::resp::{self, RespOptions};
use cuckood::socket::{Phase, Socket, Vitals};
use cuckood_log::journal::Durability;
use cuckood_log::journal::LocalOptions;
use cuckood_log::testing::memory_log::MemoryLog;
use cuckood_state::FilterView;
use cuckood_state::domain::{Applied, Command, FilterId, Kind, Name, Timestamp};
use prometheus_client::registry::Registry;
use sha2::{Digest as _, Sha256};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

/// How long anything may take before it counts as never.
const TIMEOUT: Duration = Duration::from_secs(120);

/// When every test begins.
const BEGIN: Timestamp = Timestamp(1_795_262_400_000);

/// How the service is set up.
#[derive(Default)]
pub struct Setup {
    pub auth: AuthOptions,
    pub rate_limit: RateLimitOptions,
    pub guessing: GuessingOptions,
    pub resp: RespOptions,
    /// A log in memory, which can be held; otherwise it is on the disk.
    pub log: Option<MemoryLog>,
}

/// A running service.
pub struct Service {
    pub access: Arc<Access>,
    pub engine: Engine,
    pub time: Arc<ManualTime>,
    pub resp: resp::Service,
    address: SocketAddr,
    draining: watch::Sender<bool>,
    registry: Registry,
    runtime: Option<Runtime>,
    _directory: TempDir,
}

/// A key whose text is its name.
pub fn key(name: &str, scopes: &[Scope], prefix: &str) -> KeyOptions {
    let sha256 = Sha256::digest(name)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    KeyOptions {
        name: name.into(),
        sha256,
        scopes: scopes.to_vec(),
        prefix: prefix.into(),
        expires_at: None,
    }
}

impl Service {
    pub fn start() -> Service {
        Self::with(Setup::default())
    }

    pub fn with(setup: Setup) -> Service {
        let directory = tempfile::tempdir().unwrap();
        let local = LocalOptions::at(Durability::Relaxed);
        let mut options = engines::options(directory.path());
        options.store.sync_snapshots = false;
        options.journal = setup.log.map_or(JournalOptions::Local(local), |log| {
            crate::engines::on_log(&log)
        });
        let time = Arc::new(ManualTime::at(BEGIN));
        let engine = Engine::start(options, time.clock(ClockLimits::default()));
        let access = Access::new(&setup.auth, &setup.rate_limit, &setup.guessing).unwrap();
        let access = Arc::new(access);
        let resp = resp::Service::new(engine.clone(), access.clone(), setup.resp);
        let mut registry = Registry::with_prefix("cuckood");
        resp.register(&mut registry);
        let draining = watch::Sender::new(false);
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(async {
            assert_eq!(engine.recovered().await, EngineStatus::Ready);
            TcpListener::bind("127.0.0.1:0").await.unwrap()
        });
        let address = listener.local_addr().unwrap();
        runtime.spawn(accept(listener, resp.clone(), draining.clone()));
        let runtime = Some(runtime);
        Service {
            access,
            engine,
            time,
            resp,
            address,
            draining,
            registry,
            runtime,
            _directory: directory,
        }
    }

    pub fn connect(&self) -> Connection {
        Connection::to(self.address)
    }

    /// Makes all connections end once received commands are answered.
    pub fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// Submits a command as another protocol would.
    pub fn submit(&self, command: Command) -> Applied {
        let runtime = self.runtime.as_ref().unwrap();
        runtime
            .block_on(async { self.engine.submit(None, command, None).await })
            .unwrap()
    }

    /// Starts to read a filter's image, as another protocol would.
    pub fn download(&self, filter: FilterId) -> Result<Option<BackupDownload>, SubmitError> {
        let runtime = self.runtime.as_ref().unwrap();
        runtime.block_on(self.engine.image(filter))
    }

    pub fn view(&self, kind: Kind, name: &str) -> Arc<FilterView> {
        self.engine
            .view()
            .find(kind, &Name::new(name).unwrap())
            .unwrap()
    }

    /// The samples of the service's metrics with this prefix.
    pub fn metrics(&self, prefix: &str) -> Vec<String> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode_registry(&mut text, &self.registry).unwrap();
        text.lines()
            .filter(|line| line.starts_with(prefix))
            .map(str::to_owned)
            .collect()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.block_on(self.engine.shutdown());
            runtime.shutdown_background();
        }
    }
}

/// Waits until something is so.
#[track_caller]
pub fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::yield_now();
    }
}

async fn accept(listener: TcpListener, resp: resp::Service, draining: watch::Sender<bool>) {
    while let Ok((stream, peer)) = listener.accept().await {
        let resp = resp.clone();
        let vitals = Arc::<Vitals>::default();
        let ordered = vitals.clone();
        let mut draining = draining.subscribe();
        tokio::spawn(async move {
            if draining.wait_for(|is_draining| *is_draining).await.is_ok() {
                ordered.drain();
            }
        });
        tokio::spawn(async move {
            // A connection may break as it likes.
            vitals.enter(Phase::New);
            let stream = socket(stream, vitals.clone());
            let _ = resp.serve(stream, Some(peer), &vitals).await;
        });
    }
}

/// Wraps a stream as the server does, so that the last reply is not lost.
pub fn socket<S>(stream: S, vitals: Arc<Vitals>) -> Socket<S> {
    let heads = Arc::new(Budget::new(0));
    Socket::new(stream, vitals, heads, false)
}
