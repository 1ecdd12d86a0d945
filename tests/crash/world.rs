//! A data directory, the service over it, and its clients, from one life of the service to the next.

use crate::check::compare_figures;
use crate::contest::Contest;
use crate::events::Events;
use crate::model::{Filter, Kind};
use crate::service::{Client, Service};
use crate::worker::Worker;
use cuckood_state::testing::random::Random;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// Connections that write at once.
const WORKERS: u64 = 8;

/// Small enough that growth, snapshots and the dropping of log segments happen all the time.
const SETTINGS: &[(&str, &str)] = &[
    ("CUCKOOD__SNAPSHOTS__LOG_MIN", "32KiB"),
    ("CUCKOOD__SNAPSHOTS__LOG_MAX", "512KiB"),
    ("CUCKOOD__STORAGE__WAL_SEGMENT", "128KiB"),
    ("CUCKOOD__IDEMPOTENCY__RETENTION", "120s"),
    ("CUCKOOD__IDEMPOTENCY__RETENTION_MIN", "120s"),
    ("CUCKOOD__SERVER__BODY_TIMEOUT", "120s"),
    ("CUCKOOD__LOG__LEVEL", "info"),
];

/// Both survive the death of the process, by different ways through the storage.
const DURABILITIES: &[&str] = &["fsync", "flush"];

pub struct World {
    directory: Option<TempDir>,
    pub data: PathBuf,
    pub durability: &'static str,
    pub workers: Vec<Worker>,
    /// Lives of the service so far.
    lives: u64,
    contest: Arc<Mutex<Contest>>,
    events: Events,
}

/// How a life of the service ends.
pub enum End {
    /// By SIGKILL, in the middle of everything.
    Killed,
    /// By SIGTERM, after the clients have stopped.
    Terminated,
}

/// The program under test: `CUCKOOD_PROGRAM`, or the one that was built with this test.
pub fn program() -> PathBuf {
    std::env::var_os("CUCKOOD_PROGRAM")
        .map_or_else(|| env!("CARGO_BIN_EXE_cuckood").into(), PathBuf::from)
}

/// A number that the environment sets.
pub fn number(variable: &str) -> Option<u64> {
    Some(std::env::var(variable).ok()?.parse().unwrap())
}

impl World {
    /// A new data directory with the filters that the clients share.
    pub fn new(random: &mut Random) -> World {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        let durability = DURABILITIES[random.below(DURABILITIES.len() as u64) as usize];
        let uses = [1, 3][random.below(2) as usize];
        let contest = Arc::new(Mutex::new(Contest::new(uses)));
        let workers = (0..WORKERS)
            .map(|n| Worker::new(n, random.next(), Arc::clone(&contest)))
            .collect();
        let world = World {
            directory: Some(directory),
            data,
            durability,
            workers,
            lives: 0,
            contest,
            events: Events::default(),
        };
        let service = world.start();
        let client = service.client();
        world.create_shared(&client);
        world.contest.lock().unwrap().create(&client);
        service.kill();
        world
    }

    /// A folder that lives as long as the world.
    pub fn directory(&self) -> &Path {
        self.directory
            .as_ref()
            .expect("it is there until the end")
            .path()
    }

    fn settings(&self) -> Vec<(&'static str, &'static str)> {
        SETTINGS
            .iter()
            .copied()
            .chain([("CUCKOOD__STORAGE__DURABILITY", self.durability)])
            .collect()
    }

    /// The service over the data directory, as soon as it listens.
    pub fn begin(&self) -> Service {
        Service::start(&program(), &self.data, &self.settings())
    }

    /// The same when it is ready.
    pub fn start(&self) -> Service {
        Service::start_ready(&program(), &self.data, &self.settings())
    }

    /// Has all clients work until `wait` says how the service ends, and ends it. `wait` hears of every acknowledgement.
    pub fn live(&mut self, service: Service, wait: impl FnOnce(&Service, &Receiver<()>) -> End) {
        self.lives += 1;
        let (acknowledged, acknowledgements) = mpsc::channel();
        let enough = AtomicBool::new(false);
        let set = || enough.store(true, Ordering::Relaxed);
        let rest = std::thread::scope(|scope| {
            for worker in &mut self.workers {
                let client = service.client().another();
                let acknowledged = acknowledged.clone();
                let enough = &enough;
                scope.spawn(move || {
                    // One that fails ends the others' work.
                    let _end = Finally(|| {
                        if std::thread::panicking() {
                            set()
                        }
                    });
                    worker.work(&client, &acknowledged, enough);
                });
            }
            // Only the workers hold it now: if all of them fail, waiting ends with an error.
            drop(acknowledged);
            let _end = Finally(set);
            match wait(&service, &acknowledgements) {
                End::Killed => {
                    service.kill();
                    None
                }
                End::Terminated => Some(service),
            }
        });
        if let Some(service) = rest {
            self.workers.iter().for_each(Worker::assert_idle);
            assert!(service.terminate().success(), "SIGTERM ends it well");
        }
    }

