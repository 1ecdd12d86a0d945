//! Builds that understand different entries share a log. Each reports its version, and one that is too old stops in time.

use crate::engines::{create, insert, start, until};
use crate::nats::Servers;
use cuckood::clock::{Clock, ClockLimits};
use cuckood::domain::Command;
use cuckood::engine::Status;
use tempfile::TempDir;

fn clock() -> Clock {
    Clock::system(ClockLimits::default())
}

#[tokio::test]
async fn old_build_stops_where_newer_entries_are_enabled() {
    let servers = Servers::start(1);
    let dirs: [TempDir; 3] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let old = start(&servers, dirs[0].path(), "a", clock(), 1).await;
    let target = create(&old, "shop").await;
    let new = start(&servers, dirs[1].path(), "b", clock(), 2).await;
    assert_eq!(new.status(), Status::Ready);

    // Both write, in any order, while they know of each other.
    until(|| new.replication().unwrap().peers.iter().any(|peer| peer.understands == Some(1))).await;
    until(|| old.replication().unwrap().peers.iter().any(|peer| peer.understands == Some(2))).await;
    for item in 0..20 {
        insert(if item % 2 == 0 { &new } else { &old }, target, item).await.unwrap();
    }
    until(|| new.position() >= old.position()).await;
    assert_eq!((new.info().format, old.info().format), (1, 1));

    // The old one is replaced, and newer entries are enabled.
    old.shutdown().await;
    let renewed = start(&servers, dirs[0].path(), "a", clock(), 2).await;
    renewed.submit(Command::Enable { version: 2 }, None).await.unwrap();
    for engine in [&new, &renewed] {
        until(|| engine.info().format == 2).await;
    }
    insert(&renewed, target, 100).await.unwrap();
    until(|| new.position() >= renewed.position()).await;

    // One that is too late reports it. It has applied the entries it understands, and no later ones.
    let late = start(&servers, dirs[2].path(), "c", clock(), 1).await;
    let Status::Failed(why) = late.status() else { panic!("{:?}", late.status()) };
    assert!(why.contains("update this node"), "{why}");
    // It is stored that way: a restart learns it from the snapshot.
    renewed.shutdown().await;
    let again = start(&servers, dirs[0].path(), "a", clock(), 1).await;
    let Status::Failed(why) = again.status() else { panic!("{:?}", again.status()) };
    assert!(why.contains("version 2"), "{why}");
    assert_eq!(new.status(), Status::Ready);
}
