//! A connection's state that outlasts a command, and a command in execution, with their caller and permissions.

use super::batch::Batch;
use super::command::{Needs, Row};
use super::failure::{ErrorCode, Failure};
use super::key::FilterKey;
use super::keyspace::CountedKeys;
use super::parser::Arguments;
use super::shared::{CommandCounts, RespContext};
use crate::access::{Caller, Denied};
use crate::budget::Owner;
use cuckood_state::FilterView;
use cuckood_state::domain::{Command, Outcome};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tracing::field::{DisplayValue, display};

/// Maximum size of the queued commands of a transaction, in bytes.
const TRANSACTION_BYTES_MAX: usize = 8 << 20;

/// The commands between MULTI and EXEC.
#[derive(Default)]
pub struct Transaction {
    /// The requests, as they arrived.
    pub requests: Vec<u8>,
    /// Their number.
    pub count: usize,
    /// Whether a command was rejected, so that EXEC executes none.
    pub is_faulty: bool,
}

impl Transaction {
    /// Queues a request.
    ///
    /// # Errors
    /// If the transaction is too long.
    pub fn queue(&mut self, request: &[u8]) -> Result<(), Failure> {
        if self.requests.len() + request.len() > TRANSACTION_BYTES_MAX {
            return Err(Failure::err(format!(
                "a transaction has at most {TRANSACTION_BYTES_MAX} bytes"
            )));
        }
        self.requests.extend_from_slice(request);
        self.count += 1;
        Ok(())
    }
}

/// The state of a connection that outlasts a command.
#[derive(Default)]
pub struct Session {
    /// The connection's number.
    pub id: u64,
    /// The client's address.
    pub peer: Option<SocketAddr>,
    /// The name that the client has given the connection.
    pub name: Vec<u8>,
    /// The name and version of the client library, as reported by the client.
    pub library: [Vec<u8>; 2],
    /// When the client connected.
    pub since: Option<Instant>,
    /// The transaction that the client has started.
    pub transaction: Option<Transaction>,
    /// Requests of an executed transaction, which run next.
    pub spliced: Vec<u8>,
    /// The number of keys that DBSIZE has counted.
    pub counted_keys: Option<CountedKeys>,
    /// Commands of an executed transaction that have not run yet. They were counted in the key's rate when they were queued.
    pub counted: usize,
    /// The caller with the last valid key; an anonymous one if no keys are configured.
    caller: Option<Caller>,
    is_known: bool,
}

impl Session {
    /// A new connection. Without keys, everything is allowed.
    pub fn new(shared: &RespContext, peer: Option<SocketAddr>) -> Self {
        let id = shared.last_connection.fetch_add(1, Ordering::Relaxed) + 1;
        let mut caller = shared.access.caller(None).ok();
        if let (Some(caller), Some(peer)) = (&mut caller, peer) {
            caller.set_address(peer.ip());
        }
        let since = Some(Instant::now());
        Self {
            id,
            peer,
            since,
            is_known: caller.is_some(),
            caller,
            ..Self::default()
        }
    }

    /// Bytes of memory that transactions take.
    pub fn memory_bytes(&self) -> usize {
        self.transaction
            .as_ref()
            .map_or(0, |transaction| transaction.requests.capacity())
    }

    /// Whether the presented key was valid at the last [`Self::refresh`], or none was required.
    pub fn is_known(&self) -> bool {
        self.is_known
    }

    /// Returns the owner of the connection's memory; `None` for a client without a valid key.
    pub fn owner(&self) -> Option<Owner> {
        self.caller
            .as_ref()
            .filter(|_| self.is_known)
            .map(Caller::owner)
    }

    /// Checks whether the key is still valid: it may have expired or been removed.
    pub fn refresh(&mut self, shared: &RespContext) {
        let now = || shared.engine.time_of_day();
        self.is_known = self
            .caller
            .as_mut()
            .is_some_and(|caller| shared.access.renew(caller, now).is_ok());
    }

    /// Presents a key.
    ///
    /// # Errors
    /// `WRONGPASS`; the connection keeps its previous caller.
    pub fn present(&mut self, shared: &RespContext, key: &[u8]) -> Result<(), Failure> {
        let caller = shared.access.caller(Some(key));
        let known = caller.as_ref().map_err(|denied| *denied);
        let admitted =
            known.and_then(|caller| caller.require_unexpired(|| shared.engine.time_of_day()));
        if let Err(denied) = admitted {
            self.log_denied(shared, &denied, caller.as_ref().ok(), "auth");
            return Err(match denied {
                Denied::KeyExpired(_) => Failure::new(ErrorCode::WRONGPASS, denied.to_string()),
                _ => Failure::WRONG_PASSWORD,
            });
        }
        (self.caller, self.is_known) = (caller.ok(), true);
        Ok(())
    }

