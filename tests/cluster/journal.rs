//! The journal over real servers: it conforms as the others do, and commits everything once whatever the servers do.

use crate::engines::nats_options;
use crate::nats::Servers;
use crate::proxy::Network;
use crate::raw::{self, Raw};
use crate::timeouts::wait_until;
use cuckood::engine::journal::JournalOptions;
use cuckood_log::journal::{
    Committed, Delivery, Durability, Journal, JournalError, LocalJournal, LocalOptions, Ticket,
};
use cuckood_log::store::{Store, StoreOptions};
use cuckood_log::testing::stores::{append, entries, options, poll, proposal};
use cuckood_nats::{NatsJournal, NatsOptions};
use cuckood_state::domain::{Entry, Seq, Timestamp};
use cuckood_state::frame::FrameFormat;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longer than a node waits for an acknowledgement.
const ACKNOWLEDGED_LATE: Duration = Duration::from_secs(4);

/// Longer than a server may acknowledge nothing.
const SERVER_REPLACED_LATE: Duration = Duration::from_secs(9);

/// A node without anything above its journal.
pub struct Node {
    journal: Option<NatsJournal>,
    store: Option<Arc<Store>>,
    options: NatsOptions,
    /// Disk space that must stay free.
    free_bytes_min: u64,
    barriers: u64,
    dir: TempDir,
}

impl Node {
    pub fn join(servers: &Servers, stream: &str, name: &str) -> Node {
        Node::join_with(nats_options(servers.urls(), stream, name))
    }

    pub fn join_with(options: NatsOptions) -> Node {
        let dir = tempfile::tempdir().unwrap();
        let mut node = Node {
            journal: None,
            store: None,
            options,
            free_bytes_min: 0,
            barriers: 0,
            dir,
        };
        node.open().unwrap();
        node
    }

    fn open(&mut self) -> Result<(), JournalError> {
        (self.journal, self.store) = (None, None);
        let options = StoreOptions {
            free_space_min_bytes: self.free_bytes_min,
            ..options(Durability::Fsync)
        };
        let store = Arc::new(Store::open(self.dir.path(), &options).unwrap());
        self.journal = Some(NatsJournal::open(store.clone(), &self.options)?);
        self.store = Some(store);
        Ok(())
    }

    /// Waits for this many entries.
    fn polled(&mut self, count: usize) -> Result<Vec<Committed>, JournalError> {
        let last = self.journal().last();
        poll(self.journal(), last, count)
    }

    /// Takes entries until a barrier that is asked for now is passed.
    fn pass_barrier(&mut self) {
        self.barriers += 1;
        let barrier = Ticket(self.barriers);
        self.journal().barrier(barrier);
        wait_until("the barrier", || self.take_all() >= Some(barrier));
    }

    /// Takes all that is delivered. Returns the last barrier among it.
    pub fn take_all(&mut self) -> Option<Ticket> {
        self.take_into(&mut Vec::new())
    }

    /// The same, and keeps the entries.
    fn take_into(&mut self, entries: &mut Vec<Committed>) -> Option<Ticket> {
        let mut context = Context::from_waker(Waker::noop());
        let mut passed = None;
        loop {
            let after = self.journal().last();
            match self
                .journal()
                .poll(after, Instant::now(), &mut context)
                .map(Result::unwrap)
            {
                Poll::Ready(Delivery::Passed(barrier)) => passed = Some(barrier),
                Poll::Ready(Delivery::Entries(more)) => entries.extend(more),
                Poll::Ready(Delivery::Current) => {}
                Poll::Pending => return passed,
            }
        }
    }

    /// Stores an empty snapshot after the last delivery.
    fn take_snapshot(&mut self) {
        let place = self.journal().place();
        self.take_snapshot_at(place);
    }

    /// The same, with this place in the log.
    fn take_snapshot_at(&mut self, place: Vec<u8>) {
        let seq = self.journal().last();
        let store = self.store.clone().unwrap();
        let mut writer = store.begin_snapshot(seq).unwrap();
        writer.place = place;
        writer.finish(&store, Timestamp(1), Vec::new()).unwrap();
    }

    pub fn journal(&mut self) -> &mut NatsJournal {
        self.journal.as_mut().unwrap()
    }
}

