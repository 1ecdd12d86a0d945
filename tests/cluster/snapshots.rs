//! The snapshots that nodes share, over a real server: listed ones are complete, and the log is trimmed only up to them.

use crate::engines::{self, config, nats_options, start_with};
use crate::nats::Servers;
use crate::proxy::Network;
use crate::raw::Raw;
use crate::timeouts::wait_until;
use cuckood::clock::{Clock, ClockLimits};
use cuckood::engine::{self, ClusterOptions, EngineStatus};
use cuckood_log::journal::{Durability, Journal, JournalError};
use cuckood_log::store::archive::{ArchiveWriter, BackupPiece};
use cuckood_log::store::{Manifest, Store};
use cuckood_log::testing::stores::{append, entries, options, proposal};
use cuckood_nats::{NatsJournal, NatsOptions, NatsSnapshots, SharedSnapshot, init_log};
use cuckood_state::domain::{Seq, Timestamp};
use cuckood_state::frame::FrameFormat;
use futures_util::TryStreamExt;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::Runtime;

const LOG: &str = "shop";

/// A node without anything above its journal, and its access to the shared snapshots.
struct Node {
    journal: NatsJournal,
    shared: NatsSnapshots,
    _dir: TempDir,
}

fn of(servers: &Servers, name: &str) -> NatsOptions {
    NatsOptions {
        log_margin: 0,
        ..nats_options(servers.urls(), LOG, name)
    }
}

fn journal(servers: &Servers, name: &str) -> Result<(NatsJournal, TempDir), JournalError> {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(dir.path(), &options(Durability::Fsync)).unwrap());
    Ok((NatsJournal::open(store, &of(servers, name))?, dir))
}

impl Node {
    fn join(servers: &Servers, name: &str) -> Node {
        let (journal, dir) = journal(servers, name).unwrap();
        Node {
            journal,
            shared: NatsSnapshots::open(&of(servers, name)).unwrap(),
            _dir: dir,
        }
    }

    /// Appends this many entries and takes a snapshot after them.
    fn take(&mut self, entries: u64) -> Manifest {
        for number in 0..entries {
            append(&mut self.journal, vec![proposal(number, 10)]).unwrap();
        }
        manifest(self.journal.last(), self.journal.place())
    }

    fn share(&mut self, taken: &Manifest) -> Result<SharedSnapshot, JournalError> {
        self.share_if(taken, || Ok(()))
    }

    fn share_if(
        &mut self,
        taken: &Manifest,
        check: impl Fn() -> Result<(), JournalError>,
    ) -> Result<SharedSnapshot, JournalError> {
        let mut archive = archive(taken);
        self.shared
            .share(taken, &mut || check().map(|()| archive.next()))
    }
}

/// A snapshot of a few chunks.
fn manifest(seq: Seq, place: Vec<u8>) -> Manifest {
    let meta = (0..600_000_u64)
        .map(|at| (at * (seq.0 + 7)) as u8)
        .collect();
    let taken_at = Timestamp(seq.0);
    let sections = Vec::new();
    Manifest {
        generation: 1,
        seq,
        taken_at,
        events_last: 0,
        place,
        sections,
        meta,
    }
}

/// The parts of its archive.
fn archive(taken: &Manifest) -> impl Iterator<Item = Vec<u8>> + use<> {
    let mut writer = ArchiveWriter::default();
    let pieces = [BackupPiece::Manifest(taken.clone()), BackupPiece::End];
    let bytes = pieces.map(|piece| writer.frame(&piece)).concat();
    bytes
        .chunks(100_000)
        .map(<[u8]>::to_vec)
        .collect::<Vec<_>>()
        .into_iter()
}

/// Stores a snapshot as a node does that begins with a shared one.
fn load(store: &Store, snapshot: &SharedSnapshot) {
    let mut writer = store.begin_snapshot(snapshot.seq).unwrap();
    writer.place = snapshot.place.clone();
    writer.finish(store, snapshot.taken_at, Vec::new()).unwrap();
}

