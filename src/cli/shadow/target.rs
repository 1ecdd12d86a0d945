//! The campaign or coupon that is mirrored into, over HTTP.

use super::changes::Act;
use crate::cli::client::{Client, ClientError, Connection};
use anyhow::bail;
use serde_json::{Value, json};
use std::io::Cursor;
use std::time::Duration;
use ureq::SendBody;
use ureq::http::Method;

/// Maximum number of items in a request.
pub const ITEMS_MAX: usize = 1_000;

/// Maximum size of an item, in bytes.
const ITEM_BYTES_MAX: usize = 512;

/// Maximum time for a request. The service responds sooner, if it can.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A campaign or coupon.
pub struct Target {
    client: Client,
    /// `/v1/campaigns/NAME`, or the same for a coupon.
    path: String,
    /// `users` or `codes`.
    items: &'static str,
}

/// Returns an item as the service accepts it; `None` if it can't.
pub fn item(bytes: Vec<u8>) -> Option<String> {
    String::from_utf8(bytes).ok().filter(|item| (1..=ITEM_BYTES_MAX).contains(&item.len()))
}

impl Target {
    /// Finds `campaigns/NAME` or `coupons/NAME`.
    ///
    /// # Errors
    /// If it does not exist, or the service can't be asked.
    pub fn find(connection: &Connection, into: &str) -> anyhow::Result<Self> {
        let items = match into.split_once('/') {
            Some(("campaigns", _)) => "users",
            Some(("coupons", _)) => "codes",
            _ => bail!("--into: `{into}` is neither campaigns/NAME nor coupons/NAME"),
        };
        let target = Self { client: connection.client()?, path: format!("/v1/{into}"), items };
        target.client.call(Method::GET, &target.path, &[], SendBody::none(), Some(TIMEOUT))?;
        Ok(target)
    }

    /// Applies a change of these items; returns how many were added or removed.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn apply(&self, act: Act, items: &[String], key: &str) -> Result<u64, ClientError> {
        let mut body = json!({ self.items: items });
        let (outcome, counted) = match act {
            Act::Add { if_absent } => {
                // A code is added once in any case.
                if if_absent && self.items == "users" {
                    body["if_absent"] = true.into();
                }
                (self.post(self.items, &body, Some(key))?, "added")
            }
            Act::Remove => (self.post(&format!("{}/remove", self.items), &body, Some(key))?, "removed"),
            Act::Clear => (self.post("clear", &Value::Null, Some(key))?, "removed"),
        };
        Ok(outcome[counted].as_u64().unwrap_or(0))
    }

    /// Returns which of these items are present.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn check(&self, items: &[String]) -> Result<Vec<bool>, ClientError> {
        let outcome = self.post(&format!("{}/check", self.items), &json!({ self.items: items }), None)?;
        let present = &outcome[if self.items == "codes" { "valid" } else { "present" }];
        Ok(present.as_array().into_iter().flatten().filter_map(Value::as_bool).collect())
    }

    fn post(&self, operation: &str, body: &Value, key: Option<&str>) -> Result<Value, ClientError> {
        let path = format!("{}/{operation}", self.path);
        let mut headers: Vec<(&str, &str)> = key.map(|key| ("Idempotency-Key", key)).into_iter().collect();
        let body = match body {
            Value::Null => SendBody::none(),
            body => {
                headers.push(("Content-Type", "application/json"));
                SendBody::from_owned_reader(Cursor::new(body.to_string()))
            }
        };
        let response = self.client.call(Method::POST, &path, &headers, body, Some(TIMEOUT))?;
        self.client.json(&path, response)
    }
}
