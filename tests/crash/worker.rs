//! One client under test: it knows what was acknowledged to it, and what was under way when the service died.

use crate::contest::Contest;
use crate::operation::{Done, Operation};
use crate::random::Random;
use crate::service::{Answer, Client};
use std::collections::HashSet;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

/// Items in a batch, at most.
const BATCH_MAX: u64 = 40;

/// Lines in an import, at most.
const IMPORT_MAX: u64 = 8_000;

/// A redemption that was acknowledged.
#[derive(Clone)]
pub struct Redeemed {
    pub code: String,
    pub reference: String,
    pub id: String,
}

/// A client with items of its own, so that it knows exactly what the service must say of them.
pub struct Worker {
    name: String,
    random: Random,
    made: u64,
    contest: Arc<Mutex<Contest>>,
    /// Sent, and not answered when the service died.
    pub pending: Option<(Operation, String)>,
    pub strict_users: HashSet<String>,
    pub compact_users: HashSet<String>,
    pub removed_users: HashSet<String>,
    pub codes: HashSet<String>,
    pub redeemed: Vec<Redeemed>,
    /// Campaigns of its own that are there, and that were deleted.
    campaigns: HashSet<String>,
    deleted: Vec<String>,
}

impl Worker {
    pub fn new(name: String, seed: u64, contest: Arc<Mutex<Contest>>) -> Worker {
        Worker {
            name,
            random: Random::new(seed),
            made: 0,
            contest,
            pending: None,
            strict_users: HashSet::new(),
            compact_users: HashSet::new(),
            removed_users: HashSet::new(),
            codes: HashSet::new(),
            redeemed: Vec::new(),
            campaigns: HashSet::new(),
            deleted: Vec::new(),
        }
    }

    /// Does one thing after another until the service is gone; tells of each that was acknowledged.
    pub fn work(&mut self, client: &Client, acknowledged: &Sender<()>) {
        while self.pending.is_none() {
            let operation = self.choose();
            let key = self.fresh("key");
            self.attempt(client, operation, key);
            if self.pending.is_none() {
                // The one who counts may have seen enough.
                let _ = acknowledged.send(());
            }
        }
    }

    /// After a restart: nothing is half-done, and sent again with the same key it is done once.
    pub fn settle(&mut self, client: &Client) {
        let Some((operation, key)) = self.pending.take() else { return };
        operation.assert_whole(client);
        self.attempt(client, operation, key);
        assert!(self.pending.is_none(), "{}: the service died without being killed", self.name);
    }

    /// What was acknowledged is there, and what was removed is gone. What is under way counts for neither.
    pub fn verify(&self, client: &Client) {
        let unsure: &[String] = self.pending.as_ref().map_or(&[], |(operation, _)| operation.items());
        let missing =
            |path: &str, member: &str, answer: &str, items: &HashSet<String>, wanted: bool| -> usize {
                let items: Vec<&String> = items.iter().filter(|item| !unsure.contains(item)).collect();
                let chunks = items.chunks(10_000).map(|chunk| {
                    let body = serde_json::json!({ member: chunk });
                    let found = client.post(path, &body).expect("the service is up");
                    assert_eq!(found.status, 200, "{path}: {found:?}");
                    let answers = found.body[answer].as_array().expect("a list").clone();
                    answers.iter().filter(|present| present.as_bool() != Some(wanted)).count()
                });
                chunks.sum()
            };
        let strict = "/v1/campaigns/strict/users/check";
        let compact = "/v1/campaigns/compact/users/check";
        let codes = "/v1/coupons/codes/codes/check";
        let name = &self.name;
        let used = self.redeemed.iter().map(|redeemed| redeemed.code.clone()).collect();
        for (what, path, member, answer, items, wanted) in [
            ("users lost", strict, "users", "present", &self.strict_users, true),
            ("removed users are back", strict, "users", "present", &self.removed_users, false),
            ("users of the compact campaign lost", compact, "users", "present", &self.compact_users, true),
            ("codes lost", codes, "codes", "valid", &self.codes, true),
            ("redeemed codes are back", codes, "codes", "valid", &used, false),
        ] {
            assert_eq!(missing(path, member, answer, items, wanted), 0, "{name}: {what}");
        }
        let campaigns = self.campaigns.iter().map(|name| (name, 200));
        let deleted = self.deleted.iter().rev().take(20).map(|name| (name, 404));
        for (campaign, status) in campaigns.chain(deleted).filter(|(name, _)| !unsure.contains(name)) {
            let answer = client.get(&format!("/v1/campaigns/{campaign}")).expect("the service is up");
            assert_eq!(answer.status, status, "{name}: {campaign}");
        }
        let sure = self.redeemed.iter().rev().filter(|redeemed| !unsure.contains(&redeemed.code));
        for redeemed in sure.take(100) {
            let path = format!("/v1/coupons/codes/redemptions/{}", redeemed.id);
            let answer = client.get(&path).expect("the service is up");
            assert_eq!(answer.body["status"], "redeemed", "{name}: {answer:?}");
            assert_eq!(answer.body["reference"], *redeemed.reference, "{name}: {answer:?}");
        }
    }

