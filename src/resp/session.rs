//! Whom a connection belongs to, and what they may do.

use super::command::Needs;
use super::failure::{Code, Failure};
use super::shared::Shared;
use crate::access::{Caller, Denied};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

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
            return Err(Failure::err(format!("a transaction has at most {TRANSACTION_BYTES_MAX} bytes")));
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
    /// The transaction that the client has started.
    pub transaction: Option<Transaction>,
    /// Requests of an executed transaction, which run next.
    pub spliced: Vec<u8>,
    /// Commands of an executed transaction that have not run yet. They were counted in the key's rate when they were queued.
    pub counted: usize,
    /// Who has presented the last key that was known; anybody if there are no keys.
    caller: Option<Caller>,
    is_known: bool,
}

impl Session {
    /// A new connection. Without keys anybody may do everything.
    pub fn new(shared: &Shared, peer: Option<SocketAddr>) -> Self {
        let id = shared.last_connection.fetch_add(1, Ordering::Relaxed) + 1;
        let caller = shared.access.entry.caller(None).ok();
        Self { id, peer, is_known: caller.is_some(), caller, ..Self::default() }
    }

    /// Bytes of memory that transactions take.
    pub fn memory_bytes(&self) -> usize {
        self.transaction.as_ref().map_or(0, |transaction| transaction.requests.capacity())
    }

    /// Whether a key was presented that was in force at the last [`Self::look`], or none was needed.
    pub fn is_known(&self) -> bool {
        self.is_known
    }

    /// Looks whether the key is still in force: it may have expired or been removed.
    pub fn look(&mut self, shared: &Shared) {
        self.is_known = match &mut self.caller {
            Some(caller) => shared.access.entry.renew(caller, || shared.engine.now()).is_ok(),
            None => false,
        };
    }

    /// Presents a key.
    ///
    /// # Errors
    /// `WRONGPASS`; whoever the connection belonged to before, it still does.
    pub fn present(&mut self, shared: &Shared, key: &[u8]) -> Result<(), Failure> {
        let entry = &shared.access.entry;
        let caller = entry.caller(Some(key)).map_err(|denied| self.refused(shared, denied, None))?;
        let unexpired = caller.require_unexpired(|| shared.engine.now());
        unexpired.map_err(|denied| self.refused(shared, denied, Some(&caller)))?;
        (self.caller, self.is_known) = (Some(caller), true);
        Ok(())
    }

    fn refused(&self, shared: &Shared, denied: Denied, caller: Option<&Caller>) -> Failure {
        self.tell(shared, &denied, caller, "auth");
        match denied {
            Denied::KeyExpired(_) => Failure::new(Code::WrongPass, denied.to_string()),
            _ => Failure::new(Code::WrongPass, "invalid username-password pair or user is disabled."),
        }
    }

    /// Admits a command, or rejects it. Returns the caller: the keys may have changed since the last command. Commands that need no key
    /// get an anonymous caller. Every command of a key counts in its rate.
    ///
    /// # Errors
    /// `NOAUTH`, `NOPERM` or `RATELIMIT`.
    pub fn admit(&mut self, shared: &Shared, needs: Needs, command: &'static str) -> Result<Caller, Failure> {
        let (entry, now) = (&shared.access.entry, || shared.engine.now());
        let is_counted = self.counted > 0;
        self.counted = self.counted.saturating_sub(1);
        let admit = |caller: &mut Caller| match is_counted {
            true => entry.renew(caller, now),
            false => entry.admit(caller, now),
        };
        let admitted = match (&mut self.caller, needs) {
            (None, Needs::Nothing) => Ok(Caller::anybody()),
            (None, Needs::Key | Needs::Scope(_)) => Err(Denied::NoKey),
            (Some(caller), Needs::Nothing) => entry.count(caller).map(|()| Caller::anybody()),
            (Some(caller), Needs::Key) => admit(caller).map(|()| caller.clone()),
            (Some(caller), Needs::Scope(scope)) => {
                admit(caller).and_then(|()| caller.require(scope)).map(|()| caller.clone())
            }
        };
        admitted.map_err(|denied| {
            self.tell(shared, &denied, self.caller.as_ref(), command);
            denied.into()
        })
    }

    /// Refuses a name that the caller may not use.
    ///
    /// # Errors
    /// `NOPERM`.
    pub fn require_name(
        &self,
        shared: &Shared,
        caller: &Caller,
        name: &str,
        command: &'static str,
    ) -> Result<(), Failure> {
        caller.require_name(name).map_err(|denied| {
            self.tell(shared, &denied, Some(caller), command);
            denied.into()
        })
    }

    /// Logs that a key was refused.
    fn tell(&self, shared: &Shared, denied: &Denied, caller: Option<&Caller>, command: &'static str) {
        let Some(untold) = shared.access.tells(denied) else { return };
        let key = caller.map(Caller::name).filter(|key| !key.is_empty());
        let peer = self.peer.map(|peer| peer.ip()).map(tracing::field::display);
        tracing::info!(%denied, key, peer, command, untold, "a key was refused");
    }
}
