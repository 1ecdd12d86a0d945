//! After a restart: an operation in flight at the crash was done completely or not at all. The client determines which, and repeats it with
//! one effect.

use crate::check::{Difference, compare, resembles};
use crate::model::{Item, now};
use crate::operation::Operation;
use crate::service::Client;
use crate::worker::{Pending, Worker, touched};

impl Worker {
    /// Everything acknowledged is present, and the operation in flight was done completely or not at all: then it is known which. It is
    /// sometimes repeated, with one effect.
    pub fn settle(&mut self, client: &Client) {
        let pending = self.pending.take();
        for at in 0..self.parts.len() {
            if !matches!(pending, Some(Pending::Operation { part, .. }) if part == at) {
                let part = &mut self.parts[at];
                part.filter.drop_replacement();
                part.note("restarted".into(), None);
                if let Err(difference) = compare(&mut part.filter, client) {
                    part.fail(&self.name, &difference);
                }
            }
        }
        let (pending, change) = match pending {
            Some(Pending::LineUp(change)) => (None, Some(change)),
            pending => (pending, None),
        };
        self.line_up.settle(client, change);
        match pending {
            None | Some(Pending::LineUp(_)) => {}
            Some(Pending::Bid { bid, key }) => {
                self.bid(client, bid, key).expect("the service is running")
            }
            Some(Pending::Operation {
                part,
                operation,
                key,
                sent,
            }) => {
                self.settle_operation(client, part, operation, key.as_deref(), sent);
            }
        }
    }

    fn settle_operation(
        &mut self,
        client: &Client,
        at: usize,
        operation: Operation,
        key: Option<&str>,
        sent: i64,
    ) {
        let part = &mut self.parts[at];
        let (done, rest) = match &operation {
            // An import is done in pieces; its record contains the progress.
            Operation::Append { id, items } => {
                let import = client
                    .get(&format!("/v1/imports/{id}"))
                    .expect("the service is up");
                let lines = import.body["lines"].as_u64().unwrap_or(0) as usize;
                let (done, rest) = items.split_at(lines);
                let append = |items: &[Item]| Operation::Append {
                    id: id.clone(),
                    items: items.to_vec(),
                };
                (append(done), append(rest))
            }
            operation => (operation.clone(), operation.clone()),
        };
        part.note("restarted".into(), None);
        part.filter.known.extend(operation.items());
        let mut after = part.filter.clone();
        let expected = after.apply(&done, sent);
        part.filter.drop_replacement();
        after.drop_replacement();
        let mut before = part.filter.clone();
        let is_done = match resembles(&mut after, &mut before, client) {
            Ok(is_done) => is_done,
            Err(difference) => part.fail(&self.name, &difference),
        };
        part.note(format!("done: {is_done}"), None);
        part.filter = if is_done { after } else { before };
        if is_done {
            self.forget_if_gone(at, &operation);
        }
        // Without a key it might be done twice, and the end of an upload or an image can't be repeated.
        let is_last = matches!(operation, Operation::Swap | Operation::PutImage);
        let can_repeat = !is_last && (key.is_some() || !operation.takes_key());
        let part = &mut self.parts[at];
        if !can_repeat || !part.filter.unsure(now()).is_empty() || self.random.below(3) == 0 {
            return;
        }
        let sent = now();
        let answer = operation
            .send(&part.filter, client, key)
            .expect("the service is up");
        let expected = match (&operation, is_done) {
            (Operation::Append { .. }, _) => expected.plus(part.filter.apply(&rest, sent)),
            (_, true) => expected,
            (_, false) => part.filter.apply(&operation, sent),
        };
        part.note(
            format!(
                "again {operation:?} {key:?}: {} {} {expected:?}",
                answer.status, answer.replayed
            ),
            touched(&operation),
        );
        let accepted = part
            .filter
            .accept(&expected, &answer)
            .map_err(Difference::from);
        if let Err(difference) = accepted.and_then(|()| compare(&mut part.filter, client)) {
            part.fail(&self.name, &difference);
        }
        self.forget_if_gone(at, &operation);
    }
}
