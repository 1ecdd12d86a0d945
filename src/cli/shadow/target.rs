//! The campaign or coupon that is mirrored into, over HTTP.

use super::error::ShadowError;
use crate::cli::client::{ClientError, Connection};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;
use ureq::Agent;
use ureq::http::Response;

/// The most items of a request.
pub const ITEMS_MAX: usize = 1_000;

/// The longest item, in bytes.
const ITEM_BYTES_MAX: usize = 512;

/// How long a request may take. The service answers sooner, if it can.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The longest answer that is read, in bytes: more than the outcomes of [`ITEMS_MAX`] items.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// A campaign or coupon.
pub struct Target<'a> {
    connection: &'a Connection,
    agent: Agent,
    /// `/v1/campaigns/NAME`, or the same for a coupon.
    path: String,
    is_coupon: bool,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Answer {
    added: u64,
    removed: u64,
    present: Vec<bool>,
    valid: Vec<bool>,
}

/// An item as the service takes it; none if it can't have it.
pub fn item(bytes: Vec<u8>) -> Option<String> {
    String::from_utf8(bytes).ok().filter(|item| (1..=ITEM_BYTES_MAX).contains(&item.len()))
}

impl<'a> Target<'a> {
    /// Finds `campaigns/NAME` or `coupons/NAME`.
    ///
    /// # Errors
    /// If it does not exist, or the service can't be asked.
    pub fn find(connection: &'a Connection, into: &str) -> Result<Self, ShadowError> {
        let is_coupon = match into.split_once('/') {
            Some(("campaigns", _)) => false,
            Some(("coupons", _)) => true,
            _ => {
                return Err(ShadowError::Unfit(format!(
                    "--into: `{into}` is neither campaigns/NAME nor coupons/NAME"
                )));
            }
        };
        let target = Self { connection, agent: connection.agent()?, path: format!("/v1/{into}"), is_coupon };
        let request = target.agent.get(connection.address(&target.path));
        let request = target.authorized(request).config().timeout_global(Some(TIMEOUT)).build();
        connection.accept(&target.path, request.call())?;
        Ok(target)
    }

    /// Adds items; returns how many were added.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn add(&self, items: &[String], if_absent: bool, key: &str) -> Result<u64, ClientError> {
        let mut body = self.list(items);
        // A code is added once in any case.
        if if_absent && !self.is_coupon {
            body["if_absent"] = true.into();
        }
        Ok(self.post(self.items(), "", &body, Some(key))?.added)
    }

    /// Removes items, one copy of each; returns how many were removed.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn remove(&self, items: &[String], key: &str) -> Result<u64, ClientError> {
        Ok(self.post(self.items(), "/remove", &self.list(items), Some(key))?.removed)
    }

    /// Removes all items; returns how many there were.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn clear(&self, key: &str) -> Result<u64, ClientError> {
        Ok(self.post("clear", "", &Value::Null, Some(key))?.removed)
    }

    /// Which of these items are there.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn check(&self, items: &[String]) -> Result<Vec<bool>, ClientError> {
        let answer = self.post(self.items(), "/check", &self.list(items), None)?;
        Ok(if self.is_coupon { answer.valid } else { answer.present })
    }

    fn items(&self) -> &'static str {
        if self.is_coupon { "codes" } else { "users" }
    }

    fn list(&self, items: &[String]) -> Value {
        json!({ self.items(): items })
    }

    fn post(&self, what: &str, act: &str, body: &Value, key: Option<&str>) -> Result<Answer, ClientError> {
        let path = format!("{}/{what}{act}", self.path);
        let request = self.authorized(self.agent.post(self.connection.address(&path)));
        let request = match key {
            Some(key) => request.header("Idempotency-Key", key),
            None => request,
        };
        let request = request.config().timeout_global(Some(TIMEOUT)).build();
        let sent = if body.is_null() { request.send_empty() } else { request.send_json(body) };
        self.read(&path, sent)
    }

    fn read(
        &self,
        path: &str,
        sent: Result<Response<ureq::Body>, ureq::Error>,
    ) -> Result<Answer, ClientError> {
        let mut answer = self.connection.accept(path, sent)?;
        let text = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
        let url = self.connection.address(path);
        let text = text.map_err(|source| ClientError::Transport { url, source: Box::new(source) })?;
        Ok(serde_json::from_str(&text).unwrap_or_default())
    }

    fn authorized<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        match &self.connection.key {
            Some(_) => request.header("Authorization", self.connection.authorization()),
            None => request,
        }
    }
}
