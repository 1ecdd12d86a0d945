//! Line-ups: each client has one, which it stores, replaces and deletes. After a crash it has the last acknowledged value, or that of the
//! request in flight, which is then repeated with one effect.

use crate::service::{Answer, Client};
use cuckood_state::testing::random::Random;
use serde_json::{Value, json};

/// A client's line-up.
pub struct LineUp {
    path: String,
    /// Its content, if it exists.
    stored: Option<Value>,
}

/// A request that stores a line-up or, with none, deletes it. It may have to be sent twice.
#[derive(Clone, Debug)]
pub struct Change {
    line_up: Option<Value>,
    key: String,
}

impl Change {
    /// Another line-up, or now and then none.
    pub fn choose(random: &mut Random, key: String) -> Change {
        if random.below(4) == 0 {
            return Change { line_up: None, key };
        }
        let names =
            |count: u64| -> Vec<String> { (0..count).map(|number| format!("c{number}")).collect() };
        let campaigns = names(1 + random.below(20));
        let unless = names(random.below(4));
        let unless: Vec<Value> = unless
            .iter()
            .map(|campaign| json!({ "campaign": campaign, "at_least": 1 + random.below(3) }))
            .collect();
        let limit = 1 + random.below(5);
        let title = format!("Line-up {limit}");
        let labels = json!({ "conditions": unless.len().to_string() });
        let line_up = json!({
            "campaigns": campaigns,
            "unless": unless,
            "limit": limit,
            "title": title,
            "labels": labels,
        });
        Change {
            line_up: Some(line_up),
            key,
        }
    }
}

impl LineUp {
    pub fn new(number: u64) -> LineUp {
        LineUp {
            path: format!("/v1/line-ups/line-up-{number}"),
            stored: None,
        }
    }

    /// Sends a change. Without a response, its effect is unknown.
    pub fn send(&self, client: &Client, change: &Change) -> Option<Answer> {
        let answer = match &change.line_up {
            Some(line_up) => client.put_once(&self.path, line_up, &change.key),
            None => client.delete_once(&self.path, &change.key),
        };
        answer.ok().filter(|answer| answer.status != 503)
    }

    /// Takes a change over that was answered.
    pub fn learn(&mut self, change: &Change, answer: &Answer) {
        let expected = match (&change.line_up, &self.stored) {
            (Some(_), None) => 201,
            (Some(_), Some(_)) => 200,
            (None, Some(_)) => 204,
            (None, None) => 404,
        };
        assert_eq!(
            answer.status, expected,
            "{}: {change:?} was answered {answer:?}",
            self.path
        );
        self.stored.clone_from(&change.line_up);
    }

    /// After a restart: determines whether a change in flight took effect, and repeats it.
    pub fn settle(&mut self, client: &Client, pending: Option<Change>) {
        let found = self.look(client);
        let may_be_done = pending
            .as_ref()
            .is_some_and(|change| change.line_up == found);
        assert!(
            found == self.stored || may_be_done,
            "{} is {found:?}, and must be {:?} or as of {pending:?}",
            self.path,
            self.stored
        );
        if let Some(change) = pending {
            let again = self.send(client, &change).expect("the service is running");
            self.learn(&change, &again);
            assert_eq!(self.look(client), self.stored, "{}", self.path);
        }
    }

    fn look(&self, client: &Client) -> Option<Value> {
        let mut answer = client.get(&self.path).expect("the service is up");
        assert!(
            matches!(answer.status, 200 | 404),
            "{}: {answer:?}",
            self.path
        );
        let fields = answer
            .body
            .as_object_mut()
            .filter(|_| answer.status == 200)?;
        fields.remove("name");
        Some(answer.body)
    }
}
