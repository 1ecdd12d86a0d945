//! The running hash, by which nodes compare their states, is the same in every build.

use cuckood_state::State;
use cuckood_state::domain::{
    Command, Digests, Ending, Entry, FilterId, Forget, Guards, IdempotencyKey, ImportBegin,
    ImportEnd, ImportId, ImportLines, ImportMode, KeyName, Kind, LineUp, Proposal, PutLineUp,
    Redeem, RedemptionId, Reference, Seq, Settings, Target, Timestamp, Unless, UnlessReach, Update,
    UploadDigest, UploadId, Window,
};
use cuckood_state::testing::commands::{
    NewFilter, code, codes, insert, name, remove, replace, set_stock, target,
};
use cuckood_state::testing::filter_image::Image;
use cuckood_state::testing::machine::Snapshot;

const CAMPAIGN: Target = target(1);
const COUPON: Target = target(2);
const POOL: Target = target(3);

fn redemption(number: u8) -> RedemptionId {
    RedemptionId([number; 16])
}

/// A campaign that forgets, a coupon and an open pool.
fn filters() -> [Command; 3] {
    let window = Window {
        starts_at: None,
        ends_at: Some(Timestamp(9_000_000)),
    };
    let forget = Some(Forget::new(60, 4).unwrap());
    [
        NewFilter {
            forget,
            window,
            ..NewFilter::campaign(100, 0.01)
        }
        .create(CAMPAIGN),
        NewFilter {
            window,
            ..NewFilter::coupon(64)
        }
        .create(COUPON),
        NewFilter {
            window,
            ..NewFilter::pool(5, 5)
        }
        .create(POOL),
    ]
}

fn redeem(target: Target, number: u8, hold_seconds: u64) -> Command {
    let reference = Reference::new(&format!("order-{number}")).unwrap();
    let digest = code(number.into());
    let redemption = redemption(number);
    Command::Redeem(Redeem {
        target,
        digest,
        redemption,
        reference,
        hold_seconds,
    })
}

fn import(mode: ImportMode, id: &str, digests: Digests) -> [Command; 3] {
    let target = COUPON;
    let import = ImportId::new(id).unwrap();
    let lines = digests.0.len() as u64;
    let guards = Guards::default();
    let owner = KeyName::new("shop").unwrap();
    let upload = UploadDigest {
        bytes: 700,
        hash: 9,
    };
    let ending = Ending::Whole {
        upload,
        warnings: Vec::new(),
    };
    let errors = Vec::new();
    let chain = 7;
    let rejected = 0;
    [
        Command::ImportBegin(ImportBegin {
            target,
            import: import.clone(),
            mode,
            if_absent: false,
            guards,
            owner,
            is_named: true,
        }),
        Command::ImportLines(ImportLines {
            target,
            import: import.clone(),
            digests,
            lines,
            rejected,
            errors,
            chain,
        }),
        Command::ImportEnd(ImportEnd {
            target,
            import,
            ending,
            entries_max: 1_000,
        }),
    ]
}

/// Commands of every kind, some of which are refused.
fn script() -> Vec<Command> {
    let settings = Settings {
        redemptions_retention_seconds: 90,
        ..Settings::default()
    };
    let mut script = vec![Command::Configure(settings), Command::Enable { version: 1 }];
    script.extend(filters());
    script.extend([
        insert(CAMPAIGN, 0..150),
        insert(COUPON, 0..120),
        insert(POOL, [0]),
        insert(target(9), [0]),
    ]);
    script.extend((0..6).map(|number| redeem(COUPON, number, 0)));
    script.extend((6..12).map(|number| redeem(COUPON, number, 30)));
    script.extend((1..8).map(|number| redeem(POOL, number, 0)));
    script.extend([
        redeem(COUPON, 0, 0),
        Command::Confirm {
            target: COUPON,
            redemption: redemption(6),
        },
        Command::Cancel {
            target: COUPON,
            redemption: redemption(7),
        },
        Command::Cancel {
            target: COUPON,
            redemption: redemption(1),
        },
        Command::Remove {
            target: CAMPAIGN,
            digests: codes(0..20),
            all: true,
        },
        remove(COUPON, 100..130),
        replace(COUPON, 40..44, 200..204),
        Command::Advance { buckets_max: 50 },
    ]);
    script.extend(import(ImportMode::Append, "more", codes(300..340)));
    script.extend(import(ImportMode::Replace, "others", codes(400..480)));
    let unless = Unless {
        campaign: name("f1"),
        at_least: 1,
        reach: UnlessReach {
            only_for: None,
            is_required: false,
        },
    };
    let line_up = LineUp {
        unless: vec![unless],
        campaigns: vec![name("f1")],
        limit: 1,
    };
    let mut update = set_stock(POOL, 9);
    if let Command::Update(Update { ends_at, .. }) = &mut update {
        *ends_at = Some(None);
    }
    script.extend([
        Command::PutLineUp(PutLineUp {
            name: name("home"),
            line_up,
            annotations: Default::default(),
        }),
        Command::DeleteLineUp { name: name("none") },
        Command::Clear { target: COUPON },
        update,
        Command::Restored {
            clock: Timestamp(1),
        },
        Command::TurnBack,
        Command::Delete {
            kind: Kind::Coupon,
            name: name("f3"),
        },
        Command::ImageAbandon {
            upload: UploadId(5),
        },
    ]);
    script
}

