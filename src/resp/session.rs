//! Whom a connection belongs to, and what they may do.

use super::command::Needs;
use super::failure::{Code, Failure};
use super::shared::Shared;
use crate::access::{Caller, Client, Denied};
use crate::domain::{Kind, Name};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

/// The state of a connection that outlasts a command.
pub struct Session {
    /// The connection's number.
    pub id: u64,
    /// The client's address.
    pub peer: Option<SocketAddr>,
    /// The name that the client has given the connection.
    pub name: Vec<u8>,
    /// The last key that was presented and known; anybody if there are no keys.
    caller: Option<Caller>,
}

impl Session {
    /// A new connection. Without keys anybody may do everything.
    pub fn new(shared: &Shared, peer: Option<SocketAddr>) -> Self {
        let id = shared.last_connection.fetch_add(1, Ordering::Relaxed) + 1;
        let caller = shared.access.entry.is_open().then(Caller::anybody);
        Self { id, peer, name: Vec::new(), caller }
    }

    /// Whether a known key was presented, or none is needed.
    pub fn is_known(&self) -> bool {
        self.caller.is_some()
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
        self.caller = Some(caller);
        Ok(())
    }

    fn refused(&self, shared: &Shared, denied: Denied, caller: Option<&Caller>) -> Failure {
        self.tell(shared, &denied, caller, "auth");
        match denied {
            Denied::KeyExpired(_) => Failure::new(Code::WrongPass, denied.to_string()),
            _ => Failure::new(Code::WrongPass, "invalid username-password pair or user is disabled."),
        }
    }

    /// Admits a command, or refuses it. Returns whom the connection belongs to: the keys may have changed since the last command.
    ///
    /// # Errors
    /// `NOAUTH`, `NOPERM` or `RATELIMIT`.
    pub fn admit(&self, shared: &Shared, needs: Needs, command: &'static str) -> Result<Caller, Failure> {
        let entry = &shared.access.entry;
        let caller = match &self.caller {
            Some(caller) => entry.again(caller),
            None => Err(Denied::NoKey),
        };
        let caller = match caller {
            Ok(caller) => caller,
            Err(_) if needs == Needs::Nothing => Caller::anybody(),
            Err(denied) => {
                self.tell(shared, &denied, None, command);
                return Err(denied.into());
            }
        };
        let Needs::Scope(scope) = needs else { return Ok(caller) };
        let admitted = entry.admit(&caller, || shared.engine.now()).and_then(|()| caller.require(scope));
        if let Err(denied) = admitted {
            self.tell(shared, &denied, Some(&caller), command);
            return Err(denied.into());
        }
        Ok(caller)
    }

    /// Refuses a name that the caller may not use.
    ///
    /// # Errors
    /// `NOPERM`.
    pub fn require_name(
        &self,
        shared: &Shared,
        caller: &Caller,
        name: &Name,
        command: &'static str,
    ) -> Result<(), Failure> {
        caller.require_name(name.as_str()).map_err(|denied| {
            self.tell(shared, &denied, Some(caller), command);
            denied.into()
        })
    }

    /// The end user for the limit on guessing codes. There is no command that names one, so it is the client's address.
    pub fn client(&self, shared: &Shared, caller: &Caller, kind: Kind) -> Option<Client> {
        match kind {
            Kind::Campaign => None,
            Kind::Coupon => shared.access.guessing.client(caller, None, self.peer.map(|peer| peer.ip())),
        }
    }

    /// Logs that a key was refused.
    fn tell(&self, shared: &Shared, denied: &Denied, caller: Option<&Caller>, command: &'static str) {
        let Some(untold) = shared.access.tells(denied) else { return };
        let key = caller.map(Caller::name);
        let peer = self.peer.map(|peer| peer.ip()).map(tracing::field::display);
        tracing::info!(%denied, key, peer, command, untold, "a key was refused");
    }
}