    fn attempt(&mut self, client: &Client, operation: Operation, key: String) {
        // Broken off, or stopped by the kill in the middle: the outcome is unknown.
        match operation.perform(client, &key) {
            Ok(answer) if answer.status != 503 => self.learn(operation, &answer),
            Ok(Answer { .. }) | Err(_) => self.pending = Some((operation, key)),
        }
    }

    fn choose(&mut self) -> Operation {
        let count = self.random.below(BATCH_MAX) + 1;
        match self.random.below(100) {
            0..25 => Operation::AddStrict(self.names("user", count)),
            25..45 => Operation::AddCompact(self.names("user", count)),
            45..55 if !self.strict_users.is_empty() => {
                Operation::RemoveStrict(some(&self.strict_users, count))
            }
            55..62 if !self.compact_users.is_empty() => {
                Operation::RemoveCompact(some(&self.compact_users, count))
            }
            75..83 if !self.codes.is_empty() => {
                Operation::Redeem { code: some(&self.codes, 1).remove(0), reference: self.fresh("order") }
            }
            83..86 if !self.redeemed.is_empty() => {
                let at = self.random.below(self.redeemed.len() as u64) as usize;
                Operation::Cancel(self.redeemed[at].clone())
            }
            86..97 => {
                let code = self.contest.lock().expect("no thread panics with it").next();
                Operation::Compete { code, reference: self.fresh("bid") }
            }
            97 => {
                let count = self.random.below(IMPORT_MAX) + 1;
                Operation::Import { id: self.fresh("import"), users: self.names("user", count) }
            }
            98 => Operation::Snapshot,
            70..72 if !self.codes.is_empty() => Operation::Withdraw(some(&self.codes, count)),
            72 if self.campaigns.len() < 5 => Operation::Create(self.fresh("campaign")),
            73 if !self.campaigns.is_empty() => Operation::Delete(some(&self.campaigns, 1).remove(0)),
            _ => Operation::AddCodes(self.names("code", count)),
        }
    }

    fn learn(&mut self, operation: Operation, answer: &Answer) {
        match (operation.expect(answer), operation) {
            (Done::Yes, Operation::AddStrict(users) | Operation::Import { users, .. }) => {
                self.strict_users.extend(users);
            }
            (Done::Yes, Operation::AddCompact(users)) => self.compact_users.extend(users),
            (Done::Yes, Operation::RemoveStrict(users)) => {
                self.strict_users.retain(|user| !users.contains(user));
                self.removed_users.extend(users);
            }
            (Done::Yes, Operation::RemoveCompact(users)) => {
                self.compact_users.retain(|user| !users.contains(user));
            }
            (Done::Yes, Operation::AddCodes(codes)) => self.codes.extend(codes),
            (Done::Redeemed(id), Operation::Redeem { code, reference }) => {
                self.codes.remove(&code);
                self.redeemed.push(Redeemed { code, reference, id });
            }
            (Done::Yes, Operation::Cancel(cancelled)) => {
                self.redeemed.retain(|redeemed| redeemed.id != cancelled.id);
                self.codes.insert(cancelled.code);
            }
            (Done::Redeemed(id), Operation::Compete { code, reference }) => {
                self.contest.lock().expect("no thread panics with it").won(code, reference, id);
            }
            (Done::Lost, Operation::Compete { code, .. }) => {
                self.contest.lock().expect("no thread panics with it").lost(code);
            }
            (Done::Yes, Operation::Snapshot) => {}
            (Done::Yes, Operation::Withdraw(codes)) => self.codes.retain(|code| !codes.contains(code)),
            (Done::Yes, Operation::Create(name)) => {
                self.campaigns.insert(name);
            }
            (Done::Yes, Operation::Delete(name)) => {
                self.campaigns.remove(&name);
                self.deleted.push(name);
            }
            (done, operation) => panic!("{operation:?}: {done:?}"),
        }
    }

    fn names(&mut self, what: &str, count: u64) -> Vec<String> {
        (0..count).map(|_| self.fresh(what)).collect()
    }

    fn fresh(&mut self, what: &str) -> String {
        self.made += 1;
        format!("{what}-{}-{}", self.name, self.made)
    }
}

fn some(items: &HashSet<String>, count: u64) -> Vec<String> {
    items.iter().take(count as usize).cloned().collect()
}