/// Reads its archive to the end.
fn check(shared: &NatsSnapshots, snapshot: &SharedSnapshot) -> Result<(), JournalError> {
    shared.read(snapshot, |_| Ok(()))
}

fn positions(shared: &mut NatsSnapshots) -> Vec<u64> {
    shared
        .list()
        .unwrap()
        .iter()
        .map(|snapshot| snapshot.seq.0)
        .collect()
}

/// A name as subjects have it, or a label as descriptions do.
fn encoded(name: impl AsRef<[u8]>) -> String {
    use base64::Engine;
    base64::prelude::BASE64_URL_SAFE.encode(name)
}

/// The names of the archives that are stored, in order. All chunks belong to one of them.
fn stored(servers: &Servers) -> Vec<String> {
    servers.speak(async |context| {
        let archives = context
            .get_object_store(format!("{LOG}-snapshots"))
            .await
            .unwrap();
        let mut infos: Vec<_> = archives.list().await.unwrap().try_collect().await.unwrap();
        infos.sort_by(|one, other| one.name.cmp(&other.name));
        let stream = context
            .get_stream(format!("OBJ_{LOG}-snapshots"))
            .await
            .unwrap();
        let chunks = stream.info_with_subjects("$O.*.C.>").await.unwrap();
        let chunks: Vec<(String, usize)> = chunks.try_collect().await.unwrap();
        assert_eq!(chunks.len(), infos.len());
        assert!(infos.iter().all(|info| {
            chunks
                .iter()
                .any(|(subject, _)| subject.ends_with(&info.nuid))
        }));
        infos.into_iter().map(|info| info.name).collect()
    })
}

/// Alters the description of an archive.
fn alter(servers: &Servers, name: &str, alter: impl Fn(&str) -> String) {
    let subject = format!("$O.{LOG}-snapshots.M.{}", encoded(name));
    servers.speak(async |context| {
        let stream = context
            .get_stream(format!("OBJ_{LOG}-snapshots"))
            .await
            .unwrap();
        let found = stream
            .get_last_raw_message_by_subject(&subject)
            .await
            .unwrap();
        let altered = alter(std::str::from_utf8(&found.payload).unwrap());
        context
            .publish(subject.clone(), altered.into())
            .await
            .unwrap()
            .await
            .unwrap();
    });
}

#[test]
fn two_newest_snapshots_bound_log_trimming() {
    let servers = Servers::start(1);
    let mut node = Node::join(&servers, "node");
    assert!(node.shared.list().unwrap().is_empty());
    let taken = [node.take(10), node.take(10), node.take(10)];
    let first = node.share(&taken[0]).unwrap();
    // Only one node has the earlier entries.
    assert_eq!(servers.first_message(LOG), 1);
    let second = node.share(&taken[1]).unwrap();
    let behind_first = servers.first_message(LOG);
    assert!(behind_first > 10, "{behind_first}");
    let third = node.share(&taken[2]).unwrap();
    assert!(servers.first_message(LOG) > behind_first);
    assert_eq!(node.shared.list().unwrap(), [third.clone(), second.clone()]);
    assert_eq!(stored(&servers), [second.name.clone(), third.name.clone()]);
    for snapshot in [&second, &third] {
        check(&node.shared, snapshot).unwrap();
    }
    assert!(matches!(
        check(&node.shared, &first),
        Err(JournalError::Damaged(_))
    ));
    let Err(refused) = journal(&servers, "another") else {
        panic!("the log is trimmed")
    };
    assert!(matches!(refused, JournalError::Trimmed(_)), "{refused}");
    // The same position, and an older one.
    assert!(node.share(&taken[2]).is_err());
    assert!(node.share(&taken[0]).is_err());
    assert_eq!(node.shared.list().unwrap(), [third, second]);
}

