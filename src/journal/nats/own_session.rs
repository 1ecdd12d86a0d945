//! This node's session: the one in which its commits count, and the next one while it is being begun.
//!
//! What is published to begin a session stays the same until it is read back: the log makes nothing of a copy. If it is read back as
//! void, the node has begun another session behind what this process knew: an earlier process has, or one with the same name.
//! Then it is tried anew, with what is known now.

use super::message::Session;
use super::under_way::{Bracket, UnderWay};
use std::time::{Duration, Instant};

/// The pause before the next session where sessions end without a commit, one after the other: it doubles from here.
const PAUSE_MIN: Duration = Duration::from_millis(250);

/// The longest such pause. A session then takes no more of the log than an idle node does.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// A server that has acknowledged nothing for so long is given up for another one: it may be stopped, or cut off from the others.
const SERVER_PATIENCE: Duration = Duration::from_secs(5);

/// How often another process may begin sessions of this node's name above ours, within [`OVERTAKEN_WITHIN`]. A process that has died
/// may have done so once.
const OVERTAKEN_MAX: u32 = 3;

const OVERTAKEN_WITHIN: Duration = Duration::from_secs(60);

/// What is published to begin a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Begin {
    pub(super) session: Session,
    /// The last message that this node had read.
    pub(super) read: u64,
}

/// What it means that a session of this node's name has begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Begun {
    /// It is the one that was to begin.
    Ours(Bracket),
    /// An earlier process has begun it.
    Earlier,
    /// Another process has begun it above ours, which is over. The next one is on its way.
    Overtaken,
    /// The same, once too often: the other process lives.
    Taken,
}

/// This node's session.
#[derive(Debug, Default)]
pub(super) struct OwnSession {
    /// The session in which commits count now, as read in the log.
    current: Option<Session>,
    /// From when on the next session is to begin.
    begin_at: Option<Instant>,
    /// What begins it, once it was published.
    beginning: Option<UnderWay<Begin>>,
    attempts: u32,
    /// Since when the server has acknowledged no attempt.
    unanswered_since: Option<Instant>,
    /// Sessions that have begun since a commit was last read back.
    fruitless: u32,
    /// How often another process has begun a session above ours, and when it did last.
    overtaken: Option<(u32, Instant)>,
}

impl OwnSession {
    /// The session in which commits count.
    pub(super) fn current(&self) -> Option<Session> {
        self.current
    }

    /// Whether the next one is on its way: nothing else is published then.
    pub(super) fn is_beginning(&self) -> bool {
        self.begin_at.is_some()
    }

    /// What was published in the current session is of unknown fate: only the next session tells.
    pub(super) fn start_over(&mut self, now: Instant) {
        if self.begin_at.is_some() {
            return;
        }
        // The first one after a commit begins at once, and so does the one after that.
        let doublings = self.fruitless.checked_sub(2);
        let pause = doublings.map_or(Duration::ZERO, |times| PAUSE_MIN.saturating_mul(1 << times.min(8)));
        self.begin_at = Some(now + pause.min(PAUSE_MAX));
        (self.attempts, self.unanswered_since) = (0, None);
    }

    /// What is to be published now by a node that has read the log up to message `read`.
    pub(super) fn due(&mut self, read: u64, now: Instant) -> Option<Begin> {
        self.begin_at.filter(|at| *at <= now)?;
        let begin = match &mut self.beginning {
            Some(beginning) if !beginning.is_due(now) => return None,
            Some(beginning) => {
                beginning.again_at = None;
                beginning.what
            }
            None => {
                let mut id = [0; 16];
                getrandom::fill(&mut id).expect("the operating system gives random bytes once it has booted");
                let begin = Begin { session: Session(u128::from_le_bytes(id)), read };
                self.beginning = Some(UnderWay::new(begin, now));
                begin
            }
        };
        self.attempts += 1;
        self.unanswered_since.get_or_insert(now);
        Some(begin)
    }

    /// Whether the server should be given up for another one. Says so once, then waits again.
    pub(super) fn gives_server_up(&mut self, now: Instant) -> bool {
        let since = self.unanswered_since.filter(|since| *since + SERVER_PATIENCE <= now);
        if since.is_some() {
            self.unanswered_since = Some(now);
        }
        since.is_some()
    }

    fn attempt(&mut self, session: Session) -> Option<&mut UnderWay<Begin>> {
        self.beginning.as_mut().filter(|beginning| beginning.what.session == session)
    }

    pub(super) fn acked(&mut self, session: Session, now: Instant) {
        if let Some(beginning) = self.attempt(session) {
            beginning.acked(now);
            self.unanswered_since = None;
        }
    }

    /// The servers have refused an attempt, or are silent. Returns how many there were, if it is still of interest.
    pub(super) fn refused(&mut self, session: Session, now: Instant) -> Option<u32> {
        self.attempt(session)?.refused(now);
        Some(self.attempts)
    }

    /// What a server has acknowledged does not come although the log was read past it: publishes it again.
    pub(super) fn try_again(&mut self, now: Instant) {
        if let Some(beginning) = &mut self.beginning {
            beginning.again_at = Some(now);
        }
    }