fn numbers(entries: &[Entry]) -> Vec<u64> {
    entries.iter().map(|entry| entry.proposal.at.0).collect()
}

#[test]
fn entries_are_committed_in_order() {
    let servers = Servers::start(1);
    let mut node = Node::join(&servers, "order", "node");
    assert_eq!(node.journal().last(), Seq(0));
    assert!(entries(node.journal(), 0).unwrap().is_empty());
    assert!(append(node.journal(), Vec::new()).unwrap().is_empty());
    let mut given = Vec::new();
    for batch in 0..20u64 {
        let batch: Vec<_> = (0..batch % 5 + 1)
            .map(|at| proposal(batch * 10 + at, at * 3))
            .collect();
        for (index, committed) in append(node.journal(), batch.clone())
            .unwrap()
            .into_iter()
            .enumerate()
        {
            assert_eq!(committed.ticket, Some(Ticket(1_000 + index as u64)));
            assert_eq!(committed.entry.proposal, batch[index]);
            given.push(committed.entry);
        }
    }
    // Too much for one message.
    let large = (0..12).map(|number| proposal(number, 10_000)).collect();
    given.extend(
        append(node.journal(), large)
            .unwrap()
            .into_iter()
            .map(|committed| committed.entry),
    );
    assert!(
        given
            .iter()
            .zip(1..)
            .all(|(entry, seq)| entry.seq == Seq(seq))
    );
    assert_eq!(
        entries(Node::join(&servers, "order", "other").journal(), 0).unwrap(),
        given
    );
}

#[test]
fn nodes_see_own_tickets_and_all_entries() {
    let servers = Servers::start(1);
    let mut ours = Node::join(&servers, "shared", "ours");
    let mut theirs = Node::join(&servers, "shared", "theirs");
    append(ours.journal(), vec![proposal(1, 1), proposal(2, 2)]).unwrap();
    let seen = theirs.polled(2).unwrap();
    assert!(seen.iter().all(|committed| committed.ticket.is_none()));
    append(theirs.journal(), vec![proposal(3, 3)]).unwrap();
    let seen = ours.polled(1).unwrap();
    assert_eq!((seen[0].entry.seq, seen[0].ticket), (Seq(3), None));
    let known = ours.journal().replication().unwrap().lock().clone();
    assert_eq!(
        known
            .peers
            .iter()
            .map(|peer| peer.node.as_str())
            .collect::<Vec<_>>(),
        ["theirs"]
    );
}

/// A restart continues after its snapshot, even if the earlier log is gone; without a snapshot it can't.
#[test]
fn restart_continues_after_snapshot() {
    let servers = Servers::start(1);
    let mut node = Node::join(&servers, "restarts", "node");
    let mut other = Node::join(&servers, "restarts", "other");
    for number in 0..30 {
        append(node.journal(), vec![proposal(number, 10)]).unwrap();
    }
    node.take_snapshot();
    servers.speak(async |context| {
        context
            .get_stream("restarts")
            .await
            .unwrap()
            .purge()
            .sequence(20)
            .await
            .unwrap();
    });
    for number in 30..50 {
        append(node.journal(), vec![proposal(number, 10)]).unwrap();
    }
    node.open().unwrap();
    assert_eq!(
        numbers(&entries(node.journal(), 30).unwrap()),
        (30..50).collect::<Vec<_>>()
    );
    let committed = append(node.journal(), vec![proposal(50, 1)]).unwrap();
    assert_eq!(committed[0].entry.seq, Seq(51));
    let refused = other.open().unwrap_err();
    assert!(matches!(&refused, JournalError::Trimmed(_)), "{refused}");
}

/// Such a directory seems to end before the trimmed log, and would be cleared for a shared snapshot.
#[test]
fn place_of_other_format_stops_node_after_trimming() {
    let servers = Servers::start(1);
    let mut node = Node::join(&servers, "formats", "node");
    for number in 0..30 {
        append(node.journal(), vec![proposal(number, 10)]).unwrap();
    }
    let earlier = FrameFormat {
        magic: *b"ckpl",
        version: 1,
        oldest: 1,
        payload_max: 1 << 20,
    };
    node.take_snapshot_at(earlier.pack(&"whatever"));
    servers.speak(async |context| {
        context
            .get_stream("formats")
            .await
            .unwrap()
            .purge()
            .sequence(20)
            .await
            .unwrap();
    });
    let rejected = node.open().unwrap_err();
    assert!(
        matches!(&rejected, JournalError::Unusable(why) if why.contains("run one version")),
        "{rejected}"
    );
}

