//! The snapshots that nodes share, over a real server: what is listed is whole, and the log is trimmed behind
//! it alone.

use crate::nats::Servers;
use crate::store_support::{append, entries, options, proposal};
use cuckood::domain::{Seq, Timestamp};
use cuckood::journal::{
    Check, Durability, Journal, JournalError, NatsJournal, NatsOptions, NatsSnapshots, SharedSnapshot, Taken,
    init_log, read_shared,
};
use cuckood::store::archive::{ArchiveWriter, Piece};
use cuckood::store::{Manifest, Store, StoreError};
use futures_util::StreamExt;
use std::cell::Cell;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

const LOG: &str = "shop";

/// A node without anything above its journal, and its access to the shared snapshots.
struct Node {
    journal: NatsJournal,
    shared: NatsSnapshots,
    _dir: TempDir,
}

fn of(servers: &Servers, name: &str) -> NatsOptions {
    NatsOptions { servers: servers.urls(), log_margin: 0, ..NatsOptions::new("", LOG, name) }
}

fn journal(servers: &Servers, name: &str) -> Result<(NatsJournal, TempDir), JournalError> {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(dir.path(), &options(Durability::Fsync)).unwrap());
    Ok((NatsJournal::open(store, &of(servers, name))?, dir))
}

impl Node {
    fn join(servers: &Servers, name: &str) -> Node {
        let (journal, dir) = journal(servers, name).unwrap();
        Node { journal, shared: NatsSnapshots::open(&of(servers, name)).unwrap(), _dir: dir }
    }

    /// Appends so many entries and takes a snapshot behind them.
    fn take(&mut self, entries: u64) -> Taken {
        for number in 0..entries {
            append(&mut self.journal, vec![proposal(number, 10)]).unwrap();
        }
        let seq = self.journal.last();
        Taken { seq, taken_at: Timestamp(seq.0), place: self.journal.place() }
    }

    fn share(&mut self, taken: &Taken) -> Result<SharedSnapshot, JournalError> {
        self.share_if(taken, &|| Ok(()))
    }

    fn share_if(&mut self, taken: &Taken, check: &Check<'_>) -> Result<SharedSnapshot, JournalError> {
        let mut archive = archive(taken.seq);
        self.shared.share(taken, &mut || Ok(archive.next()), check)
    }
}

/// The parts of an archive of a few chunks.
fn archive(seq: Seq) -> impl Iterator<Item = Vec<u8>> {
    let meta = (0..600_000_u64).map(|at| (at * (seq.0 + 7)) as u8).collect();
    let (taken_at, place, sections) = (Timestamp(1), Vec::new(), Vec::new());
    let manifest = Manifest { generation: 1, seq, taken_at, events_last: 0, place, sections, meta };
    let mut writer = ArchiveWriter::default();
    let pieces = [Piece::Manifest(manifest), Piece::End];
    let bytes = pieces.map(|piece| writer.frame(&piece)).concat();
    bytes.chunks(100_000).map(<[u8]>::to_vec).collect::<Vec<_>>().into_iter()
}

/// Stores a snapshot as a node does that begins with a shared one.
fn load(store: &Store, snapshot: &SharedSnapshot) {
    let mut writer = store.begin_snapshot(snapshot.seq).unwrap();
    writer.place = snapshot.place.clone();
    writer.finish(store, snapshot.taken_at, Vec::new()).unwrap();
}

fn check(snapshot: &SharedSnapshot, archive: impl Read) -> Result<(), StoreError> {
    read_shared(snapshot, archive, |_| Ok(()))
}

fn positions(shared: &mut NatsSnapshots) -> Vec<u64> {
    shared.list().unwrap().iter().map(|snapshot| snapshot.seq.0).collect()
}

/// The names of the archives that are stored, in order. All chunks belong to one of them.
fn stored(servers: &Servers) -> Vec<String> {
    use futures_util::TryStreamExt;
    servers.speak(async |context| {
        let archives = context.get_object_store(format!("{LOG}-snapshots")).await.unwrap();
        let mut infos: Vec<_> = archives.list().await.unwrap().try_collect().await.unwrap();
        infos.sort_by(|one, other| one.name.cmp(&other.name));
        let stream = context.get_stream(format!("OBJ_{LOG}-snapshots")).await.unwrap();
        let chunks = stream.info_with_subjects("$O.*.C.>").await.unwrap();
        let chunks: Vec<(String, usize)> = chunks.try_collect().await.unwrap();
        assert_eq!(chunks.len(), infos.len());
        assert!(infos.iter().all(|info| chunks.iter().any(|(subject, _)| subject.ends_with(&info.nuid))));
        infos.into_iter().map(|info| info.name).collect()
    })
}

