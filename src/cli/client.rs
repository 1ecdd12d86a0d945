//! The HTTP client that subcommands share: where the service is, which key it wants, and what it says when it refuses.

use serde::Deserialize;
use std::time::Duration;
use thiserror::Error;
use ureq::Agent;
use ureq::http::Response;

/// The longest problem document that is read, in bytes.
const PROBLEM_BYTES_MAX: u64 = 1 << 20;

/// How to reach the service.
#[derive(clap::Args, Debug, Clone)]
pub struct Connection {
    /// Where the service is.
    #[arg(long, value_name = "URL", env = "CUCKOOD_URL", default_value = "http://127.0.0.1:8080")]
    pub url: String,
    /// The API key, if the service wants one.
    #[arg(long, value_name = "KEY", env = "CUCKOOD_KEY", hide_env_values = true)]
    pub key: Option<String>,
}

/// Why a request came to nothing.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The service can't be reached, or the connection broke.
    #[error("{url}: {source}")]
    Transport {
        /// What was asked for.
        url: String,
        /// Why it failed.
        source: Box<ureq::Error>,
    },
    /// The service refused.
    #[error("{status} {code}: {detail}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The problem's code.
        code: String,
        /// What it says.
        detail: String,
    },
    /// A local file.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: String,
        /// What failed.
        source: std::io::Error,
    },
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ProblemDocument {
    code: String,
    detail: String,
}

impl Connection {
    /// A client; the time-out is for connecting alone.
    pub fn agent(&self) -> Agent {
        Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(Duration::from_secs(5)))
            .build()
            .into()
    }

    /// The whole address of a path.
    pub fn address(&self, path: &str) -> String {
        format!("{}{path}", self.url.trim_end_matches('/'))
    }

    /// The `Authorization` header's value; empty without a key.
    pub fn authorization(&self) -> String {
        self.key.as_ref().map(|key| format!("Bearer {key}")).unwrap_or_default()
    }

    /// The answer to a request that went well.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn accept(
        &self,
        path: &str,
        answer: Result<Response<ureq::Body>, ureq::Error>,
    ) -> Result<Response<ureq::Body>, ClientError> {
        let url = self.address(path);
        let mut answer = answer.map_err(|source| ClientError::Transport { url, source: Box::new(source) })?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let text = answer.body_mut().with_config().limit(PROBLEM_BYTES_MAX).read_to_string().unwrap_or_default();
        let problem: ProblemDocument = serde_json::from_str(&text).unwrap_or_default();
        Err(ClientError::Refused { status: answer.status().as_u16(), code: problem.code, detail: problem.detail })
    }
}