/// A message of this build would stop the nodes of the other one.
#[test]
fn log_of_other_format_gets_no_message() {
    let servers = Servers::start(1);
    // It creates the stream, and publishes nothing until it is polled.
    let _creator = Node::join(&servers, "earlier", "creator");
    let raw = Raw::of(&servers, "earlier");
    for message in ["hello".into(), "hello again".into(), raw::earlier()] {
        raw.publish(message);
    }
    let mut node = Node::join(&servers, "earlier", "node");
    let rejected = entries(node.journal(), 0).unwrap_err().to_string();
    assert!(
        rejected.contains("message 3") && rejected.contains("run one version"),
        "{rejected}"
    );
    assert_eq!(raw.last(), 3);
}

/// If the server stops in the middle of commits, each of them is in the log once, in order, after its restart.
#[test]
fn proposal_in_flight_at_crash_is_committed_once() {
    let mut servers = Servers::start(1);
    let mut node = Node::join(&servers, "deaths", "node");
    append(node.journal(), vec![proposal(0, 1)]).unwrap();
    let mut next = 1;
    for round in 0..4 {
        let mut committed = Vec::new();
        let propose = |node: &mut Node, next: &mut u64, committed: &mut Vec<Committed>| {
            for _ in 0..40 {
                node.journal()
                    .propose(Ticket(*next), vec![proposal(*next, 3_000)])
                    .unwrap();
                node.take_into(committed);
                *next += 1;
            }
        };
        let first = next;
        propose(&mut node, &mut next, &mut committed);
        if round % 2 == 0 {
            servers.kill(0);
            propose(&mut node, &mut next, &mut committed);
            servers.restart(0);
        } else {
            // Longer than the acknowledgement timeout: it may still commit received messages.
            servers.freeze(0);
            propose(&mut node, &mut next, &mut committed);
            let status = node.journal().replication().unwrap();
            wait_until("no acknowledgement", || {
                node.take_into(&mut committed);
                status.lock().silence(Instant::now()) >= ACKNOWLEDGED_LATE
            });
            servers.thaw(0);
        }
        let missing = (next - first) as usize - committed.len();
        committed.extend(node.polled(missing).unwrap());
        let tickets: Vec<u64> = committed.iter().map(|one| one.ticket.unwrap().0).collect();
        assert_eq!(tickets, (first..next).collect::<Vec<_>>(), "round {round}");
    }
    append(node.journal(), vec![proposal(next, 1)]).unwrap();
    let mut other = Node::join(&servers, "deaths", "other");
    assert_eq!(
        numbers(&entries(other.journal(), 0).unwrap()),
        (0..=next).collect::<Vec<_>>()
    );
}

/// Messages that arrived while a node's writer was busy show that the log responds.
#[test]
fn busy_writer_is_no_evidence_of_silence() {
    let servers = Servers::start(1);
    let mut node = Node::join(&servers, "busy", "node");
    let mut other = Node::join(&servers, "busy", "other");
    append(node.journal(), vec![proposal(0, 1)]).unwrap();
    other.polled(1).unwrap();
    // The node's own message follows more than it reads ahead.
    for number in 0..200 {
        append(other.journal(), vec![proposal(number, 1)]).unwrap();
    }
    node.journal()
        .propose(Ticket(1), vec![proposal(1, 1)])
        .unwrap();
    let last = node.journal().last();
    let _ = node.journal().poll(
        last,
        Instant::now(),
        &mut Context::from_waker(Waker::noop()),
    );
    other.polled(1).unwrap();
    let began = Instant::now();
    while began.elapsed() < SERVER_REPLACED_LATE {
        append(other.journal(), vec![proposal(2, 1)]).unwrap();
    }
    let status = node.journal().replication().unwrap();
    assert_eq!(status.lock().silence(Instant::now()), Duration::ZERO);
    let mut taken = Vec::new();
    wait_until("its own message", || {
        node.take_into(&mut taken);
        assert_eq!(status.lock().silence(Instant::now()), Duration::ZERO);
        taken
            .iter()
            .any(|committed| committed.ticket == Some(Ticket(1)))
    });
    let known = status.lock();
    assert_eq!((known.resent, known.reconnects), (0, 0));
}

