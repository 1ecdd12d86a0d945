//! Engines over one log, as the nodes of a cluster: each applies the log's entries, whichever node proposed them; a proposal may be
//! committed late, or never be answered.

use crate::engines;
use crate::manual_time::ManualTime;
use cuckood::clock::{Clock, ClockLimits};
use cuckood::engine::{Engine, EngineOptions, EngineStatus, EventsError, SubmitError};
use cuckood_log::testing::memory_log::MemoryLog;
use cuckood_log::testing::stores::TIMEOUT;
use cuckood_state::domain::{Applied, Command, Forget, Kind, Outcome, Seq, Target, Timestamp};
use cuckood_state::testing::commands::{NewFilter, code, insert, name_of, target};
use futures_util::future::join_all;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tempfile::TempDir;

const SHOP: Target = target(1);

struct Node {
    engine: Engine,
    directory: TempDir,
}

impl Node {
    async fn start(log: &MemoryLog) -> Node {
        Node::with(log, |_| ()).await
    }

    async fn with(log: &MemoryLog, adjust: impl FnOnce(&mut EngineOptions)) -> Node {
        Node::by(Clock::system(ClockLimits::default()), log, adjust).await
    }

    async fn by(clock: Clock, log: &MemoryLog, adjust: impl FnOnce(&mut EngineOptions)) -> Node {
        Node::over(tempfile::tempdir().unwrap(), clock, log, adjust).await
    }

    async fn over(
        directory: TempDir,
        clock: Clock,
        log: &MemoryLog,
        adjust: impl FnOnce(&mut EngineOptions),
    ) -> Node {
        let mut options = engines::options(directory.path());
        options.journal = crate::engines::on_log(log);
        adjust(&mut options);
        Node {
            engine: engines::start_by(clock, options).await,
            directory,
        }
    }

    async fn create(&self, target: Target) {
        engines::create(&self.engine, target, &NewFilter::coupon(1_000)).await;
    }

    async fn submit(&self, command: Command) -> Result<Applied, SubmitError> {
        self.engine.submit(None, command, None).await
    }

    /// Waits until this node has applied everything up to a position.
    async fn caught_up(&self, seq: Seq) {
        while self.engine.info().last_seq < seq {
            tokio::task::yield_now().await;
        }
    }

    /// How many items of a filter are there, and which of these.
    fn holds(&self, target: Target, items: std::ops::Range<u64>) -> Vec<u64> {
        let view = self
            .engine
            .view()
            .find(Kind::Coupon, &name_of(target))
            .unwrap();
        let now = self.engine.now();
        items
            .filter(|&item| view.contains(code(item), now))
            .collect()
    }
}