/// Applies commands, each some time after the one before, some of them twice under one idempotency key.
fn apply_all(state: &mut State, commands: Vec<Command>) {
    for command in commands {
        let seq = state.applied().next();
        let back = if command == Command::TurnBack {
            50_000
        } else {
            0
        };
        let at = Timestamp(1_000_000 + seq.0 * 3_000 - back);
        let key = IdempotencyKey {
            scope: u128::from(seq.0 / 2),
            request: 1,
        };
        let idempotency = (seq.0 % 5 < 2).then_some(key);
        let by = seq
            .0
            .is_multiple_of(3)
            .then(|| KeyName::new("shop").unwrap());
        state.apply(Entry {
            seq,
            proposal: Proposal {
                by,
                idempotency,
                ..Proposal::new(at, command)
            },
        });
    }
}

/// If this fails, nodes of this build have another hash than those of the last release for the same log: in a cluster of both, the fewer stop.
///
/// - If `apply` has changed an outcome or a count: add a `Meaning` of the version of entries that is not released yet, and only do the new
///   behavior where that is enabled. So this script, which enables nothing new, gives the same hash as before.
/// - If the encoding of an entry or an outcome has changed: the same. A new command goes to the end of its `enum`; a field is not added to an old one.
/// - If only this script was changed: put the new hash here, in a commit that changes nothing under `src/`.
#[test]
fn log_produces_golden_hash() {
    let mut state = State::default();
    apply_all(&mut state, script());
    let image = Image::of(&mut state, FilterId(2));
    let copy = image.all(UploadId(7), FilterId(20), &name("copy"));
    apply_all(&mut state, copy);
    assert_eq!(
        (state.applied(), state.hash().hash),
        (Seq(54), 136_105_631_717_646_780_009_384_535_968_199_068_601)
    );
}

/// A compact filter that grows a thousandfold, so that tables are copied, loses much, and is left alone.
fn script_of_growth() -> Vec<Command> {
    let window = Window {
        starts_at: None,
        ends_at: Some(Timestamp(9_000_000)),
    };
    let campaign = NewFilter {
        window,
        ..NewFilter::campaign(200, 0.01)
    };
    let mut script = vec![campaign.create(CAMPAIGN)];
    let insert = |from: u64, count: u64| insert(CAMPAIGN, from..from + count);
    script.extend((0..200).map(|number| insert(number * 1_000, 1_000)));
    script.extend([
        insert(200_000, 500),
        Command::Advance { buckets_max: 700 },
        insert(300_000, 300),
    ]);
    let remove = |from: u64, count: u64| remove(CAMPAIGN, from..from + count);
    script.extend((0..199).map(|number| remove(number * 1_000, 1_000)));
    script.extend([remove(199_000, 400), remove(199_400, 500)]);
    script.extend((0..60).map(|_| Command::Advance { buckets_max: 4_096 }));
    script
}

/// As [`log_produces_golden_hash`], for a filter that grows. A node that starts with a snapshot in the middle of a copy continues
/// as the others do.
#[test]
fn doubled_filters_are_identical_on_nodes() {
    let mut state = State::default();
    let mut restored = State::default();
    let mut moving = 0;
    let mut quiet = 0;
    for command in script_of_growth() {
        apply_all(&mut state, vec![command.clone()]);
        apply_all(&mut restored, vec![command]);
        assert_eq!(state.hash(), restored.hash());
        assert_eq!(state.can_advance(), restored.can_advance());
        moving += u32::from(state.can_advance());
        quiet = if state.can_advance() { 0 } else { quiet + 1 };
        if state.can_advance() && moving % 8 == 0 {
            restored = Snapshot::of(&mut restored).restore();
        }
    }
    assert!(
        moving >= 4 && quiet > 10,
        "{moving} commands left something to move, {quiet} did not in the end"
    );
    assert_eq!(
        (state.applied(), state.hash().hash),
        (Seq(465), 72_571_254_844_159_391_242_156_109_953_004_297_529)
    );
}
