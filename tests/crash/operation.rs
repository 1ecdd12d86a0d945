//! A client's operation on a filter, its request, and whether the response is the one that the model expects.

use crate::model::{Filter, Item, Kind, Redemption, STOCK, Status};
use crate::service::{Answer, Client};
use serde_json::{Value, json};
use std::io::Cursor;

/// One request, which may have to be sent twice.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    Create,
    Delete,
    /// The image that was downloaded before the filter was deleted brings it back.
    PutImage,
    Add {
        items: Vec<Item>,
        revive: bool,
    },
    Remove {
        items: Vec<Item>,
        all: bool,
    },
    Replace {
        pairs: Vec<(Item, Item)>,
    },
    Clear,
    /// Of the capacity, or an attempt to lower it.
    Raise {
        capacity: u64,
    },
    /// Another stock of an open pool.
    Restock {
        stock: u64,
    },
    Redeem {
        code: Item,
        reference: String,
        hold_seconds: u64,
    },
    Confirm {
        redemption: usize,
    },
    Cancel {
        redemption: usize,
    },
    /// An import that adds.
    Append {
        id: String,
        items: Vec<Item>,
    },
    /// A whole replacement that does not keep to its guard.
    Guarded {
        id: String,
        items: Vec<Item>,
    },
    /// The end of an upload that replaces, which is sent on the upload's own connection.
    Swap,
}

