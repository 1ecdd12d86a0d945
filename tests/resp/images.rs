//! CF.SCANDUMP and CF.LOADCHUNK: a filter is transferred in chunks, and exists once the last chunk has arrived.

use super::service::{Service, Setup, eventually, key};
use crate::redis_client::{Connection, Reply};
use cuckood::access::{AuthOptions, Scope};
use cuckood_state::domain::{Command, Kind, Name, Outcome, Redeem, Reference, Target};

type Pieces = Vec<(String, Vec<u8>)>;

fn piece(client: &mut Connection, key: &str, iterator: &str) -> (i64, Vec<u8>) {
    match client
        .call(&format!("CF.SCANDUMP {key} {iterator}"))
        .items()
    {
        [Reply::Integer(next), Reply::Bulk(bytes)] if *next > 0 => (*next, bytes.clone()),
        [Reply::Integer(0), Reply::Null] => (0, Vec::new()),
        other => panic!("{other:?}"),
    }
}

fn dump(client: &mut Connection, key: &str) -> Pieces {
    let mut pieces = Vec::new();
    let mut iterator = "0".to_owned();
    loop {
        let (next, bytes) = piece(client, key, &iterator);
        if next == 0 {
            assert!(bytes.is_empty());
            return pieces;
        }
        // Exact in any client's numbers.
        assert!(next > 0 && next < 1 << 53 && !bytes.is_empty() && bytes.len() < 64 << 10);
        iterator = next.to_string();
        pieces.push((iterator.clone(), bytes));
    }
}

fn load(client: &mut Connection, key: &str, (iterator, bytes): &(String, Vec<u8>)) -> Reply {
    client.call_with(&[b"CF.LOADCHUNK", key.as_bytes(), iterator.as_bytes(), bytes])
}

fn load_all(client: &mut Connection, key: &str, pieces: &Pieces) {
    for piece in pieces {
        assert_eq!(load(client, key, piece), Reply::ok());
    }
}

fn fill(client: &mut Connection, key: &str) {
    for first in (0..20_000).step_by(5_000) {
        let items = (first..first + 5_000)
            .map(|number| format!(" u{number}"))
            .collect::<String>();
        client.call(&format!("CF.INSERT {key} ITEMS{items}"));
    }
}

fn found(client: &mut Connection, key: &str) -> Reply {
    let items = (19_000..21_000)
        .map(|number| format!(" u{number}"))
        .collect::<String>();
    client.call(&format!("CF.MEXISTS {key}{items}"))
}

#[test]
fn filter_transfers_in_chunks() {
    let here = Service::start();
    let there = Service::start();
    let from = &mut here.connect();
    let to = &mut there.connect();
    for key in ["spring", "coupon:welcome"] {
        fill(from, key);
        let pieces = dump(from, key);
        assert!(pieces.len() > 2, "{} pieces", pieces.len());
        let (last, first) = pieces.split_last().unwrap();
        for piece in first {
            assert_eq!(load(to, key, piece), Reply::ok());
            // A chunk may be repeated if its reply was lost.
            if piece.0 != first[0].0 {
                assert_eq!(load(to, key, piece), Reply::ok());
            }
            assert_eq!(to.call(&format!("EXISTS {key}")), Reply::Integer(0));
        }
        assert_eq!(load(to, key, last), Reply::ok());
        assert_eq!(found(to, key), found(from, key));
        // On the same service under another name, over another connection for each piece.
        for piece in &pieces {
            assert_eq!(
                load(&mut here.connect(), &format!("{key}-copy"), piece),
                Reply::ok()
            );
        }
        assert_eq!(found(from, &format!("{key}-copy")), found(from, key));
        assert_eq!(load(to, key, &pieces[0]).error(), "ERR item exists");
    }
}

#[test]
fn chunk_is_repeatable_and_excludes_later_writes() {
    let service = Service::start();
    let client = &mut service.connect();
    fill(client, "spring");
    let (second, bytes) = piece(client, "spring", "0");
    let later = || (0..20).map(|number| format!("later{number}"));
    client.call(&format!(
        "CF.INSERT spring ITEMS {}",
        later().collect::<Vec<_>>().join(" ")
    ));
    let (third, more) = piece(client, "spring", &second.to_string());
    assert_eq!(
        piece(client, "spring", &second.to_string()),
        (third, more.clone())
    );
    // Not any earlier one.
    assert!(
        client
            .call("CF.SCANDUMP spring 1")
            .error()
            .starts_with("ERR Invalid position")
    );
    let mut pieces = vec![(second.to_string(), bytes), (third.to_string(), more)];
    let mut iterator = third;
    loop {
        let (next, bytes) = piece(client, "spring", &iterator.to_string());
        if next == 0 {
            break;
        }
        pieces.push((next.to_string(), bytes));
        iterator = next;
    }
    load_all(client, "copy", &pieces);
    assert_eq!(client.call("CF.EXISTS copy u5"), Reply::Integer(1));
    let view = service.view(Kind::Campaign, "copy");
    // Hardly any of them looks like one that was there before.
    let found = later()
        .filter(|item| view.contains(view.digest(item).unwrap(), service.engine.now()))
        .count();
    assert!(found < 5, "{found} later ones");
    // It is over.
    assert!(
        client
            .call(&format!("CF.SCANDUMP spring {iterator}"))
            .error()
            .starts_with("ERR Invalid position")
    );
}

