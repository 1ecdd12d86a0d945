//! A node whose clock is off by a minute writes nothing; the others continue, and it reads their writes.

use crate::engines::{create, insert, start, until};
use crate::nats::Servers;
use cuckood::clock::{Clock, ClockLimits, system_reading};
use cuckood::engine::SubmitError;
use cuckood_filter::Digest;
use cuckood_state::domain::{ClockReading, Kind, Name, Timestamp};

const MINUTE: u64 = 60_000;

/// The system's clocks, with the wall clock off by this many milliseconds.
fn off_by(milliseconds: i64) -> Clock {
    let reading = move || {
        let ClockReading { wall, uptime } = system_reading();
        ClockReading {
            wall: Timestamp(wall.0.saturating_add_signed(milliseconds)),
            uptime,
        }
    };
    Clock::new(reading, ClockLimits::default())
}

#[tokio::test]
async fn node_with_wrong_clock_writes_nothing() {
    let servers = Servers::start(1);
    let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let right = start(&servers, dirs[0].path(), "right", off_by(0)).await;
    let target = create(&right, "shop").await;
    for (name, off, dir) in [
        ("ahead", MINUTE as i64, &dirs[1]),
        ("behind", -(MINUTE as i64), &dirs[2]),
    ] {
        let wrong = start(&servers, dir.path(), name, off_by(off)).await;
        let refused = insert(&wrong, target, 1).await;
        assert!(
            matches!(refused, Err(SubmitError::ClockUnsure(_))),
            "{name}: {refused:?}"
        );
        assert!(
            matches!(wrong.writes_refused(), Some(SubmitError::ClockUnsure(_))),
            "{name}"
        );
        insert(&right, target, off.unsigned_abs() + u64::from(off > 0))
            .await
            .unwrap();
        until(|| wrong.position() >= right.position()).await;
        let view = wrong
            .view()
            .find(Kind::Coupon, &Name::new("shop").unwrap())
            .unwrap();
        assert!(view.contains(
            Digest((off.unsigned_abs() + u64::from(off > 0)) << 40),
            wrong.now()
        ));
        wrong.shutdown().await;
    }
    // It has not changed the log's time.
    until(|| right.writes_refused().is_none()).await;
    insert(&right, target, 7).await.unwrap();
}
