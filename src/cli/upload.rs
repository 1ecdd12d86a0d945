//! The upload of `cuckood import`: continues under its id when a connection breaks, and reports the service's answer.

use super::client::{ClientError, Connection};
use super::source::Source;
use crate::engine::imports::ELSEWHERE_IDLE_SECONDS;
use serde::Deserialize;
use std::time::Duration;
use ureq::SendBody;

/// The longest answer that is read, in bytes: more than a hundred line errors.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// The shortest and the longest pause before an upload continues; each is twice the one before.
const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(8);

/// How long to wait for an upload that counts as running: that of a node that has died does so for as long as this, and its last
/// progress may have come later than the connection broke.
const RUNNING_MAX: Duration = Duration::from_secs(ELSEWHERE_IDLE_SECONDS + 15);

/// An import to send.
pub struct Upload<'a> {
    /// The service.
    pub connection: &'a Connection,
    /// `/v1/campaigns/NAME/imports`, or the same for a coupon.
    pub path: String,
    /// The import's id.
    pub id: String,
    /// Other query parameters.
    pub query: Vec<(&'static str, String)>,
    /// `Content-Type`, and `Content-Encoding` if the upload is compressed.
    pub headers: Vec<(&'static str, &'static str)>,
    /// How often it may continue.
    pub retries: u32,
}

/// An import on record, as the service reports it.
#[derive(Deserialize)]
struct Recorded {
    state: String,
    failure: Option<Failure>,
}

#[derive(Deserialize)]
struct Failure {
    code: String,
    detail: String,
}

impl Upload<'_> {
    /// Asks whether the upload would be accepted at all, with an empty dry run.
    ///
    /// # Errors
    /// The error that the upload would get: there is no such campaign, the key is not valid, and so on.
    pub fn ask(&self) -> Result<(), ClientError> {
        let asked = ["mode", "column"];
        let query = self.query.iter().filter(|(name, _)| asked.contains(name)).cloned();
        let query = query.chain([("dry_run", "true".into()), ("min_items", "0".into())]).collect();
        let headers: Vec<_> =
            self.headers.iter().filter(|(name, _)| *name == "Content-Type").copied().collect();
        self.post(query, &headers, SendBody::none()).map(drop)
    }

    /// Sends everything, and continues when the connection breaks. Returns the service's answer.
    ///
    /// # Errors
    /// If the service refuses, the source can't be read, or the connection broke too often.
    pub fn send(&self, source: &Source) -> Result<String, ClientError> {
        let mut patience = Patience::new(self.retries);
        loop {
            let body = source
                .read()
                .map_err(|error| ClientError::File { path: "the upload".into(), source: error })?;
            let query = self.query.iter().cloned().chain([("id", self.id.clone())]).collect();
            let broken = match self.post(query, &self.headers, SendBody::from_owned_reader(body)) {
                Ok(answer) => return Ok(answer),
                Err(error) if !may_go_on(&error) => return Err(error),
                Err(error) => error,
            };
            if let ClientError::Transport { .. } = broken
                && let Some(answered) = self.answered()
            {
                return Err(answered);
            }
            let pause = patience.pause(is_running(&broken)).filter(|_| source.is_repeatable());
            let Some(pause) = pause else {
                return Err(ClientError::BrokenImport { id: self.id.clone(), source: Box::new(broken) });
            };
            source.say(format!("{broken}; continuing in {pause:?}"));
            std::thread::sleep(pause);
        }
    }

    /// Why the import failed, if its upload was answered but the answer was lost.
    fn answered(&self) -> Option<ClientError> {
        let text = self.get(&format!("/v1/imports/{}", self.id)).ok()?;
        let recorded: Recorded = serde_json::from_str(&text).ok()?;
        let Failure { code, detail } = recorded.failure.filter(|_| recorded.state != "running")?;
        Some(ClientError::Refused { status: 409, code, detail })
    }

    fn post(
        &self,
        query: Vec<(&'static str, String)>,
        headers: &[(&'static str, &'static str)],
        body: SendBody<'_>,
    ) -> Result<String, ClientError> {
        let mut request = self.connection.agent()?.post(self.connection.address(&self.path));
        for (name, value) in query {
            request = request.query(name, value);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if self.connection.key.is_some() {
            request = request.header("Authorization", self.connection.authorization());
        }
        self.text(&self.path, request.send(body))
    }

    fn get(&self, path: &str) -> Result<String, ClientError> {
        let mut request = self.connection.agent()?.get(self.connection.address(path));
        if self.connection.key.is_some() {
            request = request.header("Authorization", self.connection.authorization());
        }
        self.text(path, request.call())
    }

    fn text(
        &self,
        path: &str,
        answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<String, ClientError> {
        let mut answer = self.connection.accept(path, answer)?;
        let text = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
        let url = self.connection.address(path);
        text.map_err(|source| ClientError::Transport { url, source: Box::new(source) })
    }
}

/// Whether the upload may succeed if it is sent again.
fn may_go_on(error: &ClientError) -> bool {
    match error {
        ClientError::Transport { .. } => true,
        ClientError::Refused { status, .. } => {
            is_running(error) || matches!(status, 408 | 429 | 502 | 503 | 504)
        }
        _ => false,
    }
}

/// Whether the service has not noticed yet that the previous upload was interrupted.
fn is_running(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused { code, .. } if code == "import-running")
}

/// How often an upload is sent again, and when.
struct Patience {
    /// Whether anything is sent again.
    is_patient: bool,
    retries: u32,
    pause: Duration,
    /// How long it has been waited for an upload that counts as running.
    waited: Duration,
}

impl Patience {
    fn new(retries: u32) -> Self {
        Self { is_patient: retries > 0, retries, pause: PAUSE_MIN, waited: Duration::ZERO }
    }

    /// The pause before the next upload; `None` for no more. To find the previous one still running is no retry, unless it takes too
    /// long.
    fn pause(&mut self, is_running: bool) -> Option<Duration> {
        if is_running && self.is_patient && self.waited < RUNNING_MAX {
            self.waited += self.pause;
        } else {
            self.retries = self.retries.checked_sub(1)?;
            self.waited = Duration::ZERO;
        }
        let pause = self.pause;
        self.pause = (2 * pause).min(PAUSE_MAX);
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pauses(retries: u32, are_running: impl IntoIterator<Item = bool>) -> Vec<Duration> {
        let mut patience = Patience::new(retries);
        are_running.into_iter().map_while(|is_running| patience.pause(is_running)).collect()
    }

    #[test]
    fn a_dead_nodes_upload_is_waited_for_whatever_the_retries() {
        for retries in [1, 10] {
            // The connection breaks, and the import counts as running from then on.
            let all = pauses(retries, [false].into_iter().chain([true; 1_000]));
            let waited: Duration = all.iter().skip(1).sum();
            assert!(waited > Duration::from_secs(ELSEWHERE_IDLE_SECONDS), "{waited:?}");
            assert!(all.len() < 1_000, "it ends");
        }
    }

    #[test]
    fn a_connection_may_break_as_often_as_it_was_said() {
        assert_eq!(pauses(3, [false; 10]), [1, 2, 4].map(|times| times * PAUSE_MIN));
        assert!(pauses(0, [false; 10]).is_empty() && pauses(0, [true; 10]).is_empty());
        assert_eq!(*pauses(20, [false; 30]).last().unwrap(), PAUSE_MAX);
    }
}