#[test]
fn barrier_follows_entries_acknowledged_elsewhere() {
    let servers = Servers::start(1);
    let mut ours = Node::join(&servers, "barriers", "ours");
    let mut theirs = Node::join(&servers, "barriers", "theirs");
    append(ours.journal(), vec![proposal(0, 1)]).unwrap();
    for number in 1..20 {
        let committed = append(theirs.journal(), vec![proposal(number, 1)]);
        let last = if number == 1 {
            Seq(1)
        } else {
            committed.unwrap().last().unwrap().entry.seq
        };
        ours.pass_barrier();
        assert!(ours.journal().last() >= last);
    }
}

/// A copy of whatever the log has is void: of the messages that begin sessions, too.
#[test]
fn duplicate_messages_have_no_effect() {
    let servers = Servers::start(1);
    let mut node = Node::join(&servers, "copies", "node");
    let raw = Raw::of(&servers, "copies");
    for number in 0..3 {
        append(node.journal(), vec![proposal(number, 1)]).unwrap();
    }
    for number in 1..=raw.last() {
        raw.publish(raw.message(number));
    }
    let committed = append(node.journal(), vec![proposal(3, 1)]).unwrap();
    assert_eq!(
        (committed[0].entry.seq, committed[0].ticket),
        (Seq(4), Some(Ticket(1_000)))
    );
    let mut other = Node::join(&servers, "copies", "other");
    assert_eq!(numbers(&entries(other.journal(), 0).unwrap()), [0, 1, 2, 3]);
}

/// Messages of a killed process may arrive while its successor is running.
#[test]
fn messages_of_crashed_process_are_harmless() {
    let servers = Servers::start(1);
    let mut node = Node::join(&servers, "ghosts", "node");
    append(node.journal(), vec![proposal(0, 1)]).unwrap();
    let raw = Raw::of(&servers, "ghosts");
    let read = raw.last();
    node.open().unwrap();
    assert_eq!(entries(node.journal(), 0).unwrap().len(), 1);
    for session in 1..10 {
        raw.publish(raw::begin("node", session, read));
    }
    append(node.journal(), vec![proposal(1, 1)]).unwrap();
    // Both lived for a moment: it knew the successor's session. That one begins the next.
    raw.publish(raw::begin("node", 100, raw.last()));
    append(node.journal(), vec![proposal(2, 1)]).unwrap();
    node.pass_barrier();
    let mut other = Node::join(&servers, "ghosts", "other");
    assert_eq!(numbers(&entries(other.journal(), 0).unwrap()), [0, 1, 2]);
}

#[test]
fn node_dropped_by_log_starts_new_session() {
    let servers = Servers::start(1);
    let mut node = Node::join(&servers, "crowds", "node");
    append(node.journal(), vec![proposal(0, 1)]).unwrap();
    let raw = Raw::of(&servers, "crowds");
    for number in 0..256 {
        raw.publish(raw::begin(&format!("other-{number}"), number, 0));
    }
    node.pass_barrier();
    append(node.journal(), vec![proposal(1, 1)]).unwrap();
}

#[test]
fn duplicate_node_name_is_detected() {
    let servers = Servers::start(1);
    let mut first = Node::join(&servers, "names", "node");
    append(first.journal(), vec![proposal(0, 1)]).unwrap();
    let mut second = Node::join(&servers, "names", "node");
    assert_eq!(entries(second.journal(), 0).unwrap().len(), 1);
    // Both back off. The one that is superseded for the third time within a minute ends.
    let mut next = 1;
    let ended = wait_for(|| {
        for node in [&mut first, &mut second] {
            let last = node.journal().last();
            match node.journal().poll(
                last,
                Instant::now(),
                &mut Context::from_waker(Waker::noop()),
            ) {
                Poll::Ready(Err(error)) => return Some(error.to_string()),
                Poll::Ready(Ok(_)) | Poll::Pending => {}
            }
        }
        next += 1;
        None
    });
    assert!(ended.contains("another process uses the name"), "{ended}");
}

