//! A data directory with entries of a wrong clock: the program reports it once, and `repair clock` fixes it.

use crate::manual_time::ManualTime;
use crate::program;
use crate::service::Service;
use cuckood::clock::{ClockLimits, system_reading};
use cuckood::config::Config;
use cuckood::engine::Engine;
use cuckood_filter::{Growth, Mode};
use cuckood_state::domain::{
    Command as Change, Digests, Kind, Name, Normalization, Outcome, Redeem, RedemptionStatus,
    Reference, Sizing, Spec, Target,
};
use cuckood_state::domain::{Timestamp, Window};
use serde_json::json;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

const DAY: u64 = 86_400;

/// An engine whose clock is set by hand.
struct Past {
    engine: Engine,
    time: Arc<ManualTime>,
    target: Target,
}

impl Past {
    /// A coupon with a few codes, made by a clock that is right.
    async fn new(data: &Path, now: Timestamp) -> Past {
        let time = Arc::new(ManualTime::at(now));
        let path = data.to_str().unwrap();
        let options = Config::load(None, [("CUCKOOD__STORAGE__PATH", path)])
            .unwrap()
            .engine_options();
        let engine = Engine::start(options, time.clock(far()));
        engine.recovered().await;
        let spec = Spec {
            capacity: 100,
            mode: Mode::Strict,
            growth: Growth::Auto,
            sizing: Sizing::Exact,
            normalization: Normalization::Exact,
            supply: Default::default(),
            forget: None,
        };
        let name = Name::new("shop").unwrap();
        let creation = cuckood::engine::creation(
            Kind::Coupon,
            name.clone(),
            spec,
            Window::default(),
            Default::default(),
        )
        .unwrap();
        let Change::Create { id, .. } = creation else {
            unreachable!()
        };
        let past = Past {
            engine,
            time,
            target: Target(id),
        };
        past.submit(creation).await;
        let view = past.engine.view().find(Kind::Coupon, &name).unwrap();
        let digests = Digests(
            ["a", "b", "c", "d"]
                .map(|code| view.digest(code).unwrap())
                .to_vec(),
        );
        past.submit(Change::Insert {
            target: past.target,
            digests,
            if_absent: false,
            revive: false,
        })
        .await;
        past
    }

    async fn submit(&self, command: Change) -> Outcome {
        self.engine
            .submit(None, command, None)
            .await
            .unwrap()
            .outcome
    }

    /// Redeems or holds a code; the redemption's path.
    async fn redeem(&self, code: &str, hold_seconds: u64) -> String {
        let digest = self
            .engine
            .view()
            .find(Kind::Coupon, &Name::new("shop").unwrap())
            .unwrap()
            .digest(code)
            .unwrap();
        let redemption = cuckood_state::domain::RedemptionId(cuckood_log::journal::random());
        let reference = Reference::new(&format!("order-{code}")).unwrap();
        let command = Change::Redeem(Redeem {
            target: self.target,
            digest,
            redemption,
            reference,
            hold_seconds,
        });
        let outcome = self.submit(command).await;
        assert!(
            matches!(&outcome, Outcome::Redeemed(redemption) if redemption.status != RedemptionStatus::Expired),
            "{outcome:?}"
        );
        format!("/v1/coupons/shop/redemptions/{redemption}")
    }
}

/// Limits that no clock should have: entries of an older version.
fn far() -> ClockLimits {
    let ever = std::time::Duration::from_secs(10_000 * DAY);
    ClockLimits {
        jump_max: ever,
        stop_max: ever,
    }
}

fn repair(data: &Path) -> String {
    let done = Command::new(program())
        .args(["repair", "clock"])
        .arg(data)
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    String::from_utf8(done.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn log_ahead_of_clock_is_reported_and_repaired() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let now = system_reading().wall;
    let past = Past::new(&data, Timestamp(now.0 - 2 * DAY * 1_000)).await;
    let held = past.redeem("a", 7 * DAY).await;
    let used = past.redeem("b", 0).await;
    // Far ahead for one hold: it expires all earlier ones, and forgets ended ones after their retention.
    past.time.set_wall(now.plus_seconds(365 * DAY));
    let held_then = past.redeem("c", 900).await;
    past.engine.shutdown().await;
    drop(past);

    let service = Service::start(program(), &data, &[]);
    let client = service.client();
    crate::until("the service tells of its clock", || {
        client
            .get("/readyz")
            .is_ok_and(|answer| answer.body["writes"] == "clock-unsure")
    });
    let code = json!({ "codes": ["more"] });
    for _ in 0..3 {
        let refusal = client.post("/v1/coupons/shop/codes", &code).unwrap();
        assert_eq!(
            (refusal.status, &refusal.body["code"]),
            (503, &json!("clock-unsure")),
            "{refusal:?}"
        );
    }
    let output = service.output().clone();
    service.terminate();
    let told = output
        .whole()
        .iter()
        .filter(|line| line.contains("can't be trusted"))
        .count();
    assert_eq!(told, 1, "{:?}", output.whole());

    let report = repair(&data);
    for words in [
        "turns the time back",
        "active again: 1 hold that had expired too early",
        "can be started",
    ] {
        assert!(report.contains(words), "{words} is missing in\n{report}");
    }
    // Twice is no more than once.
    assert!(repair(&data).contains("nothing to repair"));

    let service = Service::start_ready(program(), &data, &[]);
    let client = service.client();
    assert_eq!(
        client.post("/v1/coupons/shop/codes", &code).unwrap().status,
        200
    );
    assert_eq!(client.get(&held).unwrap().body["status"], "held");
    assert_eq!(client.get(&used).unwrap().status, 404);
    let again = json!({ "code": "b", "reference": "order-8" });
    assert_eq!(
        client
            .post("/v1/coupons/shop/redemptions", &again)
            .unwrap()
            .body["code"],
        "code-redeemed"
    );
    let held_then = client.get(&held_then).unwrap().body;
    assert_eq!(held_then["status"], "held");
    let ends: jiff::Timestamp = held_then["expires_at"].as_str().unwrap().parse().unwrap();
    let ends = u64::try_from(ends.as_millisecond()).unwrap();
    assert!(
        (now.0..now.plus_seconds(3_600).0).contains(&ends),
        "{held_then}"
    );
    let other = json!({ "code": "a", "reference": "order-9" });
    assert_eq!(
        client
            .post("/v1/coupons/shop/redemptions", &other)
            .unwrap()
            .body["code"],
        "code-held"
    );
    assert_eq!(service.terminate().code(), Some(0));
}

#[test]
fn foreign_directory_is_left_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let done = Command::new(program())
        .args(["repair", "clock"])
        .arg(directory.path())
        .output()
        .unwrap();
    assert_eq!(done.status.code(), Some(1));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}
