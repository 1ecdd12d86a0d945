//! The service's events, compared with the clients' knowledge: every redemption has its event, none has two, no two current ones have the
//! same ordinal, and a restart changes no reported event.

use crate::model::{Filter, Redemption, Status};
use crate::service::Client;
use serde_json::Value;
use std::collections::{HashMap, HashSet, VecDeque};

/// Events that are read again at each look.
const AGAIN: usize = 500;

/// Events that are read at once.
const PAGE: usize = 10_000;

/// All events so far, and their consequences.
#[derive(Clone, Default)]
pub struct Events {
    last: u64,
    /// The last ones as reported.
    lines: VecDeque<(u64, String)>,
    /// The status of each redemption.
    redemptions: HashMap<String, String>,
    /// The owners of an open pool's ordinals, by coupon and ordinal.
    ordinals: HashMap<(String, u64), String>,
    /// The same of coupons that were deleted, and may come back from an image.
    moved: HashMap<(String, u64), String>,
    /// Campaigns and coupons that are there.
    standing: HashSet<String>,
    /// Imports that are done.
    done: HashSet<String>,
}

impl Events {
    /// Reads the events since the last call, and some earlier ones again.
    pub fn read(&mut self, client: &Client) {
        let mut again = self.lines.clone();
        let mut after = again.front().map_or(0, |(seq, _)| seq - 1);
        loop {
            let answer = client.text(&format!("/v1/events?after={after}&limit={PAGE}"));
            let (status, text) = answer.expect("the service is up");
            assert_eq!(status, 200, "{text}");
            if text.is_empty() {
                break;
            }
            for line in text.lines() {
                let event: Value = serde_json::from_str(line).expect("an event is JSON");
                after = event["seq"].as_u64().expect("an event has a number");
                match again.pop_front() {
                    Some((_, reported)) => {
                        assert_eq!(line, reported, "this event was another one before")
                    }
                    None => self.take(after, line, &event),
                }
            }
        }
        assert!(again.is_empty(), "reported events are missing: {again:?}");
    }

    fn take(&mut self, seq: u64, line: &str, event: &Value) {
        let name = event["event"].as_str().expect("an event has a name");
        let follows = if name == "backup.restored" {
            seq > self.last
        } else {
            seq == self.last + 1
        };
        assert!(follows, "after event {}: {line}", self.last);
        self.last = seq;
        self.lines.push_back((seq, line.to_owned()));
        if self.lines.len() > AGAIN {
            self.lines.pop_front();
        }
        let target = ["campaign", "coupon"]
            .map(|kind| event[kind].as_str().map(|name| format!("{kind} {name}")));
        let target = target.into_iter().flatten().next().unwrap_or_default();
        let fits = match name.split_once('.') {
            Some(("campaign" | "coupon", "created")) => self.standing.insert(target),
            Some(("campaign" | "coupon", "deleted")) => {
                self.moved
                    .extend(self.ordinals.extract_if(|(coupon, _), _| *coupon == target));
                self.standing.remove(&target)
            }
            Some(("redemption", step)) => {
                let id = event["id"]
                    .as_str()
                    .expect("a redemption has an id")
                    .to_owned();
                let status = event["status"]
                    .as_str()
                    .expect("a redemption has a status")
                    .to_owned();
                let has_its_number = event["ordinal"].as_u64().is_none_or(|ordinal| {
                    let number = (target, ordinal);
                    match step {
                        "created" => self.ordinals.insert(number, id.clone()).is_none(),
                        "cancelled" | "expired" => {
                            let of = self
                                .ordinals
                                .remove(&number)
                                .or_else(|| self.moved.remove(&number));
                            of.is_some_and(|of| of == id)
                        }
                        _ => {
                            self.ordinals
                                .get(&number)
                                .or_else(|| self.moved.get(&number))
                                == Some(&id)
                        }
                    }
                });
                let before = self.redemptions.insert(id, status);
                follows_on(before.as_deref(), step) && has_its_number
            }
            Some(("import", "ended")) if event["state"] == "done" => self.done.insert(
                event["import"]
                    .as_str()
                    .expect("an import has an id")
                    .to_owned(),
            ),
            _ => self.standing.contains(&target) || target.is_empty(),
        };
        assert!(fits, "this can't have happened now: {line}");
    }

    /// A filter's events equal its client's knowledge.
    pub fn compare(&self, filter: &Filter) -> Result<(), String> {
        let kind = if filter.kind.is_coupon() {
            "coupon"
        } else {
            "campaign"
        };
        if self.standing.contains(&format!("{kind} {}", filter.name)) != filter.stands {
            return Err(format!(
                "events say that it is {}there",
                if filter.stands { "not " } else { "" }
            ));
        }
        for redemption in filter.redemptions.iter().filter(|_| filter.stands) {
            self.compare_redemption(redemption)?;
        }
        Ok(())
    }

    fn compare_redemption(&self, redemption: &Redemption) -> Result<(), String> {
        let reported = self
            .redemptions
            .get(redemption.id.as_ref().expect("it was found"));
        let right = match (reported.map(String::as_str), redemption.status) {
            (Some("redeemed"), Status::Redeemed) | (Some("cancelled"), Status::Cancelled) => true,
            // The log says that a hold has run out when it next has an entry.
            (Some("held" | "expired"), Status::Held | Status::Expired) => true,
            _ => false,
        };
        if right {
            Ok(())
        } else {
            Err(format!("events say {reported:?} of {redemption:?}"))
        }
    }

    /// A redemption that was never cancelled.
    pub fn assert_redeemed(&self, id: &str) {
        assert_eq!(
            self.redemptions.get(id).map(String::as_str),
            Some("redeemed"),
            "of redemption {id}"
        );
    }
}

/// Whether a step may be taken from a status; `None` before the first.
fn follows_on(before: Option<&str>, step: &str) -> bool {
    match step {
        "created" => before.is_none(),
        "extended" | "confirmed" | "expired" => before == Some("held"),
        "cancelled" => matches!(before, Some("held" | "redeemed")),
        _ => false,
    }
}