/// Waits until there is a value.
fn wait_for<T>(mut value: impl FnMut() -> Option<T>) -> T {
    let mut found = None;
    wait_until("the end of one", || {
        found = value();
        found.is_some()
    });
    found.unwrap()
}

/// One message of a stranger must not stop all nodes for good, whether it looks like ours or not.
#[test]
fn foreign_messages_are_skipped_and_counted() {
    let servers = Servers::start(1);
    let mut node = Node::join(&servers, "rubbish", "node");
    append(node.journal(), vec![proposal(0, 1)]).unwrap();
    let raw = Raw::of(&servers, "rubbish");
    let mut damaged = raw.message(raw.last()).to_vec();
    damaged[30] ^= 1;
    for rubbish in [&b"hello"[..], b"", b"cknl and more than that", &damaged] {
        raw.publish(rubbish.to_vec().into());
    }
    append(node.journal(), vec![proposal(1, 1)]).unwrap();
    assert_eq!(node.journal().replication().unwrap().lock().foreign, 4);
    // More than are verified at the same time.
    for number in 0..100 {
        raw.publish(format!("rubbish {number}").into());
    }
    append(node.journal(), vec![proposal(2, 1)]).unwrap();
    assert_eq!(node.journal().replication().unwrap().lock().foreign, 104);
    let mut other = Node::join(&servers, "rubbish", "other");
    assert_eq!(numbers(&entries(other.journal(), 0).unwrap()), [0, 1, 2]);
}

/// All other nodes read it as it is.
#[test]
fn message_that_arrives_damaged_is_read_again() {
    let servers = Servers::start(1);
    let network = Network::to(&servers.ports());
    let mut writer = Node::join(&servers, "damage", "writer");
    let mut reader = Node::join_with(nats_options(vec![network.urls()], "damage", "reader"));
    reader.pass_barrier();
    for number in 0..3 {
        // Its magic bytes, or what follows.
        network.damage([&b"cknl"[..], &b"knl\x03"[..], &b"nl\x03\0"[..]][number]);
        append(writer.journal(), vec![proposal(number as u64, 1)]).unwrap();
        assert_eq!(
            numbers(
                &reader
                    .polled(1)
                    .unwrap()
                    .into_iter()
                    .map(|read| read.entry)
                    .collect::<Vec<_>>()
            ),
            [number as u64]
        );
        assert!(network.had_accident());
    }
    assert_eq!(reader.journal().replication().unwrap().lock().foreign, 0);
}

/// A stream without space rejects messages: nothing is lost, and everything continues once there is space.
#[test]
fn full_stream_is_reported_until_space_is_free() {
    let servers = Servers::start(1);
    let mut node = Node::join(&servers, "full", "node");
    append(node.journal(), vec![proposal(0, 1)]).unwrap();
    servers.limit_log("full", 4_096);
    node.journal()
        .propose(Ticket(1), vec![proposal(1, 1_000)])
        .unwrap();
    let known = node.journal().replication().unwrap();
    wait_until("a report that the log is full", || {
        node.take_all();
        known.lock().full_since.is_some()
    });
    servers.limit_log("full", -1);
    let committed = node.polled(1).unwrap();
    assert_eq!(
        (committed[0].entry.seq, committed[0].ticket),
        (Seq(2), Some(Ticket(1)))
    );
    wait_until("a report that it is not", || {
        node.take_all();
        known.lock().full_since.is_none()
    });
}

#[test]
fn node_with_full_disk_only_follows() {
    let servers = Servers::start(1);
    let mut node = Node::join(&servers, "space", "node");
    let mut full = Node::join(&servers, "space", "full");
    full.free_bytes_min = u64::MAX >> 1;
    full.open().unwrap();
    append(node.journal(), vec![proposal(0, 1)]).unwrap();
    assert_eq!(full.polled(1).unwrap().len(), 1);
    let refused = append(full.journal(), vec![proposal(1, 1)]).unwrap_err();
    assert!(matches!(refused, JournalError::DiskFull(_)), "{refused}");
    append(node.journal(), vec![proposal(2, 1)]).unwrap();
    assert_eq!(full.polled(1).unwrap()[0].entry.seq, Seq(2));
}