#[test]
fn invalid_chunk_is_rejected() {
    let service = Service::start();
    let client = &mut service.connect();
    fill(client, "spring");
    client.call("CF.ADD summer u1");
    let pieces = dump(client, "spring");
    let others = dump(client, "summer");
    let loading = || service.engine.info().sizes.images_loading;
    let all = pieces.len();
    for at in 0..all {
        let mut damaged = pieces.clone();
        let middle = damaged[at].1.len() / 2;
        damaged[at].1[middle] ^= 1;
        damaged[..at]
            .iter()
            .for_each(|piece| assert_eq!(load(client, "copy", piece), Reply::ok()));
        let error = load(client, "copy", &damaged[at]);
        assert!(
            error
                .error()
                .starts_with("ERR received bad data: a checksum is wrong"),
            "{error:?}"
        );
        assert_eq!(client.call("EXISTS copy"), Reply::Integer(0));
    }
    // A piece that is missing, and one of another dump.
    for (prefix, next) in [(1, &pieces[2]), (2, &others[1])] {
        pieces[..prefix]
            .iter()
            .for_each(|piece| assert_eq!(load(client, "copy", piece), Reply::ok()));
        assert_eq!(loading(), 1);
        let error = load(client, "copy", next);
        assert!(error.error().contains("another image"), "{error:?}");
        assert_eq!(loading(), 0);
        let gone = load(client, "copy", &pieces[prefix]);
        assert!(
            gone.error()
                .starts_with("ERR no dump is being loaded into this key"),
            "{gone:?}"
        );
    }
    let redis = client.call("CF.LOADCHUNK copy 1 \u{1}\u{0}\u{0}\u{0}");
    assert!(
        redis.error().contains("dumps of Redis can't be loaded"),
        "{redis:?}"
    );
    let coupon = load(client, "coupon:copy", &pieces[0]);
    assert!(
        coupon.error().contains("an image of a campaign"),
        "{coupon:?}"
    );
    for (line, wanted) in [
        ("CF.SCANDUMP nowhere 0", "ERR Not found"),
        ("CF.SCANDUMP spring -1", "ERR Invalid position"),
        ("CF.SCANDUMP spring x", "ERR Invalid position"),
        ("CF.LOADCHUNK copy 0 x", "ERR Invalid position"),
        ("CF.LOADCHUNK copy x x", "ERR Invalid position"),
    ] {
        assert_eq!(client.call(line).error(), wanted, "{line}");
    }
    assert!(
        client
            .call("CF.LOADCHUNK Copy 1 x")
            .error()
            .starts_with("ERR a key is")
    );
    let longer = (pieces[0].0.clone(), [&pieces[0].1[..], b"x"].concat());
    assert!(
        load(client, "copy", &longer)
            .error()
            .contains("follow its end")
    );
    // A new start discards earlier chunks.
    load_all(client, "copy", &pieces);
    assert_eq!(found(client, "copy"), found(client, "spring"));
    assert!(
        service
            .engine
            .view()
            .find(Kind::Campaign, &Name::new("copy").unwrap())
            .is_some()
    );
}

