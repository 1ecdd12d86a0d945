//! The same load for a long time over one data directory, with lives of all lengths: the service is killed or stopped, verified, backed up
//! and restored, and its use of the machine stays within bounds.
//!
//! `SOAK_MINUTES` says how long (60 if it is unset), `SOAK_SEED` repeats a run's choices.

use crate::resources::Resources;
use crate::service::Service;
use crate::world::{End, World, back_up, number};
use cuckood_state::testing::random::Random;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// The longest life of the service. Any order of magnitude below is as likely as another.
const LIFE_MAX: Duration = Duration::from_secs(240);
const LIFE_HALVINGS: u64 = 12;

/// Between two samples of the service's resources, and between two lines about the progress.
const LOOK_EVERY: Duration = Duration::from_secs(5);
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// One in this many lives ends with SIGTERM, is followed by `cuckood verify`, or has a backup taken during it or after it.
const ENDED: u64 = 8;
const VERIFIED: u64 = 6;
const BACKED_UP: u64 = 10;

/// Lives after which the clients recreate the shared filters, which would grow forever.
const RENEWED: u64 = 40;

#[test]
#[ignore = "takes an hour: make test-long WHAT=soak"]
fn invariants_hold_during_soak() {
    let minutes = number("SOAK_MINUTES").unwrap_or(60);
    let seed = number("SOAK_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    eprintln!("SOAK_MINUTES={minutes} SOAK_SEED={seed}");
    let mut random = Random::new(seed);
    let mut world = World::new(&mut random);
    let end = Instant::now() + Duration::from_secs(60 * minutes);
    let mut soak = Soak {
        end,
        reported: Instant::now(),
        done: Done::default(),
        resources: Resources::default(),
    };
    while Instant::now() < end {
        soak.live(&mut world, &mut random);
        if random.below(VERIFIED) == 0 {
            world.verify();
            soak.done.verified += 1;
        }
    }
    let service = world.start();
    world.check(&service.client());
    service.kill();
    world.verify();
    soak.report_progress();
    soak.resources.assert_bounded();
}

struct Soak {
    end: Instant,
    /// When the progress was last reported.
    reported: Instant,
    done: Done,
    resources: Resources,
}

/// The totals so far.
#[derive(Default, Debug)]
struct Done {
    operations: u64,
    lives: u64,
    kills: u64,
    snapshots: u64,
    verified: u64,
    restored: u64,
}

impl Soak {
    /// One life of the service.
    fn live(&mut self, world: &mut World, random: &mut Random) {
        let service = world.start();
        let client = service.client();
        world.check(&client);
        self.done.lives += 1;
        if self.done.lives.is_multiple_of(RENEWED) {
            world.renew_shared(&client);
        }
        let archive = world.directory().join("backup");
        if random.below(BACKED_UP) == 0 {
            world.check_backup(&service);
            self.done.restored += 1;
        }
        let longest = LIFE_MAX.as_millis() as u64 >> random.below(LIFE_HALVINGS);
        let end = (Instant::now() + Duration::from_millis(random.below(longest))).min(self.end);
        let is_killed = random.below(ENDED) != 0;
        let is_backed_up = random.below(BACKED_UP) == 0;
        let data = world.data.clone();
        world.live(service, |service, acknowledged| {
            if is_backed_up {
                back_up(service, &archive);
            }
            self.watch(service, acknowledged, &data, end);
            if is_killed {
                End::Killed
            } else {
                End::Terminated
            }
        });
        self.done.kills += u64::from(is_killed);
        if is_backed_up {
            // Its position is unknown; starting proves that it is complete.
            world.restore(&archive).kill();
            self.done.restored += 1;
        }
    }

    /// Counts acknowledgements until the end of this life, and samples the service during it.
    fn watch(&mut self, service: &Service, acknowledged: &Receiver<()>, data: &Path, end: Instant) {
        let mut next = Instant::now() + LOOK_EVERY;
        loop {
            match acknowledged.recv_timeout(end.min(next).saturating_duration_since(Instant::now()))
            {
                Ok(()) => self.done.operations += 1,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => panic!("all clients have given up"),
            }
            if Instant::now() >= next {
                next += LOOK_EVERY;
                self.resources.look(service.process(), data);
            }
            if self.reported.elapsed() >= REPORT_EVERY {
                self.report_progress();
            }
            if Instant::now() >= end {
                self.done.snapshots += service.metric("cuckood_snapshots_total");
                return;
            }
        }
    }

    fn report_progress(&mut self) {
        self.reported += REPORT_EVERY;
        eprintln!("{:?}; {}", self.done, self.resources);
    }
}