#[test]
fn deleted_log_stops_nodes_and_stays_deleted() {
    let servers = Servers::start(1);
    let mut node = Node::join(&servers, "deleted", "node");
    append(node.journal(), vec![proposal(0, 1)]).unwrap();
    let raw = Raw::of(&servers, "deleted");
    raw.delete();
    let stopped = node.polled(1).unwrap_err();
    assert!(stopped.to_string().contains("was deleted"), "{stopped}");
    node.options.connect_timeout = Duration::ZERO;
    let refused = node.open().unwrap_err();
    assert!(
        refused.to_string().contains("stream not found"),
        "{refused}"
    );
    assert!(!raw.is_there());
}

#[test]
fn directory_of_another_log_is_rejected() {
    let servers = Servers::start(1);
    let mut node = Node::join(&servers, "one", "node");
    append(node.journal(), vec![proposal(0, 1)]).unwrap();
    Node::join(&servers, "another", "other");
    node.options.stream = "another".to_owned();
    let refused = node.open().unwrap_err();
    assert!(
        refused.to_string().contains("belongs to another log"),
        "{refused}"
    );
    let store = Arc::new(Store::open(node.dir.path(), &options(Durability::Fsync)).unwrap());
    assert!(
        JournalOptions::Local(LocalOptions::default())
            .open(&store)
            .is_err(),
        "a directory of a replicated log as one of its own"
    );
    drop(store);

    let local = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(local.path(), &options(Durability::Fsync)).unwrap());
    append(
        &mut LocalJournal::open(store.clone(), LocalOptions::default()).unwrap(),
        vec![proposal(0, 1)],
    )
    .unwrap();
    assert!(
        JournalOptions::Nats(Box::new(node.options.clone()))
            .open(&store)
            .is_err(),
        "the other way round"
    );
}

/// A server that restarts with less than it has acknowledged: a power loss without syncs, or an old copy of its disk.
#[test]
fn lost_acknowledged_entries_stop_node() {
    let mut servers = Servers::start(1);
    let mut node = Node::join(&servers, "lost", "node");
    append(node.journal(), vec![proposal(0, 1)]).unwrap();
    // More than the node publishes before it reads them back.
    undo(&mut servers, |_| {
        (1..30).for_each(|number| _ = append(node.journal(), vec![proposal(number, 1)]).unwrap());
    });
    let stopped = node.polled(1).unwrap_err();
    assert!(
        matches!(&stopped, JournalError::Damaged(why) if why.contains("the log ends at message")),
        "{stopped}"
    );
}

/// The same, and the log has grown again since.
#[test]
fn replaced_acknowledged_entries_stop_node() {
    let mut servers = Servers::start(1);
    let mut node = Node::join(&servers, "replaced", "node");
    append(node.journal(), vec![proposal(0, 1)]).unwrap();
    let last = undo(&mut servers, |servers| {
        (1..4).for_each(|number| _ = append(node.journal(), vec![proposal(number, 1)]).unwrap());
        Raw::of(servers, "replaced").last()
    });
    let raw = Raw::of(&servers, "replaced");
    while raw.last() <= last {
        raw.publish("of somebody else".into());
    }
    let stopped = node.polled(1).unwrap_err();
    assert!(
        matches!(&stopped, JournalError::Damaged(why) if why.contains("have replaced acknowledged entries")),
        "{stopped}"
    );
}

/// Changes a log. Then its server restarts with its disk from before.
fn undo<T>(servers: &mut Servers, change: impl FnOnce(&Servers) -> T) -> T {
    servers.kill(0);
    let folder = servers.folder(0);
    let copy = tempfile::tempdir().unwrap();
    copy_folder(&folder, &copy.path().join("copy"));
    servers.restart(0);
    let result = change(servers);
    servers.kill(0);
    fs::remove_dir_all(&folder).unwrap();
    copy_folder(&copy.path().join("copy"), &folder);
    servers.restart(0);
    result
}

fn copy_folder(from: &Path, to: &Path) {
    let copied = Command::new("cp")
        .arg("-a")
        .arg(from)
        .arg(to)
        .status()
        .unwrap();
    assert!(copied.success());
}