#[test]
fn dumps_are_limited_and_require_admin() {
    let keys = vec![
        key("writer", &[Scope::Read, Scope::Write], ""),
        key("root", &[Scope::Admin], ""),
        key("other", &[Scope::Admin], ""),
        key("eu", &[Scope::Admin], "eu-"),
    ];
    let service = Service::with(Setup {
        auth: AuthOptions {
            keys,
            allow_anonymous: false,
        },
        ..Setup::default()
    });
    let as_holder = |key: &str| {
        let mut client = service.connect();
        assert_eq!(client.call(&format!("AUTH {key}")), Reply::ok());
        client
    };
    let root = &mut as_holder("root");
    root.call("CF.ADD spring u1");
    for line in ["CF.SCANDUMP spring 0", "CF.LOADCHUNK spring 1 x"] {
        assert!(
            as_holder("writer").call(line).error().starts_with("NOPERM"),
            "{line}"
        );
        assert!(
            as_holder("eu").call(line).error().starts_with("NOPERM"),
            "{line}"
        );
    }
    let (next, _) = piece(root, "spring", "0");
    let others = as_holder("other").call(&format!("CF.SCANDUMP spring {next}"));
    assert!(
        others.error().starts_with("ERR Invalid position"),
        "{others:?}"
    );
    // Another key's name is no way around.
    root.call("CF.ADD summer u1");
    assert!(
        root.call(&format!("CF.SCANDUMP summer {next}"))
            .error()
            .starts_with("ERR Invalid position")
    );
    let mut others: Vec<_> = (0..3).map(|_| as_holder("root")).collect();
    for other in &mut others {
        piece(other, "spring", "0");
    }
    let fifth = &mut as_holder("root");
    assert!(
        fifth
            .call("CF.SCANDUMP spring 0")
            .error()
            .starts_with("BUSY")
    );
    // One that is gone through makes room.
    let mut iterator = next;
    while iterator != 0 {
        iterator = piece(root, "spring", &iterator.to_string()).0;
    }
    eventually("there is room", || {
        matches!(fifth.call("CF.SCANDUMP spring 0"), Reply::Array(_))
    });
}

/// Images over HTTP use the same places.
#[test]
fn new_dump_replaces_unfinished_one() {
    let service = Service::start();
    let client = &mut service.connect();
    let other = &mut service.connect();
    client.call("CF.ADD spring u1");
    client.call("CF.ADD summer u1");
    let (first, _) = piece(client, "spring", "0");
    for key in ["spring", "campaign:spring"].repeat(5) {
        piece(client, key, "0");
    }
    let replaced = client.call(&format!("CF.SCANDUMP spring {first}"));
    assert!(
        replaced.error().starts_with("ERR Invalid position"),
        "{replaced:?}"
    );
    let id = service.view(Kind::Campaign, "spring").id;
    let images: Vec<_> = (0..3).map(|_| service.download(id).unwrap()).collect();
    assert!(service.download(id).is_err());
    // Dumps of other connections and other filters have places of their own.
    assert!(
        other
            .call("CF.SCANDUMP spring 0")
            .error()
            .starts_with("BUSY")
    );
    assert!(
        client
            .call("CF.SCANDUMP summer 0")
            .error()
            .starts_with("BUSY")
    );
    // A filter that was created again has the same key.
    client.call("DEL spring");
    client.call("CF.ADD spring u2");
    let (next, _) = piece(client, "spring", "0");
    drop(images);
    let last = piece(client, "spring", &next.to_string());
    assert!(!last.1.is_empty());
    piece(other, "spring", "0");
    assert!(
        !piece(client, "spring", &next.to_string()).1.is_empty(),
        "that of another connection stays"
    );
}

#[test]
fn dump_of_empty_filter_has_no_chunk() {
    let service = Service::start();
    let client = &mut service.connect();
    for key in ["spring", "coupon:welcome"] {
        assert_eq!(client.call(&format!("CF.RESERVE {key} 100")), Reply::ok());
        let end = Reply::Array(vec![Reply::Integer(0), Reply::Null]);
        for protocol in [2, 3] {
            client.call(&format!("HELLO {protocol}"));
            assert_eq!(client.call(&format!("CF.SCANDUMP {key} 0")), end, "{key}");
        }
        client.call(&format!("CF.ADD {key} A"));
        assert!(!piece(client, key, "0").1.is_empty());
        client.call(&format!("CF.DEL {key} A"));
        assert_eq!(client.call(&format!("CF.SCANDUMP {key} 0")), end, "{key}");
    }
    // Without codes, but not empty.
    let view = service.view(Kind::Coupon, "welcome");
    client.call("CF.ADD coupon:welcome A");
    let redemption = cuckood_state::domain::RedemptionId(cuckood_log::journal::random());
    let target = Target(view.id);
    let digest = view.digest("A").unwrap();
    let reference = Reference::new("order-1").unwrap();
    let hold = Redeem {
        target,
        digest,
        redemption,
        reference,
        hold_seconds: 60,
    };
    let redeemed = service.submit(Command::Redeem(hold));
    assert!(
        matches!(redeemed.outcome, Outcome::Redeemed(_)),
        "{redeemed:?}"
    );
    service.submit(Command::Cancel { target, redemption });
    client.call("CF.DEL coupon:welcome A");
    assert!(!piece(client, "coupon:welcome", "0").1.is_empty());
}

/// A dump waits for no snapshot of other filters.
#[test]
fn dump_starts_without_snapshot() {
    let service = Service::start();
    let client = &mut service.connect();
    fill(client, "spring");
    assert!(!dump(client, "spring").is_empty());
    let info = service.engine.info();
    assert_eq!(
        (info.snapshot, info.storage.snapshot_bytes_written),
        (None, 0)
    );
}