#[test]
fn the_two_newest_are_kept_and_the_log_is_trimmed_behind_the_older() {
    let servers = Servers::start(1);
    let mut node = Node::join(&servers, "node");
    assert!(node.shared.list().unwrap().is_empty());
    let taken = [node.take(10), node.take(10), node.take(10)];
    let first = node.share(&taken[0]).unwrap();
    // Only one node has what comes before it.
    assert_eq!(servers.first_message(LOG), 1);
    let second = node.share(&taken[1]).unwrap();
    let behind_first = servers.first_message(LOG);
    assert!(behind_first > 10, "{behind_first}");
    let third = node.share(&taken[2]).unwrap();
    assert!(servers.first_message(LOG) > behind_first);
    assert_eq!(node.shared.list().unwrap(), [third.clone(), second.clone()]);
    assert_eq!(stored(&servers), [second.name.clone(), third.name.clone()]);
    for snapshot in [&second, &third] {
        check(snapshot, node.shared.read(snapshot).unwrap()).unwrap();
    }
    assert!(matches!(node.shared.read(&first), Err(JournalError::Damaged(_))));
    let Err(refused) = journal(&servers, "another") else { panic!("the log is trimmed") };
    assert!(matches!(refused, JournalError::Trimmed(_)), "{refused}");
    // The same position, and an older one.
    assert!(node.share(&taken[2]).is_err());
    assert!(node.share(&taken[0]).is_err());
    assert_eq!(node.shared.list().unwrap(), [third, second]);
}

#[test]
fn a_place_leads_another_node_behind_the_snapshot() {
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
    let seen: Vec<u64> = entries(&mut other, 20).unwrap().iter().map(|entry| entry.seq.0).collect();
    assert_eq!(seen, [21, 22, 23, 24, 25]);
    let mut damaged = snapshot;
    damaged.place[40] ^= 1;
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &options(Durability::Fsync)).unwrap();
    assert!(matches!(node.shared.adopt(&damaged, &store), Err(JournalError::Damaged(_))));
}

/// An upload that fails leaves nothing; one that another has overtaken does not count.
#[test]
fn what_is_not_whole_is_never_listed() {
    let servers = Servers::start(1);
    let mut node = Node::join(&servers, "node");
    let taken = [node.take(3), node.take(3), node.take(3)];
    let first = node.share(&taken[0]).unwrap();

    let (mut whole, mut parts) = (archive(taken[1].seq), 0);
    let mut give = || {
        parts += 1;
        if parts == 4 { Err(JournalError::Failed("the node stops".to_owned())) } else { Ok(whole.next()) }
    };
    let failed = node.shared.share(&taken[1], &mut give, &|| Ok(()));
    assert!(matches!(failed, Err(JournalError::Failed(why)) if why == "the node stops"));
    assert_eq!(stored(&servers), std::slice::from_ref(&first.name));

    // Bytes that are no archive.
    let mut parts = vec![Some(vec![7; 300_000])].into_iter();
    assert!(node.shared.share(&taken[1], &mut || Ok(parts.next().flatten()), &|| Ok(())).is_err());
    assert_eq!(positions(&mut node.shared), [3]);

    // The list is replaced meanwhile.
    let mut whole = archive(taken[1].seq);
    let mut give = || {
        let part = whole.next();
        if part.is_none() {
            servers.speak(async |context| {
                let list = context.get_key_value(format!("{LOG}-snapshots")).await.unwrap();
                let key = list.keys().await.unwrap().next().await.unwrap().unwrap();
                let same = list.get(&key).await.unwrap().unwrap();
                list.put(key, same).await.unwrap();
            });
        }
        Ok(part)
    };
    assert!(node.shared.share(&taken[1], &mut give, &|| Ok(())).is_err());
    assert_eq!(node.shared.list().unwrap(), std::slice::from_ref(&first));
    assert_eq!(stored(&servers), std::slice::from_ref(&first.name));
    let third = node.share(&taken[2]).unwrap();
    assert_eq!(stored(&servers), [first.name, third.name]);
}

/// A node may learn that its state is wrong at any moment of an upload, also at the last.
#[test]
fn what_a_node_has_that_has_to_stop_is_not_shared_and_the_log_not_trimmed_for_it() {
    let servers = Servers::start(1);
    let mut node = Node::join(&servers, "node");
    let taken = [node.take(10), node.take(10), node.take(10)];
    let checks = &Cell::new(0);
    let until = |last: u32| {
        checks.set(0);
        move || {
            checks.set(checks.get() + 1);
            let stops = || JournalError::Failed("the node stops".to_owned());
            if checks.get() < last { Ok(()) } else { Err(stops()) }
        }
    };
    let first = node.share_if(&taken[0], &until(u32::MAX)).unwrap();
    let before_list = checks.get();
    for last in 1..=before_list {
        let refused = node.share_if(&taken[1], &until(last)).unwrap_err();
        assert_eq!(refused.to_string(), "the node stops", "{last}");
    }
    assert_eq!(positions(&mut node.shared), [10]);
    assert_eq!(stored(&servers), std::slice::from_ref(&first.name));
    // Listed, and noticed then.
    node.share_if(&taken[1], &until(before_list + 1)).unwrap();
    assert_eq!((positions(&mut node.shared), servers.first_message(LOG)), (vec![20, 10], 1));
    node.share(&taken[2]).unwrap();
    assert!(servers.first_message(LOG) > 1);
}

