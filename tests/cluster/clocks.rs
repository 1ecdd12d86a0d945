//! A node whose clock is off by a minute writes nothing; the others go on, and it reads what they write.

use crate::engines::{create, insert, start, until};
use crate::nats::Servers;
use cuckood::clock::{Clock, ClockLimits, system_reading};
use cuckood::domain::{ClockReading, Kind, Name, Timestamp};
use cuckood::engine::{Digest, SubmitError};

const MINUTE: u64 = 60_000;

/// The system's clocks, of which that of the day is off by so many milliseconds.
fn off_by(milliseconds: i64) -> Clock {
    let reading = move || {
        let ClockReading { wall, uptime } = system_reading();
        ClockReading { wall: Timestamp(wall.0.saturating_add_signed(milliseconds)), uptime }
    };
    Clock::new(reading, ClockLimits::default())
}

#[tokio::test]
async fn a_node_whose_clock_is_off_by_a_minute_writes_nothing_and_the_others_go_on() {
    let servers = Servers::start(1);
    let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let right = start(&servers, dirs[0].path(), "right", off_by(0), 1).await;
    let target = create(&right, "shop").await;
    for (name, off, dir) in [("ahead", MINUTE as i64, &dirs[1]), ("behind", -(MINUTE as i64), &dirs[2])] {
        let wrong = start(&servers, dir.path(), name, off_by(off), 1).await;
        let refused = insert(&wrong, target, 1).await;
        assert!(matches!(refused, Err(SubmitError::ClockUnsure(_))), "{name}: {refused:?}");
        assert!(matches!(wrong.writes_refused(), Some(SubmitError::ClockUnsure(_))), "{name}");
        insert(&right, target, off.unsigned_abs() + u64::from(off > 0)).await.unwrap();
        until(|| wrong.position() >= right.position()).await;
        let view = wrong.view().find(Kind::Coupon, &Name::new("shop").unwrap()).unwrap();
        assert!(view.contains(Digest((off.unsigned_abs() + u64::from(off > 0)) << 40), wrong.now()));
        wrong.shutdown().await;
    }
    // It has moved nobody's time.
    until(|| right.writes_refused().is_none()).await;
    insert(&right, target, 7).await.unwrap();
}