/// The model's expected response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Expected {
    Status(u16),
    Refused(u16, &'static str),
    Outcomes(Vec<&'static str>),
    Cleared(u64),
    /// Or, where a compact filter has no further segments of this size, the capacity is as before.
    Raised {
        before: u64,
        capacity: u64,
    },
    Restocked {
        stock: u64,
    },
    /// As the model has the redemption of this index.
    Redemption {
        status: u16,
        index: usize,
    },
    Appended {
        added: u64,
        already_present: u64,
        already_redeemed: u64,
    },
    Swapped {
        lines: u64,
    },
}

impl Operation {
    /// The items that it names.
    pub fn items(&self) -> Vec<Item> {
        match self {
            Operation::Add { items, .. }
            | Operation::Remove { items, .. }
            | Operation::Append { items, .. }
            | Operation::Guarded { items, .. } => items.clone(),
            Operation::Replace { pairs } => {
                pairs.iter().flat_map(|&(from, to)| [from, to]).collect()
            }
            Operation::Redeem { code, .. } => vec![*code],
            _ => Vec::new(),
        }
    }

    /// Whether it adds or removes items.
    pub fn changes_items(&self) -> bool {
        match self {
            Operation::Add { .. }
            | Operation::Remove { .. }
            | Operation::Replace { .. }
            | Operation::Append { .. }
            | Operation::Guarded { .. }
            | Operation::Swap => true,
            Operation::Create
            | Operation::Delete
            | Operation::PutImage
            | Operation::Clear
            | Operation::Raise { .. }
            | Operation::Restock { .. }
            | Operation::Redeem { .. }
            | Operation::Confirm { .. }
            | Operation::Cancel { .. } => false,
        }
    }

    /// Whether a key makes it safe to repeat. Imports have an id; an image is never put over a filter.
    pub fn takes_key(&self) -> bool {
        !matches!(
            self,
            Operation::Append { .. }
                | Operation::Guarded { .. }
                | Operation::Swap
                | Operation::PutImage
        )
    }

    /// Whether it is rejected while others of its kind are in progress.
    pub fn may_have_to_wait(&self) -> bool {
        matches!(self, Operation::PutImage | Operation::Clear)
    }

    /// The item that an outcome is about.
    pub fn item(&self, outcome: usize) -> Option<Item> {
        match self {
            Operation::Replace { pairs } => pairs.get(outcome).map(|&(from, _)| from),
            _ => self.items().get(outcome).copied(),
        }
    }

    pub fn send(
        &self,
        filter: &Filter,
        client: &Client,
        key: Option<&str>,
    ) -> Result<Answer, ureq::Error> {
        let path = filter.path();
        let (list, field) = filter.words();
        let key = key.map(|key| ("Idempotency-Key", key));
        let send = |method: &str, path: &str, body: &Value| {
            let headers: Vec<_> = key
                .into_iter()
                .chain([("Content-Type", "application/json")])
                .collect();
            let body = if body.is_null() {
                Vec::new()
            } else {
                body.to_string().into_bytes()
            };
            client.send(method, path, &headers, &body)
        };
        let post = |end: &str, body: Value| send("POST", &format!("{path}/{end}"), &body);
        match self {
            Operation::Create => send("PUT", &path, &filter.spec()),
            Operation::Delete => send("DELETE", &format!("{path}?force=true"), &Value::Null),
            Operation::PutImage => {
                let image = filter
                    .image
                    .as_ref()
                    .expect("only an image that was downloaded is put");
                let headers = [("Content-Type", "application/octet-stream")];
                client.send("PUT", &format!("{path}/image"), &headers, &image.bytes)
            }
            Operation::Add {
                items,
                revive: false,
            } => post(list, json!({ field: filter.names(items) })),
            Operation::Add {
                items,
                revive: true,
            } => post(list, json!({ field: filter.names(items), "revive": true })),
            Operation::Remove { items, all: false } => post(
                &format!("{list}/remove"),
                json!({ field: filter.names(items) }),
            ),
            Operation::Remove { items, all: true } => post(
                &format!("{list}/remove"),
                json!({ field: filter.names(items), "all": true }),
            ),
            Operation::Replace { pairs } => {
                let pair =
                    |&(from, to)| json!({ "from": filter.item(from), "to": filter.item(to) });
                let pairs: Vec<_> = pairs.iter().map(pair).collect();
                post(&format!("{list}/replace"), json!({ "replacements": pairs }))
            }
            Operation::Clear => post("clear", json!({})),
            Operation::Raise { capacity } => send("PATCH", &path, &json!({ "capacity": capacity })),
            Operation::Restock { stock } => send("PATCH", &path, &json!({ "stock": stock })),
            Operation::Redeem {
                code,
                reference,
                hold_seconds,
            } => {
                let code = filter.item(*code);
                let body =
                    json!({ "code": code, "reference": reference, "hold_seconds": hold_seconds });
                post("redemptions", body)
            }
            Operation::Confirm { redemption } => post(
                &format!("redemptions/{}/confirm", filter.redemption_id(*redemption)),
                json!({}),
            ),
            Operation::Cancel { redemption } => post(
                &format!("redemptions/{}/cancel", filter.redemption_id(*redemption)),
                json!({}),
            ),
            Operation::Append { id, items } => {
                let path = format!("{path}/imports?mode=append&id={id}");
                client.import(&path, Cursor::new(filter.lines(items)))
            }
            Operation::Guarded { id, items } => {
                let path = format!("{path}/imports?mode=replace&min_items=1000000&id={id}");
                client.import(&path, Cursor::new(filter.lines(items)))
            }
            Operation::Swap => unreachable!("an upload is ended where it was begun"),
        }
    }
}

impl Expected {
    /// Which outcome is not as it was expected; the first if there is only one.
    pub fn first_difference(&self, answer: &Answer) -> Option<usize> {
        match (self, answer.body["outcomes"].as_array()) {
            (Expected::Outcomes(wanted), Some(found)) => {
                wanted.iter().zip(found).position(|(w, f)| f != w)
            }
            (Expected::Redemption { .. }, _) => Some(0),
            _ => None,
        }
    }

    /// The expected response to two pieces of an import together.
    pub fn plus(self, other: Expected) -> Expected {
        match (self, other) {
            (
                Expected::Appended {
                    added,
                    already_present,
                    already_redeemed,
                },
                Expected::Appended {
                    added: a,
                    already_present: p,
                    already_redeemed: r,
                },
            ) => Expected::Appended {
                added: added + a,
                already_present: already_present + p,
                already_redeemed: already_redeemed + r,
            },
            (_, other) => other,
        }
    }
}

impl Filter {
    pub fn path(&self) -> String {
        let kinds = if self.kind.is_coupon() {
            "coupons"
        } else {
            "campaigns"
        };
        format!("/v1/{kinds}/{}", self.name)
    }

    /// Small, so that it grows all the time. Compact: so exact that a stranger is hardly ever taken for a member.
    pub fn spec(&self) -> Value {
        let capacity = self.kind.capacity();
        match self.kind {
            Kind::CompactCampaign => json!({ "capacity": capacity, "error_rate": 0.000_000_5 }),
            Kind::StrictCampaign | Kind::Coupon => {
                json!({ "capacity": capacity, "mode": "strict" })
            }
            Kind::OpenPool => json!({ "capacity": capacity, "stock": STOCK }),
        }
    }

    /// What its items are called: in paths and bodies.
    pub fn words(&self) -> (&'static str, &'static str) {
        if self.kind.is_coupon() {
            ("codes", "codes")
        } else {
            ("users", "users")
        }
    }

    /// An item as the service gets it.
    pub fn item(&self, item: Item) -> String {
        format!("{}-{item}", self.prefix)
    }

    pub fn names(&self, items: &[Item]) -> Vec<String> {
        items.iter().map(|&item| self.item(item)).collect()
    }

    /// The text of an import.
    pub fn lines(&self, items: &[Item]) -> String {
        items.iter().map(|&item| self.item(item) + "\n").collect()
    }

    fn redemption_id(&self, index: usize) -> &str {
        self.redemptions[index]
            .id
            .as_deref()
            .expect("only redemptions that were answered are spoken of")
    }

    /// Whether the answer is the expected one. What only the service knows is learned from it.
    ///
    /// # Errors
    /// What else was expected.
    pub fn accept(&mut self, expected: &Expected, answer: &Answer) -> Result<(), String> {
        let body = &answer.body;
        let right = match expected {
            Expected::Status(status) => answer.status == *status,
            Expected::Refused(status, code) => answer.status == *status && body["code"] == *code,
            Expected::Outcomes(outcomes) => {
                answer.status == 200 && body["outcomes"] == json!(outcomes)
            }
            Expected::Cleared(removed) => answer.status == 200 && body["removed"] == *removed,
            Expected::Raised { before, .. }
                if self.kind == Kind::CompactCampaign && answer.status == 422 =>
            {
                self.capacity = *before;
                body["errors"][0]["pointer"] == "/capacity"
            }
            Expected::Raised { capacity, .. } => {
                answer.status == 200 && body["capacity"] == *capacity
            }
            Expected::Restocked { stock } => answer.status == 200 && body["stock"] == *stock,
            Expected::Redemption { status, index } => {
                let redemption = &mut self.redemptions[*index];
                redemption.learn(body);
                answer.status == *status && redemption.is_shown_as(body)
            }
            Expected::Appended {
                added,
                already_present,
                already_redeemed,
            } => {
                let counts = [
                    &body["added"],
                    &body["already_present"],
                    &body["already_redeemed"],
                ];
                let state = answer.status == 200 && body["state"] == "done";
                state && counts == [*added, *already_present, *already_redeemed]
            }
            Expected::Swapped { lines } => {
                answer.status == 200 && body["state"] == "done" && body["lines"] == *lines
            }
        };
        if right {
            Ok(())
        } else {
            Err(format!("expected {expected:?}, answered {answer:?}"))
        }
    }
}

impl Redemption {
    /// Takes over from an answer what only the service can know.
    pub fn learn(&mut self, body: &Value) {
        if self.id.is_none() {
            self.id = body["id"].as_str().map(str::to_owned);
        }
        if let Some(at) = milliseconds(&body["expires_at"]).filter(|at| *at >= self.expires_at)
            && !self.is_exact
        {
            (self.expires_at, self.is_exact) = (at, true);
        }
    }

    pub fn is_shown_as(&self, body: &Value) -> bool {
        let stands = matches!(self.status, Status::Held | Status::Redeemed);
        if body["ordinal"].as_u64() != self.ordinal.filter(|_| stands) {
            return false;
        }
        let status = match self.status {
            Status::Held if milliseconds(&body["expires_at"]) != Some(self.expires_at) => {
                return false;
            }
            Status::Held => "held",
            Status::Redeemed => "redeemed",
            Status::Cancelled => "cancelled",
            Status::Expired => "expired",
        };
        body["status"] == status
            && body["reference"] == *self.reference
            && body["id"].as_str() == self.id.as_deref()
    }
}

/// A point in time, since 1970.
fn milliseconds(value: &Value) -> Option<i64> {
    Some(
        value
            .as_str()?
            .parse::<jiff::Timestamp>()
            .ok()?
            .as_millisecond(),
    )
}
