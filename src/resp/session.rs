//! Whom a connection belongs to, and what they may do.

use super::command::Needs;
use super::failure::{Code, Failure};
use super::shared::Shared;
use crate::access::{Caller, Client, Denied, Holder};
use crate::domain::Kind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The state of a connection that outlasts a command.
pub struct Session {
    /// The connection's number.
    pub id: u64,
    /// The client's address.
    pub peer: Option<SocketAddr>,
    /// The name that the client has given the connection.
    pub name: Vec<u8>,
    /// Who has presented the last key that was known; anybody if there are no keys.
    holder: Option<Holder>,
    is_known: bool,
}

impl Session {
    /// A new connection. Without keys anybody may do everything.
    pub fn new(shared: &Shared, peer: Option<SocketAddr>) -> Self {
        let id = shared.last_connection.fetch_add(1, Ordering::Relaxed) + 1;
        let holder = shared.access.entry.holder(None).ok();
        let is_known = holder.is_some();
        Self { id, peer, name: Vec::new(), holder, is_known }
    }

    /// Whether a key was presented that was in force at the last [`Self::look`], or none was needed.
    pub fn is_known(&self) -> bool {
        self.is_known
    }

    /// Looks whether the key is still in force: it may have expired or been removed.
    pub fn look(&mut self, shared: &Shared) {
        self.is_known = match &mut self.holder {
            Some(holder) => shared.access.entry.renew(holder, || shared.engine.now()).is_ok(),
            None => false,
        };
    }

    /// Presents a key.
    ///
    /// # Errors
    /// `WRONGPASS`; whoever the connection belonged to before, it still does.
    pub fn present(&mut self, shared: &Shared, key: &[u8]) -> Result<(), Failure> {
        let entry = &shared.access.entry;
        let holder = entry.holder(Some(key)).map_err(|denied| self.refused(shared, denied, None))?;
        let unexpired = holder.caller().require_unexpired(|| shared.engine.now());
        unexpired.map_err(|denied| self.refused(shared, denied, Some(holder.caller())))?;
        (self.holder, self.is_known) = (Some(holder), true);
        Ok(())
    }

    fn refused(&self, shared: &Shared, denied: Denied, caller: Option<&Caller>) -> Failure {
        self.tell(shared, &denied, caller, "auth");
        match denied {
            Denied::KeyExpired(_) => Failure::new(Code::WrongPass, denied.to_string()),
            _ => Failure::new(Code::WrongPass, "invalid username-password pair or user is disabled."),
        }
    }

    /// Admits a command, or refuses it. Returns whom the connection belongs to: the keys may have changed since the last command. Anybody
    /// stands for whoever needs no key.
    ///
    /// # Errors
    /// `NOAUTH`, `NOPERM` or `RATELIMIT`.
    pub fn admit(
        &mut self,
        shared: &Shared,
        needs: Needs,
        command: &'static str,
    ) -> Result<Arc<Caller>, Failure> {
        let (entry, now) = (&shared.access.entry, || shared.engine.now());
        let admitted = match (&mut self.holder, needs) {
            (_, Needs::Nothing) => return Ok(Arc::new(Caller::anybody())),
            (None, _) => Err(Denied::NoKey),
            (Some(holder), Needs::Key) => entry.renew(holder, now).map(|()| holder.caller().clone()),
            (Some(holder), Needs::Scope(scope)) => entry
                .admit_holder(holder, now)
                .and_then(|()| holder.caller().require(scope))
                .map(|()| holder.caller().clone()),
        };
        admitted.map_err(|denied| {
            let caller = self.holder.as_ref().map(|holder| &**holder.caller());
            self.tell(shared, &denied, caller, command);
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
        let key = caller.map(Caller::name).filter(|key| !key.is_empty());
        let peer = self.peer.map(|peer| peer.ip()).map(tracing::field::display);
        tracing::info!(%denied, key, peer, command, untold, "a key was refused");
    }
}