#[test]
fn place_lets_node_continue_after_snapshot() {
    let servers = Servers::start(1);
    let mut node = Node::join(&servers, "node");
    for _ in 0..2 {
        let taken = node.take(10);
        node.share(&taken).unwrap();
    }
    node.take(5);
    let snapshot = node.shared.list().unwrap().remove(0);
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(dir.path(), &options(Durability::Fsync)).unwrap());
    node.shared.adopt(&snapshot, &store).unwrap();
    load(&store, &snapshot);
    let mut other = NatsJournal::open(store, &of(&servers, "other")).unwrap();
    let seen: Vec<u64> = entries(&mut other, 20)
        .unwrap()
        .iter()
        .map(|entry| entry.seq.0)
        .collect();
    assert_eq!(seen, [21, 22, 23, 24, 25]);
    let mut damaged = snapshot;
    damaged.place[40] ^= 1;
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &options(Durability::Fsync)).unwrap();
    assert!(matches!(
        node.shared.adopt(&damaged, &store),
        Err(JournalError::Damaged(_))
    ));
}

/// An upload that fails leaves nothing; one that another node has removed does not count.
#[test]
fn incomplete_snapshot_is_never_listed() {
    let servers = Servers::start(1);
    let mut node = Node::join(&servers, "node");
    let taken = [node.take(3), node.take(3), node.take(3)];
    let first = node.share(&taken[0]).unwrap();

    let mut whole = archive(&taken[1]);
    let mut parts = 0;
    let mut give = || {
        parts += 1;
        if parts == 4 {
            Err(JournalError::Failed("the node stops".to_owned()))
        } else {
            Ok(whole.next())
        }
    };
    let failed = node.shared.share(&taken[1], &mut give);
    assert!(matches!(failed, Err(JournalError::Failed(why)) if why == "the node stops"));
    assert_eq!(stored(&servers), std::slice::from_ref(&first.name));

    // Bytes that are no archive.
    let mut parts = vec![Some(vec![7; 300_000])].into_iter();
    assert!(
        node.shared
            .share(&taken[1], &mut || Ok(parts.next().flatten()))
            .is_err()
    );
    assert_eq!(positions(&mut node.shared), [3]);

    // Another node takes the upload for an abandoned one. It is asked for more when it is uploaded, and once more when it is read back.
    let mut whole = archive(&taken[1]);
    let ends = &Cell::new(0);
    let mut give = || {
        let part = whole.next();
        ends.set(ends.get() + u32::from(part.is_none()));
        if ends.get() == 2 {
            servers.speak(async |context| {
                let archives = context
                    .get_object_store(format!("{LOG}-snapshots"))
                    .await
                    .unwrap();
                let infos: Vec<_> = archives.list().await.unwrap().try_collect().await.unwrap();
                let upload = infos
                    .into_iter()
                    .map(|info| info.name)
                    .find(|name| *name != first.name)
                    .unwrap();
                archives.delete(&upload).await.unwrap();
                let stream = context
                    .get_stream(format!("OBJ_{LOG}-snapshots"))
                    .await
                    .unwrap();
                stream
                    .purge()
                    .filter(format!("$O.{LOG}-snapshots.M.{}", encoded(&upload)))
                    .await
                    .unwrap();
            });
        }
        Ok(part)
    };
    assert!(node.shared.share(&taken[1], &mut give).is_err());
    assert_eq!(ends.get(), 2);
    assert_eq!(node.shared.list().unwrap(), std::slice::from_ref(&first));
    assert_eq!(stored(&servers), std::slice::from_ref(&first.name));
    let third = node.share(&taken[2]).unwrap();
    assert_eq!(stored(&servers), [first.name, third.name]);
}

/// Two nodes that upload at the same time do no harm: the two newest snapshots stay.
#[test]
fn simultaneous_uploads_leave_two_newest() {
    let servers = Servers::start(1);
    let mut node = Node::join(&servers, "node");
    let mut other = Node::join(&servers, "other");
    let taken = [node.take(3), node.take(3), node.take(3)];
    let first = node.share(&taken[0]).unwrap();
    let mut whole = archive(&taken[1]);
    let mut third = None;
    let mut give = || {
        let part = whole.next();
        if part.is_none() && third.is_none() {
            third = Some(other.share(&taken[2]).unwrap());
        }
        Ok(part)
    };
    let second = node.shared.share(&taken[1], &mut give).unwrap();
    let third = third.unwrap();
    assert_eq!(node.shared.list().unwrap(), [third.clone(), second.clone()]);
    assert_eq!(stored(&servers), [second.name, third.name]);
    assert_ne!(first.seq, second.seq);
}

