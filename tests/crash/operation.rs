//! What a client asks for, what the service must answer, and how to see that it was done whole or not at all.

use crate::service::{Answer, Client};
use crate::worker::Redeemed;
use serde_json::{Value, json};
use std::io::Cursor;

/// One request, which may have to be sent twice.
#[derive(Clone)]
pub enum Operation {
    AddStrict(Vec<String>),
    AddCompact(Vec<String>),
    RemoveStrict(Vec<String>),
    RemoveCompact(Vec<String>),
    AddCodes(Vec<String>),
    Redeem { code: String, reference: String },
    Compete { code: String, reference: String },
    Cancel(Redeemed),
    Withdraw(Vec<String>),
    Create(String),
    Delete(String),
    Import { id: String, users: Vec<String> },
    Snapshot,
}

/// What the answer came to.
#[derive(Debug)]
pub enum Done {
    Yes,
    Redeemed(String),
    /// Somebody else was first.
    Lost,
}

impl Operation {
    pub fn perform(&self, client: &Client, key: &str) -> Result<Answer, ureq::Error> {
        let body = match self {
            Operation::AddStrict(users)
            | Operation::AddCompact(users)
            | Operation::RemoveStrict(users)
            | Operation::RemoveCompact(users) => json!({ "users": users }),
            Operation::AddCodes(codes) | Operation::Withdraw(codes) => json!({ "codes": codes }),
            Operation::Create(_) => return client.put_once(&self.path(), &json!({ "capacity": 500 }), key),
            Operation::Delete(_) => return client.delete_once(&self.path(), key),
            Operation::Redeem { code, reference } | Operation::Compete { code, reference } => {
                json!({ "code": code, "reference": reference })
            }
            Operation::Import { users, .. } => {
                let lines = users.iter().map(|user| format!("{user}\n")).collect::<String>();
                return client.import(&self.path(), Cursor::new(lines));
            }
            Operation::Snapshot => return client.post(&self.path(), &json!({})),
            Operation::Cancel(_) => json!({}),
        };
        client.post_once(&self.path(), &body, key)
    }

    fn path(&self) -> String {
        match self {
            Operation::AddStrict(_) => "/v1/campaigns/strict/users".into(),
            Operation::AddCompact(_) => "/v1/campaigns/compact/users".into(),
            Operation::RemoveStrict(_) => "/v1/campaigns/strict/users/remove".into(),
            Operation::RemoveCompact(_) => "/v1/campaigns/compact/users/remove".into(),
            Operation::AddCodes(_) => "/v1/coupons/codes/codes".into(),
            Operation::Withdraw(_) => "/v1/coupons/codes/codes/remove".into(),
            Operation::Create(name) | Operation::Delete(name) => format!("/v1/campaigns/{name}"),
            Operation::Redeem { .. } | Operation::Compete { .. } => "/v1/coupons/codes/redemptions".into(),
            Operation::Cancel(redeemed) => format!("/v1/coupons/codes/redemptions/{}/cancel", redeemed.id),
            Operation::Import { id, .. } => format!("/v1/campaigns/strict/imports?mode=append&id={id}"),
            Operation::Snapshot => "/v1/snapshots".into(),
        }
    }

    /// Judges the answer to this operation.
    pub fn expect(&self, answer: &Answer) -> Done {
        let body = &answer.body;
        let all = |outcome: &str, count: usize| {
            let outcomes = body["outcomes"].as_array();
            outcomes.is_some_and(|outcomes| outcomes.len() == count && outcomes.iter().all(|o| o == outcome))
        };
        let right = match self {
            Operation::AddStrict(items) | Operation::AddCompact(items) | Operation::AddCodes(items) => {
                answer.status == 200 && all("added", items.len())
            }
            Operation::RemoveStrict(items) | Operation::RemoveCompact(items) => {
                answer.status == 200 && all("removed", items.len())
            }
            Operation::Redeem { .. } | Operation::Compete { .. } => {
                let id = body["id"].as_str().unwrap_or_default().to_string();
                if (answer.status == 201 || answer.status == 200) && body["status"] == "redeemed" {
                    return Done::Redeemed(id);
                }
                if matches!(self, Operation::Compete { .. }) && body["code"] == "code-redeemed" {
                    return Done::Lost;
                }
                false
            }
            Operation::Cancel(_) => answer.status == 200 && body["status"] == "cancelled",
            Operation::Import { users, .. } => {
                answer.status == 200 && body["state"] == "done" && body["lines"] == users.len()
            }
            Operation::Snapshot => answer.status == 200,
            Operation::Withdraw(codes) => answer.status == 200 && all("removed", codes.len()),
            Operation::Create(_) => answer.status == 201,
            Operation::Delete(_) => answer.status == 204,
        };
        assert!(right, "{self:?} was answered {answer:?}");
        Done::Yes
    }

    /// The items and codes that are in or not, depending on how far it got.
    pub fn items(&self) -> &[String] {
        match self {
            Operation::AddStrict(items)
            | Operation::AddCompact(items)
            | Operation::RemoveStrict(items)
            | Operation::RemoveCompact(items)
            | Operation::AddCodes(items)
            | Operation::Withdraw(items)
            | Operation::Import { users: items, .. } => items,
            Operation::Redeem { code, .. } | Operation::Cancel(Redeemed { code, .. }) => {
                std::slice::from_ref(code)
            }
            Operation::Create(name) | Operation::Delete(name) => std::slice::from_ref(name),
            Operation::Compete { .. } | Operation::Snapshot => &[],
        }
    }

    /// Of a request whose answer never came: either all of it was done or nothing. (A compact filter's "yes" is
    /// only probable, and an import is done piece by piece.)
    pub fn assert_whole(&self, client: &Client) {
        let (path, member, answer, items) = match self {
            Operation::AddStrict(users) | Operation::RemoveStrict(users) => {
                ("/v1/campaigns/strict/users/check", "users", "present", users)
            }
            Operation::AddCodes(codes) | Operation::Withdraw(codes) => {
                ("/v1/coupons/codes/codes/check", "codes", "valid", codes)
            }
            _ => return,
        };
        let found = client.post(path, &json!({ member: items })).expect("the service is up");
        let present = found.body[answer].as_array().map_or(&[] as &[Value], Vec::as_slice);
        assert_eq!(present.len(), items.len(), "{found:?}");
        assert!(present.iter().all(|is| is == &present[0]), "half-done: {self:?}: {present:?}");
    }
}

impl std::fmt::Debug for Operation {
    /// Without the thousands of items.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Operation::Redeem { code, reference } | Operation::Compete { code, reference } => {
                write!(f, "redeem {code} for {reference}")
            }
            Operation::Import { users, .. } => write!(f, "{} ({} lines)", self.path(), users.len()),
            _ => f.write_str(&self.path()),
        }
    }
}