    /// Admits a command, or rejects it. Returns the caller: the keys may have changed since the last command. Commands that need no key
    /// get an anonymous caller. Every command of a key counts in its rate.
    ///
    /// # Errors
    /// `NOAUTH`, `NOPERM` or `RATELIMIT`.
    pub fn admit(
        &mut self,
        shared: &RespContext,
        needs: Needs,
        command: &'static str,
    ) -> Result<Caller, Failure> {
        let access = &shared.access;
        let now = || shared.engine.time_of_day();
        let is_counted = self.counted > 0;
        self.counted = self.counted.saturating_sub(1);
        let admit = |caller: &mut Caller| match is_counted {
            true => access.renew(caller, now),
            false => access.admit(caller, now),
        };
        let admitted = match (&mut self.caller, needs) {
            (None, Needs::Nothing) => Ok(Caller::anonymous()),
            (None, Needs::Key | Needs::Scope(_)) => Err(Denied::NoKey),
            (Some(caller), Needs::Nothing) => access.count(caller).map(|()| Caller::anonymous()),
            (Some(caller), Needs::Key) => admit(caller).map(|()| caller.clone()),
            (Some(caller), Needs::Scope(scope)) => admit(caller)
                .and_then(|()| caller.require(scope))
                .map(|()| caller.clone()),
        };
        admitted.map_err(|denied| {
            self.log_denied(shared, &denied, self.caller.as_ref(), command);
            denied.into()
        })
    }

    /// Logs that a key was rejected.
    fn log_denied(
        &self,
        shared: &RespContext,
        denied: &Denied,
        caller: Option<&Caller>,
        command: &'static str,
    ) {
        let Some(suppressed) = shared.access.next_log_line(denied) else {
            return;
        };
        let key = caller.map(Caller::name).filter(|key| !key.is_empty());
        let peer = self.logged_peer();
        tracing::info!(%denied, key, peer, command, suppressed, "a key was refused");
    }

    /// Returns the client's address for log lines.
    fn logged_peer(&self) -> Option<DisplayValue<IpAddr>> {
        self.peer.map(|peer| display(peer.ip().to_canonical()))
    }

    /// Logs slow commands, without the keys of filters and the arguments.
    pub fn log_slow(&self, shared: &RespContext, counts: &CommandCounts, took: Duration) {
        let Some(suppressed) = shared.slow.next_line() else {
            return;
        };
        let (commands, count) = counts.summary();
        let key = self
            .caller
            .as_ref()
            .map(Caller::name)
            .filter(|key| !key.is_empty());
        let peer = self.logged_peer();
        let client = self.id;
        let seconds = took.as_secs_f64();
        tracing::info!(
            commands,
            count,
            seconds,
            key,
            peer,
            client,
            suppressed,
            "a batch of commands was slow"
        );
    }
}

/// A connection's state that outlasts a command.
pub struct Visit<'a> {
    /// The state shared by all connections.
    pub shared: &'a RespContext,
    /// The key, the name and the transaction.
    pub session: Session,
    /// Unanswered commands, and replies.
    pub batch: Batch<'a>,
}

/// An admitted command, and the connection that it belongs to.
pub struct AdmittedCommand<'v, 'a> {
    /// The state shared by all connections.
    pub shared: &'a RespContext,
    /// The connection's session.
    pub session: &'v mut Session,
    /// The connection's batch, and its replies. Commands that write a reply settle it first.
    pub batch: &'v mut Batch<'a>,
    /// The command's row in the table.
    pub row: &'static Row,
    /// The command's name and arguments.
    pub arguments: Arguments<'v>,
    /// The key that sent it.
    pub caller: Caller,
}

/// The state of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Done {
    /// Its reply is written.
    Answered,
    /// The batch answers it, or it waits for EXEC.
    Deferred,
    /// Its reply is written, and is the last one of the connection.
    Ended,
}

impl AdmittedCommand<'_, '_> {
    /// Parses a key, mapped by the rules of the configuration; `None` if no filter can have it.
    pub fn key<'k>(&self, key: &'k [u8]) -> Option<FilterKey<'k>> {
        FilterKey::parse(key, &self.shared.options.keys)
    }

    /// Rejects a key that the caller may not use.
    ///
    /// # Errors
    /// `NOPERM`.
    pub fn require_key(&self, key: &FilterKey<'_>) -> Result<(), Failure> {
        self.caller.require_name(key.name()).map_err(|denied| {
            self.session
                .log_denied(self.shared, &denied, Some(&self.caller), self.row.spelling);
            denied.into()
        })
    }

    /// Returns the filter of a key, if there is one.
    ///
    /// # Errors
    /// `NOPERM`.
    pub fn find(&self, key: &[u8]) -> Result<Option<Arc<FilterView>>, Failure> {
        let Some(key) = self.key(key) else {
            return Ok(None);
        };
        self.require_key(&key)?;
        Ok(self.shared.engine.view().find(key.kind, key.name()))
    }

    /// Submits a command that is no part of a batch, and waits for its outcome.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn submit(&mut self, command: Command) -> Result<Outcome, Failure> {
        self.shared.submit(self.caller.key_name(), command).await
    }

    /// Logs an administrative act.
    pub fn log_act(&self, key: &FilterKey<'_>, result: &Result<Outcome, Failure>) {
        let outcome = match result {
            Ok(Outcome::Refused(refusal)) => Failure::refused(refusal).text,
            Ok(_) => "done".into(),
            Err(failure) => failure.text.clone(),
        };
        let act = self.row.spelling;
        let target = key.to_string();
        let key = Some(self.caller.name()).filter(|key| !key.is_empty());
        let peer = self.session.logged_peer();
        tracing::info!(act, key, target, %outcome, peer, "administrative act");
    }
}