/// A dead upload has left chunks. Those of a running one stay, however many there are.
#[test]
fn only_abandoned_chunks_are_removed() {
    const LATER: u64 = 30_000;
    let servers = Servers::start(1);
    let mut node = Node::join(&servers, "node");
    let mut taken = [node.take(3), node.take(3)];
    let chunk = format!("$O.{LOG}-snapshots.C.dead");
    let sent = servers.speak(async |context| {
        context
            .publish(chunk.clone(), "a chunk".into())
            .await
            .unwrap()
            .await
            .unwrap();
        let stream = context
            .get_stream(format!("OBJ_{LOG}-snapshots"))
            .await
            .unwrap();
        let sent = stream
            .get_last_raw_message_by_subject(&chunk)
            .await
            .unwrap()
            .time;
        sent.unix_timestamp().unsigned_abs() * 1_000
    });
    let is_there = || {
        servers.speak(async |context| {
            let stream = context
                .get_stream(format!("OBJ_{LOG}-snapshots"))
                .await
                .unwrap();
            stream.get_last_raw_message_by_subject(&chunk).await.is_ok()
        })
    };
    taken[0].taken_at = Timestamp(sent + 1);
    node.share(&taken[0]).unwrap();
    assert!(is_there());
    taken[1].taken_at = Timestamp(sent + LATER);
    node.share(&taken[1]).unwrap();
    assert!(!is_there());
}

/// A node may learn that its state is wrong at any moment of an upload, also at the last.
#[test]
fn stopping_node_shares_and_trims_nothing() {
    let servers = Servers::start(1);
    let mut node = Node::join(&servers, "node");
    let taken = [node.take(10), node.take(10), node.take(10)];
    let checks = &Cell::new(0);
    let until = |last: u32| {
        checks.set(0);
        move || {
            checks.set(checks.get() + 1);
            let stops = || JournalError::Failed("the node stops".to_owned());
            if checks.get() < last {
                Ok(())
            } else {
                Err(stops())
            }
        }
    };
    let first = node.share_if(&taken[0], until(u32::MAX)).unwrap();
    let before_list = checks.get();
    for last in 1..=before_list {
        let refused = node.share_if(&taken[1], until(last)).unwrap_err();
        assert_eq!(refused.to_string(), "the node stops", "{last}");
    }
    assert_eq!(positions(&mut node.shared), [10]);
    assert_eq!(stored(&servers), std::slice::from_ref(&first.name));
    // Listed, and noticed then.
    node.share_if(&taken[1], until(before_list + 1)).unwrap();
    assert_eq!(
        (positions(&mut node.shared), servers.first_message(LOG)),
        (vec![20, 10], 1)
    );
    node.share(&taken[2]).unwrap();
    assert!(servers.first_message(LOG) > 1);
}

#[test]
fn damaged_archive_is_rejected() {
    let servers = Servers::start(1);
    let mut node = Node::join(&servers, "node");
    let taken = [node.take(3), node.take(3)];
    let older = node.share(&taken[0]).unwrap();
    let newer = node.share(&taken[1]).unwrap();
    // Another archive in its place has no label.
    servers.speak(async |context| {
        let archives = context
            .get_object_store(format!("{LOG}-snapshots"))
            .await
            .unwrap();
        archives
            .put(newer.name.as_str(), &mut &b"something else"[..])
            .await
            .unwrap();
    });
    assert!(check(&node.shared, &newer).is_err());
    assert_eq!(node.shared.list().unwrap(), std::slice::from_ref(&older));
    check(&node.shared, &older).unwrap();
    // A chunk with other bytes, under the description of the right ones.
    servers.speak(async |context| {
        let archives = context
            .get_object_store(format!("{LOG}-snapshots"))
            .await
            .unwrap();
        let nuid = archives.info(&older.name).await.unwrap().nuid;
        let subject = format!("$O.{LOG}-snapshots.C.{nuid}");
        let stream = context
            .get_stream(format!("OBJ_{LOG}-snapshots"))
            .await
            .unwrap();
        let chunk = stream
            .get_last_raw_message_by_subject(&subject)
            .await
            .unwrap();
        assert!(stream.delete_message(chunk.sequence).await.unwrap());
        let mut bytes = chunk.payload.to_vec();
        bytes[9] ^= 1;
        context
            .publish(subject, bytes.into())
            .await
            .unwrap()
            .await
            .unwrap();
    });
    assert!(check(&node.shared, &older).is_err());
}