#[test]
fn a_damaged_archive_is_noticed() {
    let servers = Servers::start(1);
    let mut node = Node::join(&servers, "node");
    let taken = [node.take(3), node.take(3)];
    let older = node.share(&taken[0]).unwrap();
    let newer = node.share(&taken[1]).unwrap();
    let replace = |name: &str, bytes: &[u8]| {
        servers.speak(async |context| {
            let archives = context.get_object_store(format!("{LOG}-snapshots")).await.unwrap();
            archives.put(name, &mut &*bytes).await.unwrap();
        });
    };
    replace(&newer.name, b"something else");
    assert!(matches!(node.shared.read(&newer), Err(JournalError::Damaged(_))));
    check(&older, node.shared.read(&older).unwrap()).unwrap();
    // A chunk with other bytes, under the description of the right ones.
    servers.speak(async |context| {
        let archives = context.get_object_store(format!("{LOG}-snapshots")).await.unwrap();
        let nuid = archives.info(&older.name).await.unwrap().nuid;
        let subject = format!("$O.{LOG}-snapshots.C.{nuid}");
        let stream = context.get_stream(format!("OBJ_{LOG}-snapshots")).await.unwrap();
        let chunk = stream.get_last_raw_message_by_subject(&subject).await.unwrap();
        assert!(stream.delete_message(chunk.sequence).await.unwrap());
        let mut bytes = chunk.payload.to_vec();
        bytes[9] ^= 1;
        context.publish(subject, bytes.into()).await.unwrap().await.unwrap();
    });
    assert!(check(&older, node.shared.read(&older).unwrap()).is_err());
}

/// The stream is gone while its nodes are up. A node with an empty directory must not replace it: the old log's nodes would stop, and
/// codes that they have redeemed would be valid again. Its archives may be the only copy of what was acknowledged.
#[test]
fn empty_node_creates_no_log_where_another_was() {
    let servers = Servers::start(1);
    let mut node = Node::join(&servers, "node");
    let others = [node.take(5), node.take(5)];
    let old = node.share(&others[0]).unwrap();
    drop(node);
    servers.speak(async |context| {
        context.delete_stream(LOG).await.unwrap();
    });
    let impatient = NatsOptions { connect_timeout: Duration::ZERO, ..of(&servers, "empty") };
    let dir = tempfile::tempdir().unwrap();
    let store = || Arc::new(Store::open(dir.path(), &options(Durability::Fsync)).unwrap());
    let Err(rejected) = NatsJournal::open(store(), &impatient) else { panic!("it has created the stream") };
    let why = rejected.to_string();
    assert!(why.contains("OBJ_shop-snapshots") && why.contains("cuckood cluster init"), "{why}");
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
    assert_eq!(node.shared.list().unwrap(), [shared[2].clone(), shared[1].clone()]);
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
    let (dir, impatient) = (
        tempfile::tempdir().unwrap(),
        NatsOptions { connect_timeout: Duration::ZERO, ..of(&servers, "empty") },
    );
    let store = Arc::new(Store::open(dir.path(), &options(Durability::Fsync)).unwrap());
    assert!(NatsJournal::open(store, &impatient).is_err());
}

#[test]
fn a_log_begins_behind_a_snapshot_and_only_once() {
    let servers = Servers::start(1);
    let mut shared = NatsSnapshots::open(&of(&servers, "restore")).unwrap();
    assert!(!shared.has_begun().unwrap());
    let taken = Taken { seq: Seq(500), taken_at: Timestamp(1), place: Vec::new() };
    let begin = |shared: &mut NatsSnapshots| {
        let mut archive = archive(taken.seq);
        shared.begin_log(&taken, &mut || Ok(archive.next()))
    };
    let snapshot = begin(&mut shared).unwrap();
    assert!(shared.has_begun().unwrap());
    assert_eq!(shared.list().unwrap(), std::slice::from_ref(&snapshot));
    assert!(begin(&mut shared).is_err());
    // A node that has not loaded it can't begin.
    assert!(matches!(journal(&servers, "empty"), Err(JournalError::Trimmed(_))));
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(dir.path(), &options(Durability::Fsync)).unwrap());
    shared.adopt(&snapshot, &store).unwrap();
    load(&store, &snapshot);
    let mut node = NatsJournal::open(store, &of(&servers, "node")).unwrap();
    assert_eq!(entries(&mut node, 500).unwrap(), []);
    let committed = append(&mut node, vec![proposal(1, 1)]).unwrap();
    assert_eq!(committed[0].entry.seq, Seq(501));
    // Into a log that has begun otherwise.
    let mut other =
        NatsSnapshots::open(&NatsOptions { stream: "used".to_owned(), ..of(&servers, "restore") });
    let (dir, used) =
        (tempfile::tempdir().unwrap(), NatsOptions { stream: "used".to_owned(), ..of(&servers, "n") });
    let store = Arc::new(Store::open(dir.path(), &options(Durability::Fsync)).unwrap());
    append(&mut NatsJournal::open(store, &used).unwrap(), vec![proposal(1, 1)]).unwrap();
    let refused = begin(other.as_mut().unwrap()).unwrap_err();
    assert!(refused.to_string().contains("not empty"), "{refused}");
}
