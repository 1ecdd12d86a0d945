//! The same load for a long time over one data directory, with lives of all lengths: it is killed or ended, verified,
//! backed up and restored, and what it takes of the machine stays within bounds.
//!
//! `SOAK_MINUTES` says how long (60 if it is unset), `SOAK_SEED` repeats a run's choices.

use crate::random::Random;
use crate::resources::Resources;
use crate::service::Service;
use crate::world::{End, World, back_up, number};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// The longest life of the service. Any order of magnitude below is as likely as another.
const LIFE_MAX: Duration = Duration::from_secs(240);
const LIFE_HALVINGS: u64 = 12;

/// Between two looks at what the service takes, and between two lines about the progress.
const LOOK_EVERY: Duration = Duration::from_secs(5);
const TELL_EVERY: Duration = Duration::from_secs(60);

/// One life in so many ends by itself, is followed by `cuckood verify`, or has a backup taken while it lasts or after it.
const ENDED: u64 = 8;
const VERIFIED: u64 = 6;
const BACKED_UP: u64 = 10;

/// After so many lives the clients begin anew with the filters that they share, which would grow for ever.
const RENEWED: u64 = 40;

#[test]
#[ignore = "takes an hour: make test-long WHAT=soak"]
fn everything_holds_for_a_long_time() {
    let minutes = number("SOAK_MINUTES").unwrap_or(60);
    let seed = number("SOAK_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    eprintln!("SOAK_MINUTES={minutes} SOAK_SEED={seed}");
    let mut random = Random::new(seed);
    let mut world = World::new(&mut random);
    let end = Instant::now() + Duration::from_secs(60 * minutes);
    let mut soak = Soak { end, told: Instant::now(), done: Done::default(), resources: Resources::default() };
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
    soak.tell();
    soak.resources.assert_bounded();
}

struct Soak {
    end: Instant,
    /// When the progress was last told.
    told: Instant,
    done: Done,
    resources: Resources,
}

/// What was done so far.
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
        let (is_killed, is_backed_up) = (random.below(ENDED) != 0, random.below(BACKED_UP) == 0);
        let data = world.data.clone();
        world.live(service, |service, acknowledged| {
            if is_backed_up {
                back_up(service, &archive);
            }
            self.watch(service, acknowledged, &data, end);
            if is_killed { End::Killed } else { End::Terminated }
        });
        self.done.kills += u64::from(is_killed);
        if is_backed_up {
            // Of which position it is nobody knows; that it is whole shows in its start.
            world.restore(&archive).kill();
            self.done.restored += 1;
        }
    }

    /// Counts acknowledgements until the end of this life, and looks after the service meanwhile.
    fn watch(&mut self, service: &Service, acknowledged: &Receiver<()>, data: &Path, end: Instant) {
        let mut next = Instant::now() + LOOK_EVERY;
        loop {
            match acknowledged.recv_timeout(end.min(next).saturating_duration_since(Instant::now())) {
                Ok(()) => self.done.operations += 1,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => panic!("all clients have given up"),
            }
            if Instant::now() >= next {
                next += LOOK_EVERY;
                self.resources.look(service.process(), data);
            }
            if self.told.elapsed() >= TELL_EVERY {
                self.tell();
            }
            if Instant::now() >= end {
                self.done.snapshots += service.metric("cuckood_snapshots_total");
                return;
            }
        }
    }

    fn tell(&mut self) {
        self.told += TELL_EVERY;
        eprintln!("{:?}; {}", self.done, self.resources);
    }
}
