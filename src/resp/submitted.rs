//! Commands that are on their way through the engine.

use super::failure::Failure;
use crate::domain::{Applied, Command, KeyName, Outcome};
use crate::engine::{Engine, SubmitError};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

type Answer = Result<Applied, SubmitError>;

/// A command that the engine has taken, or refused to take.
pub enum Submitted<'a> {
    /// Its answer is there.
    Answered(Answer),
    /// Its answer will come; it is waited for until the deadline.
    UnderWay(Pin<Box<dyn Future<Output = Answer> + Send + 'a>>, Instant),
}

impl<'a> Submitted<'a> {
    /// Submits a command for the holder of an API key, and does not wait for its answer, which may take as long as `timeout`. Commands
    /// are applied in the order of their submissions.
    pub async fn begin(engine: &'a Engine, by: Option<KeyName>, command: Command, timeout: Duration) -> Self {
        let deadline = Instant::now() + timeout;
        let mut submission = Box::pin(engine.submit_by(by, command, None));
        // The engine takes a command when its answer is first asked for.
        match poll_fn(|context| Poll::Ready(submission.as_mut().poll(context))).await {
            Poll::Ready(answer) => Self::Answered(answer),
            Poll::Pending => Self::UnderWay(submission, deadline),
        }
    }

    /// Waits for the outcome.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn outcome(self) -> Result<Outcome, Failure> {
        let answer = match self {
            Self::Answered(answer) => answer,
            Self::UnderWay(submission, deadline) => {
                timeout_at(deadline, submission).await.map_err(|_| Failure::too_late())?
            }
        };
        Ok(answer?.outcome)
    }
}