    /// A session of this node's name has begun.
    pub(super) fn read(&mut self, session: Session, now: Instant) -> Begun {
        if let Some(beginning) = self.beginning.take_if(|beginning| beginning.what.session == session) {
            (self.current, self.begin_at) = (Some(session), None);
            self.fruitless = self.fruitless.saturating_add(1);
            return Begun::Ours(beginning.bracket(now));
        }
        if self.current.is_none() {
            return Begun::Earlier;
        }
        let known = self.overtaken.filter(|(_, at)| now.saturating_duration_since(*at) < OVERTAKEN_WITHIN);
        let times = known.map_or(0, |(times, _)| times) + 1;
        self.overtaken = Some((times, now));
        if times >= OVERTAKEN_MAX {
            return Begun::Taken;
        }
        // What may be on its way does not know of the other one, so it is void.
        (self.beginning, self.begin_at) = (None, None);
        self.start_over(now);
        Begun::Overtaken
    }

    /// A message that would have begun this session is void.
    pub(super) fn read_void(&mut self, session: Session) {
        self.beginning.take_if(|beginning| beginning.what.session == session);
    }

    /// A commit was read back.
    pub(super) fn committed(&mut self) {
        self.fruitless = 0;
    }

    /// Since when a session is being begun.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.beginning.map(|beginning| beginning.sent).or(self.begin_at)
    }

    /// Since when what begins a session is acknowledged and was not read back.
    pub(super) fn acked_since(&self) -> Option<Instant> {
        self.beginning.and_then(|beginning| beginning.acked_at)
    }

    /// When there is something to publish.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        match &self.beginning {
            Some(beginning) => beginning.again_at,
            None => self.begin_at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Begins a session at once.
    fn begun(own: &mut OwnSession, read: u64, now: Instant) -> Session {
        own.start_over(now);
        let begin = own.due(read, own.wake_at().unwrap()).unwrap();
        assert!(matches!(own.read(begin.session, now), Begun::Ours(_)));
        begin.session
    }

    #[test]
    fn what_begins_a_session_is_the_same_until_it_is_read_back() {
        let (mut own, now) = (OwnSession::default(), Instant::now());
        own.start_over(now);
        let first = own.due(5, now).unwrap();
        assert_eq!(own.due(5, now), None, "an acknowledgement may come");
        assert_eq!(own.refused(first.session, now), Some(1));
        let later = own.wake_at().unwrap();
        assert!(later > now);
        assert_eq!(own.due(7, later), Some(first), "a copy");
        // Refused, and in the log all the same.
        own.refused(first.session, later);
        own.acked(first.session, later + seconds(1));
        let bracket = Bracket { sent: now, seen: later + seconds(1) };
        assert_eq!(own.read(first.session, later + seconds(9)), Begun::Ours(bracket));
        assert_eq!((own.current(), own.is_beginning(), own.wake_at()), (Some(first.session), false, None));
        // It came twice.
        own.read_void(first.session);
        assert!(!own.is_beginning());
    }

    #[test]
    fn what_is_void_is_tried_anew_with_what_is_known_then() {
        let (mut own, now) = (OwnSession::default(), Instant::now());
        own.start_over(now);
        let first = own.due(5, now).unwrap();
        assert_eq!(own.read(Session(1), now), Begun::Earlier);
        own.read_void(first.session);
        assert!(own.is_beginning());
        let second = own.due(9, now).unwrap();
        assert_eq!(second.read, 9);
        assert_ne!(second.session, first.session);
        assert!(matches!(own.read(second.session, now), Begun::Ours(_)));
    }

    /// A process that was killed may have sent one last message. One that sends more is alive.
    #[test]
    fn a_session_that_is_begun_above_ours_is_answered_until_it_happens_too_often() {
        let (mut own, mut now) = (OwnSession::default(), Instant::now());
        begun(&mut own, 1, now);
        for _ in 0..9 {
            assert_eq!(own.read(Session(1), now), Begun::Overtaken);
            let next = own.due(7, own.wake_at().unwrap()).unwrap();
            assert!(matches!(own.read(next.session, now), Begun::Ours(_)));
            own.committed();
            now += OVERTAKEN_WITHIN;
        }
        for _ in 1..OVERTAKEN_MAX {
            assert_eq!(own.read(Session(2), now), Begun::Overtaken);
        }
        assert_eq!(own.read(Session(2), now), Begun::Taken);
    }

    /// The log must not fill up with sessions where commits are refused.
    #[test]
    fn sessions_without_a_commit_come_ever_more_slowly() {
        let (mut own, now) = (OwnSession::default(), Instant::now());
        let mut pauses = Vec::new();
        for _ in 0..12 {
            own.start_over(now);
            let at = own.wake_at().unwrap();
            pauses.push(at - now);
            assert!(at == now || own.due(1, now).is_none());
            let begin = own.due(1, at).unwrap();
            assert!(matches!(own.read(begin.session, at), Begun::Ours(_)));
        }
        let milliseconds: Vec<u128> = pauses.iter().map(Duration::as_millis).collect();
        assert_eq!(milliseconds, [0, 0, 250, 500, 1_000, 2_000, 4_000, 5_000, 5_000, 5_000, 5_000, 5_000]);
        own.committed();
        own.start_over(now);
        assert_eq!(own.wake_at(), Some(now));
    }

    #[test]
    fn a_server_that_refuses_is_given_up_now_and_then() {
        let (mut own, start) = (OwnSession::default(), Instant::now());
        own.start_over(start);
        let mut given_up = 0;
        // No responders: the answer comes at once, again and again.
        for tick in 0..400 {
            let now = start + Duration::from_millis(50) * tick;
            if let Some(begin) = own.due(1, now) {
                given_up += u32::from(own.gives_server_up(now));
                own.refused(begin.session, now);
            }
        }
        assert_eq!(given_up, 3, "in 20 s");
    }
}