    /// After a restart: everything acknowledged is present, and then operations in flight are settled too.
    pub fn check(&mut self, client: &Client) {
        self.contest.lock().unwrap().verify_lost(client);
        std::thread::scope(|scope| {
            for worker in &mut self.workers {
                let client = client.another();
                scope.spawn(move || worker.settle(&client));
            }
        });
        self.contest.lock().unwrap().verify(client);
        self.check_figures(client);
        self.check_events(client);
    }

    /// Backs up a service that no client uses, and checks what its restored backup holds.
    pub fn check_backup(&mut self, service: &Service) {
        let archive = self.directory().join("backup");
        back_up(service, &archive);
        let copy = self.restore(&archive);
        let events = self.events.clone();
        self.check(&copy.client());
        copy.kill();
        // The copy's own events never happened here.
        self.events = events;
    }

    /// Nothing may be in flight.
    fn check_events(&mut self, client: &Client) {
        self.events.read(client);
        self.contest
            .lock()
            .unwrap()
            .redemptions()
            .for_each(|id| self.events.assert_redeemed(id));
        for part in self.workers.iter().flat_map(|worker| &worker.parts) {
            if let Err(difference) = self.events.compare(&part.filter) {
                panic!("{}: {difference}", part.filter.path());
            }
        }
    }

    fn check_figures(&self, client: &Client) {
        let all: Vec<&crate::worker::Part> = self
            .workers
            .iter()
            .flat_map(|worker| &worker.parts)
            .collect();
        let (shared, own): (Vec<_>, Vec<_>) = all.into_iter().partition(|part| part.is_shared);
        let of = |kind: Kind| -> Vec<&Filter> {
            shared
                .iter()
                .map(|part| &part.filter)
                .filter(|filter| filter.kind == kind)
                .collect()
        };
        let alone = own.iter().map(|part| vec![&part.filter]);
        for parts in alone.chain([of(Kind::StrictCampaign), of(Kind::CompactCampaign)]) {
            if let Err(difference) = compare_figures(&parts, client) {
                panic!("{}: {}", parts[0].path(), difference.what);
            }
        }
    }

    /// Makes the clients recreate the shared filters.
    pub fn renew_shared(&mut self, client: &Client) {
        for part in self.workers[0].parts.iter().filter(|part| part.is_shared) {
            let path = part.filter.path();
            assert_eq!(
                client.delete(&format!("{path}?force=true")).unwrap().status,
                204,
                "{path}"
            );
        }
        self.workers.iter_mut().for_each(Worker::forget_shared);
        self.create_shared(client);
        self.contest.lock().unwrap().renew(client);
    }

    fn create_shared(&self, client: &Client) {
        for part in self.workers[0].parts.iter().filter(|part| part.is_shared) {
            let answer = client
                .put(&part.filter.path(), &part.filter.spec())
                .unwrap();
            assert_eq!(answer.status, 201, "{answer:?}");
        }
    }

    /// Runs `cuckood verify` on the directory, which must not be in use.
    pub fn verify(&self) {
        run("verify", &[&self.data]);
    }

    /// Starts a service over the content of a backup. Its data is deleted with the next restore.
    pub fn restore(&self, archive: &Path) -> Service {
        let data = self.directory().join("restored");
        if data.exists() {
            std::fs::remove_dir_all(&data).unwrap();
        }
        run("restore", &[archive, &data]);
        std::fs::remove_file(archive).unwrap();
        Service::start_ready(&program(), &data, &self.settings())
    }
}

/// Backs a running service up.
pub fn back_up(service: &Service, archive: &Path) {
    let url = format!("http://{}", service.client().address());
    run("backup", &[archive, Path::new("--url"), Path::new(&url)]);
}

fn run(subcommand: &str, arguments: &[&Path]) {
    let done = Command::new(program())
        .arg(subcommand)
        .args(arguments)
        .output()
        .unwrap();
    assert!(
        done.status.success(),
        "{subcommand} {arguments:?}: {done:?}"
    );
}

/// Does something when it is dropped.
struct Finally<F: FnMut()>(F);

impl<F: FnMut()> Drop for Finally<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(directory) = self.directory.take()
        {
            let lives = self.lives;
            let directory = directory.keep();
            eprintln!(
                "after {lives} lives at {}: {} is kept",
                self.durability,
                directory.display()
            );
        }
    }
}