/// The stream is gone while its nodes are up. A node with an empty directory must not replace it: the old log's nodes would stop, and their
/// redeemed codes would be valid again. Its archives may be the only copy of acknowledged writes.
#[test]
fn empty_node_never_replaces_lost_log() {
    let servers = Servers::start(1);
    let mut node = Node::join(&servers, "node");
    let others = [node.take(5), node.take(5)];
    let old = node.share(&others[0]).unwrap();
    drop(node);
    servers.speak(async |context| {
        context.delete_stream(LOG).await.unwrap();
    });
    let impatient = NatsOptions {
        connect_timeout: Duration::ZERO,
        ..of(&servers, "empty")
    };
    let dir = tempfile::tempdir().unwrap();
    let store = || Arc::new(Store::open(dir.path(), &options(Durability::Fsync)).unwrap());
    let Err(rejected) = NatsJournal::open(store(), &impatient) else {
        panic!("it has created the stream")
    };
    let why = rejected.to_string();
    assert!(
        why.contains("OBJ_shop-snapshots") && why.contains("cuckood cluster init"),
        "{why}"
    );
    assert_eq!(stored(&servers), std::slice::from_ref(&old.name));

    // Deliberately, and only once.
    let log = init_log(&impatient).unwrap();
    assert_eq!(log.len(), 32);
    let again = init_log(&impatient).unwrap_err().to_string();
    assert!(again.contains("it exists"), "{again}");
    let mut node = Node::join(&servers, "node");
    assert!(node.shared.list().unwrap().is_empty());
    // By a node that has not noticed.
    assert!(node.share(&others[1]).is_err());
    let taken = [node.take(2), node.take(2), node.take(2)];
    let shared = taken.map(|taken| node.share(&taken).unwrap());
    assert_eq!(
        node.shared.list().unwrap(),
        [shared[2].clone(), shared[1].clone()]
    );
    let mut left = vec![old.name, shared[1].name.clone(), shared[2].name.clone()];
    left.sort();
    assert_eq!(stored(&servers), left, "archives of the old log stay");
}

/// A node that stops between the two steps leaves a stream without the object store.
#[test]
fn opening_log_creates_missing_object_store() {
    let servers = Servers::start(1);
    drop(journal(&servers, "node").unwrap());
    let delete = async |context: async_nats::jetstream::Context, name: &str| {
        context.delete_stream(name).await.unwrap();
    };
    servers.speak(async |context| delete(context, "OBJ_shop-snapshots").await);
    drop(journal(&servers, "other").unwrap());
    servers.speak(async |context| delete(context, LOG).await);
    let dir = tempfile::tempdir().unwrap();
    let impatient = NatsOptions {
        connect_timeout: Duration::ZERO,
        ..of(&servers, "empty")
    };
    let store = Arc::new(Store::open(dir.path(), &options(Durability::Fsync)).unwrap());
    assert!(NatsJournal::open(store, &impatient).is_err());
}