#[tokio::test]
async fn passive_node_applies_and_snapshots() {
    let log = MemoryLog::new();
    let writing = Node::start(&log).await;
    let reading = {
        Node::with(&log, |options| {
            (
                options.snapshots.log_bytes_min,
                options.snapshots.log_bytes_max,
            ) = (4_096, 4_096);
        })
        .await
    };
    writing.create(SHOP).await;
    for batch in 0..40 {
        writing
            .submit(insert(SHOP, batch * 100..batch * 100 + 100))
            .await
            .unwrap();
    }
    reading.caught_up(writing.engine.info().last_seq).await;
    assert_eq!(
        reading.holds(SHOP, 0..4_100),
        (0..4_000).collect::<Vec<_>>()
    );
    while reading.engine.info().snapshot.is_none() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn concurrent_writers_converge() {
    let log = MemoryLog::new();
    let nodes = [Node::start(&log).await, Node::start(&log).await];
    nodes[0].create(SHOP).await;
    nodes[1].caught_up(nodes[0].engine.info().last_seq).await;
    let writes = (0..200u64).map(|number| {
        let at = number * 10;
        nodes[number as usize % 2].submit(insert(SHOP, at..at + 10))
    });
    for applied in join_all(writes).await {
        applied.unwrap();
    }
    let last = nodes[0]
        .engine
        .info()
        .last_seq
        .max(nodes[1].engine.info().last_seq);
    for node in &nodes {
        node.caught_up(last).await;
        assert_eq!(node.holds(SHOP, 0..2_100), (0..2_000).collect::<Vec<_>>());
    }
    // Discarded tables of a node count until they are freed.
    let accounts = || {
        nodes
            .each_ref()
            .map(|node| node.engine.info())
            .map(|info| (info.tables_bytes, info.records_bytes))
    };
    let equal = async {
        while accounts()[0] != accounts()[1] {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, equal)
        .await
        .unwrap_or_else(|_| panic!("{:?}", accounts()));
}

/// The memory of a command may depend on one that is proposed and not committed: it waits for that, and later commands wait for it.
#[tokio::test]
async fn dependent_command_waits_for_late_one() {
    let log = MemoryLog::new();
    let node = Node::start(&log).await;
    let other = Node::start(&log).await;
    let before = target(2);
    node.create(before).await;
    other.caught_up(node.engine.info().last_seq).await;
    log.hold();
    let writes = async {
        tokio::join!(
            node.submit(NewFilter::coupon(1_000).create(SHOP)),
            node.submit(insert(SHOP, 0..100)),
            node.submit(insert(before, 0..100)),
            node.submit(insert(SHOP, 100..3_000)),
            // Committed in between.
            other.submit(insert(before, 100..200)),
        )
    };
    let release = async {
        while log.held() < 2 {
            tokio::task::yield_now().await;
        }
        log.go_on();
    };
    let ((created, first, second, third, others), ()) = tokio::join!(writes, release);
    assert!(matches!(created.unwrap().outcome, Outcome::Created(_)));
    for applied in [first, second, third, others] {
        assert!(matches!(applied.unwrap().outcome, Outcome::Inserted(_)));
    }
    assert_eq!(node.holds(SHOP, 0..3_100).len(), 3_000);
    assert_eq!(node.holds(before, 0..300).len(), 200);
}

/// The memory of a command depends on the state and on the entries to be applied. While a part of them is applied, neither is known.
#[tokio::test]
async fn partly_applied_proposal_blocks_next() {
    let log = MemoryLog::new();
    let node = Node::start(&log).await;
    node.create(SHOP).await;
    log.hold();
    let first = node.submit(insert(SHOP, 0..10));
    let second = node.submit(insert(SHOP, 10..20));
    let others = async {
        while log.held() < 2 {
            tokio::task::yield_now().await;
        }
        log.commit_first(1);
        while node.holds(SHOP, 0..20).is_empty() {
            tokio::task::yield_now().await;
        }
        let third = node.submit(insert(SHOP, 20..30));
        let snapshot = async {
            // The writer takes it up after the third, and has checked that before it ends.
            node.engine.snapshot().await.unwrap();
            assert_eq!((log.held(), node.holds(SHOP, 0..40).len()), (1, 10));
            log.go_on();
        };
        tokio::join!(third, snapshot).0
    };
    let (first, second, third) = tokio::join!(first, second, others);
    for applied in [first, second, third] {
        applied.unwrap();
    }
    assert_eq!(node.holds(SHOP, 0..40).len(), 30);
}

#[tokio::test]
async fn overdue_proposal_has_unknown_outcome() {
    let log = MemoryLog::new();
    let node = Node::with(&log, |options| options.commit_timeout = Duration::ZERO).await;
    node.create(SHOP).await;
    log.hold();
    assert_eq!(
        node.submit(insert(SHOP, 0..10)).await,
        Err(SubmitError::StorageFailed)
    );
    assert_eq!(node.engine.status(), EngineStatus::Ready);
    assert!(node.holds(SHOP, 0..20).is_empty());
    // Committed late it is applied all the same, and nothing else is disturbed.
    log.go_on();
    node.submit(insert(SHOP, 10..20)).await.unwrap();
    assert_eq!(node.holds(SHOP, 0..30), (0..20).collect::<Vec<_>>());
}

/// Otherwise a log that never answers would take any number of commands.
#[tokio::test]
async fn overdue_commands_keep_queue_permits() {
    let log = MemoryLog::new();
    let node = Node::with(&log, |options| {
        options.commit_timeout = Duration::ZERO;
        options.queue_bytes_max = 4 * 256;
    })
    .await;
    node.create(SHOP).await;
    log.hold();
    for item in 0..4 {
        assert_eq!(
            node.submit(insert(SHOP, item..item + 1)).await,
            Err(SubmitError::StorageFailed)
        );
    }
    assert_eq!(
        node.submit(insert(SHOP, 4..5)).await,
        Err(SubmitError::Overloaded)
    );
    log.go_on();
    while node.holds(SHOP, 0..5).len() < 4 {
        tokio::task::yield_now().await;
    }
    // Readers see them before their shares are free.
    let applied = loop {
        match node.submit(insert(SHOP, 5..6)).await {
            Err(SubmitError::Overloaded) => tokio::task::yield_now().await,
            applied => break applied,
        }
    };
    applied.unwrap();
    assert_eq!(node.holds(SHOP, 0..10), [0, 1, 2, 3, 5]);
}

/// A snapshot is idle work, and so are the removals before it.
#[tokio::test]
async fn snapshot_completes_during_steady_barriers() {
    let log = MemoryLog::new();
    let node = Node::start(&log).await;
    node.create(SHOP).await;
    let engine = node.engine.clone();
    let is_over = Arc::new(AtomicBool::new(false));
    let barriers = {
        let is_over = is_over.clone();
        async move {
            while !is_over.load(Ordering::Relaxed) {
                engine.barrier().await.unwrap();
            }
        }
    };
    let snapshots = async {
        for item in 0..3 {
            node.submit(insert(SHOP, item..item + 1)).await.unwrap();
            let report = tokio::time::timeout(TIMEOUT, node.engine.snapshot()).await;
            assert_eq!(report.unwrap().unwrap().seq, node.engine.info().last_seq);
        }
        is_over.store(true, Ordering::Relaxed);
    };
    tokio::join!(barriers, snapshots);
}

#[tokio::test]
async fn shutdown_waits_for_proposals() {
    let log = MemoryLog::new();
    let node = Node::start(&log).await;
    node.create(SHOP).await;
    log.hold();
    let write = node.submit(insert(SHOP, 0..10));
    let end = async {
        while log.held() == 0 {
            tokio::task::yield_now().await;
        }
        let shutdown = node.engine.shutdown();
        let go_on = async { log.go_on() };
        tokio::join!(shutdown, go_on);
    };
    let (applied, ()) = tokio::join!(write, end);
    applied.unwrap();
    assert_eq!(node.holds(SHOP, 0..20).len(), 10);
}

/// A node with a full disk takes no writes, but other nodes' writes make events there as well.
#[tokio::test]
async fn full_disk_drops_oldest_events() {
    let log = MemoryLog::new();
    let time = Arc::new(ManualTime::at(Timestamp(1_800_000_000_000)));
    let clock = || time.clock(ClockLimits::default());
    let node = Node::by(clock(), &log, |_| ()).await;
    let Node { engine, directory } = Node::by(clock(), &log, |_| ()).await;
    engine.shutdown().await;
    let is_full = |options: &mut EngineOptions| options.store.free_space_min_bytes = u64::MAX >> 1;
    let full = Node::over(directory, clock(), &log, is_full).await;
    for day in 1..=12 {
        node.create(target(day)).await;
        time.pass(Duration::from_secs(86_400));
    }
    full.caught_up(node.engine.info().last_seq).await;
    assert!(node.engine.info().events.kept > 10);
    let makes_room = async {
        while full.engine.info().events.kept > 2 {
            full.engine.barrier().await.unwrap();
        }
    };
    tokio::time::timeout(TIMEOUT, makes_room).await.unwrap();
    let mut reader = full.engine.events_after(None);
    let mut last = 0;
    while last < 12 {
        last = reader.read().await.unwrap().last().unwrap().number;
    }
    assert_eq!(
        full.engine.events_after(Some(1)).read().await,
        Err(EventsError::Gone)
    );
}

/// Each node's readers use its own clock. The nodes' states follow the log, so they are equal.
#[tokio::test]
async fn nodes_forget_identically() {
    let log = MemoryLog::new();
    let times =
        [1_000_000_000, 1_000_002_000].map(|wall| Arc::new(ManualTime::at(Timestamp(wall))));
    let clock = |time: &Arc<ManualTime>| time.clock(ClockLimits::default());
    let nodes = [
        Node::by(clock(&times[0]), &log, |_| ()).await,
        Node::by(clock(&times[1]), &log, |_| ()).await,
    ];
    let campaign = NewFilter {
        forget: Some(Forget::new(60, 4).unwrap()),
        ..NewFilter::campaign(1_000, 0.000_001)
    };
    engines::create(&nodes[0].engine, SHOP, &campaign).await;
    let name = name_of(SHOP);
    let description = |node: &Node| {
        let view = node.engine.view().find(Kind::Campaign, &name).unwrap();
        view.describe(Timestamp(1_000_122_000))
    };
    for round in 0..12 {
        for (node, at) in nodes.iter().zip([round * 1_000, round * 1_000 + 500]) {
            node.caught_up(
                nodes[0]
                    .engine
                    .info()
                    .last_seq
                    .max(nodes[1].engine.info().last_seq),
            )
            .await;
            node.submit(insert(SHOP, at..at + 500)).await.unwrap();
        }
        times
            .iter()
            .for_each(|time| time.pass(Duration::from_secs(10)));
    }
    let last = nodes[0]
        .engine
        .info()
        .last_seq
        .max(nodes[1].engine.info().last_seq);
    for node in &nodes {
        node.caught_up(last).await;
    }
    let reported = nodes.each_ref().map(|node| description(node).stats);
    assert_eq!(
        (reported[0].items, &reported[0].steps),
        (reported[1].items, &reported[1].steps)
    );
    assert!(
        (5_000..=7_000).contains(&reported[0].items),
        "{}",
        reported[0].items
    );
    // No more writes, and readers have forgotten everything.
    times
        .iter()
        .for_each(|time| time.pass(Duration::from_secs(76)));
    for node in &nodes {
        let view = node.engine.view().find(Kind::Campaign, &name).unwrap();
        let now = node.engine.now();
        assert!((0..12_000).all(|item| !view.contains(code(item), now)));
        assert_eq!(view.describe(now).stats.items, 0);
    }
}
