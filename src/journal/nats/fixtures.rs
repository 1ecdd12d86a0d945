//! The bytes of the replicated log are final. `tests/fixtures/format-1/stream` has the messages of one session, the place after them, and
//! the label of a snapshot there, as the release build wrote them. Every later build must read and write the same.
//!
//! `cargo test --release --lib fixtures::make_stream -- --ignored` has written them.

use super::message::{self, Body, Message, SessionId};
use super::order::{self, LogId, Place};
use super::peers::Report;
use super::snapshots::{LABEL, SharedSnapshot};
use crate::domain::{
    Command, Digests, Entry, FilterId, IdempotencyKey, KeyName, Proposal, Redeem, RedemptionId, Reference,
    Seq, StateHash, Target, Timestamp,
};
use crate::filter::Digest;
use crate::frame::encode;
use std::fs;
use std::path::{Path, PathBuf};

const FINAL: &str = "the format is final: undo the change, or raise the version in the frame";

const LOG: LogId = LogId(0x0123_4567_89ab_cdef << 64 | 0xfedc);

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/format-1/stream").join(name)
}

fn proposals() -> [Proposal; 2] {
    let (target, at) = (Target(FilterId(300)), Timestamp(1_790_000_000_000));
    let digests = Digests(vec![Digest(1), Digest(u64::MAX)]);
    let insert = Command::Insert { target, digests, if_absent: true, revive: false };
    let redeem = Command::Redeem(Redeem {
        target,
        digest: Digest(1 << 60),
        redemption: RedemptionId([0xab; 16]),
        reference: Reference::new("注文-1").unwrap(),
        hold_seconds: 600,
    });
    let (by, idempotency) = (KeyName::new("shop").unwrap(), IdempotencyKey { scope: 1 << 127, request: 3 });
    [
        Proposal { by: Some(by), idempotency: Some(idempotency), ..Proposal::new(at, insert) },
        Proposal::new(at, redeem),
    ]
}

/// The messages of a session, in order, each with the name of its file.
fn messages() -> [(&'static str, Message); 3] {
    let hash = Some(StateHash { at: Seq(1 << 16), hash: 5 << 100 });
    let report = Report { applied: Seq(70_000), build: "0.1.0".to_owned(), understands: 1, hash };
    let payload = proposals().iter().flat_map(encode).collect();
    let bodies = [
        ("begin", Body::Begin { node: "node-1".to_owned(), read: 0 }),
        ("commit", Body::Commit { entries: 2, payload }),
        ("beat", Body::Beat(report)),
    ];
    let mut number = 0..;
    bodies.map(|(name, body)| {
        (name, Message { session: SessionId(7 << 100 | 9), number: number.next().unwrap(), body })
    })
}

/// The snapshot whose place is this.
fn shared(place: Vec<u8>) -> SharedSnapshot {
    let (name, node) = (format!("{:032x}-{:020}-x", LOG.0, 2), "node-1".to_owned());
    SharedSnapshot { name, seq: Seq(2), taken_at: Timestamp(44), node, bytes: 12_831, place }
}

/// The bytes of each file, as this build writes them.
fn written() -> Vec<(&'static str, Vec<u8>)> {
    let (mut place, mut files) = (Place::default(), Vec::new());
    for (name, message) in messages() {
        let bytes = message::encode(message.session, message.number, &message.body);
        place.read(&message, message::checksum(&bytes)).unwrap().unwrap();
        files.push((name, bytes.to_vec()));
    }
    let place = order::encode(LOG, &place);
    files.extend([("place", place.clone()), ("label", LABEL.pack(&shared(place)))]);
    files
}

#[test]
#[ignore = "writes into the source tree; the format is final"]
fn make_stream() {
    fs::create_dir_all(file("")).unwrap();
    written().into_iter().for_each(|(name, bytes)| fs::write(file(name), bytes).unwrap());
}

#[test]
fn stream_of_release_is_read_and_written() {
    let read = |name| fs::read(file(name)).unwrap();
    let (mut place, mut entries) = (Place::default(), Vec::new());
    for (name, expected) in messages() {
        let bytes = read(name);
        let message =
            message::decode(&bytes, false).unwrap_or_else(|error| panic!("{name}: {error}\n{FINAL}"));
        assert_eq!(message.as_ref(), Some(&expected), "{name}\n{FINAL}");
        entries.extend(place.read(&expected, message::checksum(&bytes)).unwrap().unwrap().1);
    }
    let positions = (1..).zip(proposals()).map(|(seq, proposal)| Entry { seq: Seq(seq), proposal });
    assert_eq!(entries, positions.collect::<Vec<_>>(), "{FINAL}");
    assert_eq!(order::decode(&read("place")), Ok((LOG, place)), "{FINAL}");
    assert_eq!(LABEL.unpack(&read("label")), Ok(shared(read("place"))), "{FINAL}");
    for (name, bytes) in written() {
        assert_eq!(hex::encode(bytes), hex::encode(read(name)), "{name}\n{FINAL}");
    }
}