#[test]
fn log_starts_after_snapshot_once() {
    let servers = Servers::start(1);
    let shared = NatsSnapshots::open(&of(&servers, "restore")).unwrap();
    shared.check_absent().unwrap();
    let taken = manifest(Seq(500), Vec::new());
    // An empty node that starts early does not take the log for an empty one.
    let impatient = NatsOptions {
        connect_timeout: Duration::ZERO,
        ..of(&servers, "early")
    };
    let mut whole = archive(&taken);
    let mut give = || {
        let part = whole.next();
        if part.is_none() {
            let dir = tempfile::tempdir().unwrap();
            let store = Arc::new(Store::open(dir.path(), &options(Durability::Fsync)).unwrap());
            let Err(early) = NatsJournal::open(store, &impatient) else {
                panic!("it has an empty log")
            };
            assert!(early.to_string().contains("OBJ_shop-snapshots"), "{early}");
        }
        Ok(part)
    };
    let snapshot = shared.begin_log(&taken, &mut give).unwrap();
    assert_eq!(shared.list().unwrap(), std::slice::from_ref(&snapshot));
    // A node that has not loaded it can't begin.
    assert!(matches!(
        journal(&servers, "empty"),
        Err(JournalError::Trimmed(_))
    ));
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(dir.path(), &options(Durability::Fsync)).unwrap());
    shared.adopt(&snapshot, &store).unwrap();
    load(&store, &snapshot);
    let mut node = NatsJournal::open(store, &of(&servers, "node")).unwrap();
    assert_eq!(entries(&mut node, 500).unwrap(), []);
    let committed = append(&mut node, vec![proposal(1, 1)]).unwrap();
    assert_eq!(committed[0].entry.seq, Seq(501));
    // Where there is a log, even an empty one.
    init_log(&NatsOptions {
        stream: "used".to_owned(),
        ..of(&servers, "n")
    })
    .unwrap();
    let used = NatsOptions {
        stream: "used".to_owned(),
        ..of(&servers, "restore")
    };
    for begun in [shared, NatsSnapshots::open(&used).unwrap()] {
        let mut archive = archive(&taken);
        let rejected = begun
            .begin_log(&taken, &mut || Ok(archive.next()))
            .unwrap_err();
        assert!(rejected.to_string().contains("exists"), "{rejected}");
    }
}

/// A node that starts early waits, and says what to do if the restore was broken off.
#[test]
fn node_waits_for_restore_in_progress() {
    let servers = Servers::start(1);
    init_log(&of(&servers, "restore")).unwrap();
    servers.speak(async |context| {
        let mut config = context
            .get_stream(LOG)
            .await
            .unwrap()
            .cached_info()
            .config
            .clone();
        config.subjects = vec![format!("{LOG}.beginning")];
        context.update_stream(config).await.unwrap();
    });
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(dir.path(), &options(Durability::Fsync)).unwrap());
    let impatient = NatsOptions {
        connect_timeout: Duration::ZERO,
        ..of(&servers, "early")
    };
    let Err(early) = NatsJournal::open(store, &impatient) else {
        panic!("it has the log")
    };
    assert!(
        early
            .to_string()
            .contains("remove the stream and repeat it"),
        "{early}"
    );
}

/// They don't delay shared snapshots.
#[test]
fn damaged_label_or_description_is_ignored() {
    let servers = Servers::start(1);
    let mut node = Node::join(&servers, "node");
    let taken = [node.take(3), node.take(3), node.take(3)];
    let [first, second] = [0, 1].map(|number| node.share(&taken[number]).unwrap());
    alter(&servers, &second.name, |info| {
        info.replace("\"cuckood-snapshot\":\"", "\"cuckood-snapshot\":\"AAAA")
    });
    assert_eq!(node.shared.list().unwrap(), std::slice::from_ref(&first));
    alter(&servers, &second.name, |_| "{".to_owned());
    assert_eq!(node.shared.list().unwrap(), std::slice::from_ref(&first));
    let third = node.share(&taken[2]).unwrap();
    assert_eq!(node.shared.list().unwrap(), [third, first]);
}

/// The trimmed log can't be read from the directory's place on, and this build can't continue from the shared snapshots either.
#[test]
fn directory_stays_if_shared_snapshots_have_other_format() {
    let servers = Servers::start(1);
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let runtime = Runtime::new().unwrap();
    let start = |dir: &TempDir, name: &str, share_every| {
        let cluster = ClusterOptions {
            share_every,
            ..config().cluster.options()
        };
        let nats = NatsOptions {
            connect_timeout: Duration::from_secs(2),
            ..of(&servers, name)
        };
        let clock = Clock::system(ClockLimits::default());
        runtime.block_on(start_with(dir.path(), nats, cluster, clock))
    };
    let stopped = start(&dirs[0], "stopped", None);
    let target = runtime.block_on(engines::create(&stopped, "sale"));
    runtime.block_on(stopped.shutdown());
    let position = stopped.position();
    let last = Raw::of(&servers, LOG).last();

    let sharing = start(&dirs[1], "sharing", Some(Duration::from_millis(200)));
    let mut items = 0..;
    wait_until("a trimmed log", || {
        runtime
            .block_on(engines::insert(&sharing, target, items.next().unwrap()))
            .unwrap();
        servers.first_message(LOG) > last + 1
    });
    runtime.block_on(sharing.shutdown());
    let label = FrameFormat {
        magic: *b"cksh",
        version: 1,
        oldest: 1,
        payload_max: 1 << 20,
    };
    let place = FrameFormat {
        magic: *b"ckpl",
        version: 1,
        oldest: 1,
        payload_max: 1 << 20,
    }
    .pack(&"whatever");
    for snapshot in NatsSnapshots::open(&of(&servers, "operator"))
        .unwrap()
        .list()
        .unwrap()
    {
        let name = snapshot.name.clone();
        let place = place.clone();
        let relabelled = encoded(label.pack(&SharedSnapshot { place, ..snapshot }));
        alter(&servers, &name, |info| {
            let mut info: serde_json::Value = serde_json::from_str(info).unwrap();
            info["metadata"]["cuckood-snapshot"] = relabelled.clone().into();
            info.to_string()
        });
    }
    let restarted = start(&dirs[0], "stopped", None);
    let EngineStatus::Failed(why) = restarted.status() else {
        panic!("{:?}", restarted.status())
    };
    assert!(why.contains("run one version of cuckood"), "{why}");
    drop(restarted);
    let found = engine::positions(&[dirs[0].path().to_owned()]).unwrap();
    assert_eq!(found, [(dirs[0].path().to_owned(), position)]);
}

/// Positions of different logs say nothing about each other.
#[test]
fn directories_of_different_logs_are_not_compared() {
    let servers = Servers::start(1);
    let dirs = [(LOG, "one"), (LOG, "two"), ("other", "one")].map(|(stream, node)| {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(dir.path(), &options(Durability::Fsync)).unwrap());
        let log = NatsOptions {
            stream: stream.to_owned(),
            ..of(&servers, node)
        };
        drop(NatsJournal::open(store, &log).unwrap());
        dir
    });
    let [one, two, other] = dirs.each_ref().map(|dir| dir.path().to_owned());
    let found = engine::positions(&[one.clone(), two.clone()]).unwrap();
    assert_eq!(found, [(one.clone(), Seq(0)), (two.clone(), Seq(0))]);
    let rejected = engine::positions(&[one.clone(), two, other.clone()])
        .unwrap_err()
        .to_string();
    assert!(
        rejected.contains(&format!("{} has another log", other.display())),
        "{rejected}"
    );
}

/// The servers have the label, and the connection breaks before the node learns that.
#[test]
fn snapshot_counts_although_acknowledgement_of_label_is_lost() {
    let servers = Servers::start(1);
    let network = Network::to(&servers.ports());
    let mut node = Node::join(&servers, "node");
    let options = NatsOptions {
        servers: vec![network.urls()],
        ..of(&servers, "node")
    };
    node.shared = NatsSnapshots::open(&options).unwrap();
    let taken = node.take(10);
    network.break_after(b"Nats-Expected-Last-Subject-Sequence");
    assert_eq!(node.share(&taken).unwrap().seq, Seq(10));
    assert!(network.had_accident());
    assert_eq!(positions(&mut node.shared), [10]);
    check(&node.shared, &node.shared.list().unwrap()[0]).unwrap();
}
