//! Refusals without an entry in the log: a redemption that can only be refused is answered from what readers see. Only a node that has the
//! log for itself does so.
//!
//! The answer is the one that the log would have given in between, because
//! - it is taken from a state between two group commits: all of an entry and nothing of the next, durable as far as the log ever is;
//! - the entry would change nothing of what it finds, and get the same answer at every time from that of the last entry to the clock's;
//! - no earlier attempt at the code is under way, which a repeated request must find.

use super::{Engine, Inner, timekeeping};
use crate::domain::{Kind, Reference, Refusal};
use crate::filter::Digest;
use crate::state::FilterView;

impl Engine {
    /// The refusal that a redemption gets now, if it is certain. Then it need not be submitted: nothing would come of it. A request that
    /// asks for its answer to be kept (idempotency) has to be.
    pub fn certain_refusal(
        &self,
        coupon: &FilterView,
        digest: Digest,
        reference: &Reference,
    ) -> Option<Refusal> {
        let Inner { options, refusals, metrics, .. } = &*self.inner;
        // The attempts first: a failure of storage is known before the attempts end that it leaves undecided.
        if options.journal.is_shared() || refusals.is_attempted(digest) || self.refuse_unless_ready().is_err()
        {
            return None;
        }
        let refusal = refusals.between_commits(|| self.refusal_now(coupon, digest, reference))?;
        metrics.refused_unlogged.inc();
        Some(refusal)
    }

    fn refusal_now(&self, coupon: &FilterView, digest: Digest, reference: &Reference) -> Option<Refusal> {
        let Inner { clock, board, .. } = &*self.inner;
        let logged = board.logged_at();
        // Where the clock can't be trusted, the writer says so.
        let now = timekeeping::stamp(clock, None, logged).ok()?;
        // The request may have found it before its window, its stock or its tables were replaced.
        let newest = self.find(Kind::Coupon, &coupon.name).filter(|newest| newest.id == coupon.id)?;
        newest.certain_refusal(digest, reference, logged, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, ClockLimits, ManualTime};
    use crate::domain::{Command, Name, Outcome, Sizing, Spec, Target, Timestamp, Window};
    use crate::engine::unlogged::Attempt;
    use crate::engine::{EngineOptions, Growth, JournalOptions, Mode, Status};
    use crate::journal::{Durability, LocalOptions, MemoryLog};
    use std::sync::Arc;
    use std::time::Duration;
    use tempfile::TempDir;

    /// An open pool that is sold out.
    struct SoldOut {
        engine: Engine,
        pool: Arc<FilterView>,
        time: Arc<ManualTime>,
        _directory: TempDir,
    }

    impl SoldOut {
        async fn new() -> SoldOut {
            let local = LocalOptions::at(Durability::Relaxed);
            Self::over(|options| options.on_local_journal(local)).await
        }

        async fn over(journal: impl FnOnce(EngineOptions) -> EngineOptions) -> SoldOut {
            let directory = tempfile::tempdir().unwrap();
            let mut options = journal(EngineOptions::new(directory.path()));
            (options.store.free_space_min_bytes, options.store.ballast_bytes) = (0, 0);
            let time = Arc::new(ManualTime::at(Timestamp(1_000_000)));
            let engine = Engine::start(options, Clock::new(time.clone(), ClockLimits::default()));
            assert_eq!(engine.recovered().await, Status::Ready);
            let (mode, growth, sizing) = (Mode::Strict, Growth::Auto, Sizing::Exact);
            let stock = Some(1);
            let spec = Spec { capacity: 10, mode, growth, sizing, ignore_case: false, stock, forget: None };
            let name = Name::new("sale").unwrap();
            let create = engine.creation(Kind::Coupon, name.clone(), spec, Window::default()).unwrap();
            engine.submit(create, None).await.unwrap();
            let pool = engine.find(Kind::Coupon, &name).unwrap();
            let sold_out = SoldOut { engine, pool, time, _directory: directory };
            sold_out.engine.submit(sold_out.redeem(0), None).await.unwrap();
            sold_out
        }

        fn redeem(&self, code: u64) -> Command {
            let target = Target(self.pool.id);
            let (digest, reference) = (digest(code), reference(code));
            let redemption = self.engine.redemption_id();
            Command::Redeem { target, digest, redemption, reference, hold_seconds: 0 }
        }

        fn refusal(&self, code: u64) -> Option<Refusal> {
            self.engine.certain_refusal(&self.pool, digest(code), &reference(code))
        }
    }

    fn digest(code: u64) -> Digest {
        Digest((code + 1) << 32 | code)
    }

    fn reference(code: u64) -> Reference {
        Reference::new(&format!("order-{code}")).unwrap()
    }

    #[tokio::test]
    async fn a_refusal_is_that_of_the_log_and_needs_no_entry() {
        let sold_out = SoldOut::new().await;
        let before = sold_out.engine.info().last_seq;
        assert_eq!(sold_out.refusal(1), Some(Refusal::SoldOut));
        // Whoever is in gets the redemption again.
        assert_eq!(sold_out.refusal(0), None);
        assert_eq!(sold_out.engine.info().last_seq, before);
        let logged = sold_out.engine.submit(sold_out.redeem(1), None).await.unwrap();
        assert_eq!(logged.outcome, Outcome::Refused(Refusal::SoldOut));
        assert_eq!(sold_out.engine.metrics().refused_unlogged.get(), 1);
    }

    /// The first attempt may yet be let in: whoever repeats it must not be told that it is not.
    #[tokio::test]
    async fn a_repeated_request_does_not_overtake_the_first() {
        let sold_out = SoldOut::new().await;
        let first = Attempt::of(&sold_out.engine.inner.refusals, &sold_out.redeem(1));
        let second = Attempt::of(&sold_out.engine.inner.refusals, &sold_out.redeem(1));
        assert!(first.is_some());
        assert_eq!((sold_out.refusal(1), sold_out.refusal(2)), (None, Some(Refusal::SoldOut)));
        drop(first);
        assert_eq!(sold_out.refusal(1), None);
        drop(second);
        assert_eq!(sold_out.refusal(1), Some(Refusal::SoldOut));
        let other = Command::Clear { target: Target(sold_out.pool.id) };
        assert!(Attempt::of(&sold_out.engine.inner.refusals, &other).is_none());
    }

    /// Its caller may have gone away: the log decides all the same.
    #[tokio::test]
    async fn an_attempt_lasts_until_the_log_has_decided() {
        let log = MemoryLog::new();
        let journal = JournalOptions::Memory(log.clone());
        let sold_out = SoldOut::over(|options| EngineOptions { journal, ..options }).await;
        let refusals = sold_out.engine.inner.refusals.clone();
        log.hold();
        let (engine, redeem) = (sold_out.engine.clone(), sold_out.redeem(1));
        let caller = tokio::spawn(async move { engine.submit(redeem, None).await });
        while log.held() == 0 {
            tokio::task::yield_now().await;
        }
        assert!(refusals.is_attempted(digest(1)));
        caller.abort();
        assert!(caller.await.unwrap_err().is_cancelled());
        assert!(refusals.is_attempted(digest(1)));
        log.go_on();
        // Behind it in the log.
        sold_out.engine.submit(sold_out.redeem(2), None).await.unwrap();
        assert!(!refusals.is_attempted(digest(1)) && !refusals.is_attempted(digest(2)));
    }

    #[tokio::test]
    async fn nobody_is_refused_by_what_is_being_applied_or_is_not_so_any_more() {
        let sold_out = SoldOut::new().await;
        sold_out.engine.inner.refusals.begin();
        assert_eq!(sold_out.refusal(1), None);
        sold_out.engine.inner.refusals.end();
        assert_eq!(sold_out.refusal(1), Some(Refusal::SoldOut));
        // The request has found the pool before.
        let raise = sold_out.engine.update(&sold_out.pool, None, None, None, Some(2)).unwrap();
        sold_out.engine.submit(raise, None).await.unwrap();
        assert_eq!(sold_out.refusal(1), None);
        sold_out.engine.submit(sold_out.redeem(2), None).await.unwrap();
        assert_eq!(sold_out.refusal(1), Some(Refusal::SoldOut));
        let delete = Command::Delete { kind: Kind::Coupon, name: sold_out.pool.name.clone() };
        sold_out.engine.submit(delete, None).await.unwrap();
        assert_eq!(sold_out.refusal(1), None);
    }

    /// The clock has passed the end, but it may be set back: only an entry makes sure that nobody is let in any more.
    #[tokio::test]
    async fn an_end_or_a_beginning_is_certain_at_both_times_or_not_at_all() {
        let sold_out = SoldOut::new().await;
        let set = async |starts_at: u64, ends_at: u64| {
            let window = [starts_at, ends_at].map(|at| Some(Some(Timestamp(at))));
            let update = sold_out.engine.update(&sold_out.pool, window[0], window[1], None, None);
            sold_out.engine.submit(update.unwrap(), None).await.unwrap();
        };
        set(0, 1_000_100).await;
        assert_eq!(sold_out.refusal(1), Some(Refusal::SoldOut));
        sold_out.time.pass(Duration::from_millis(100));
        assert_eq!(sold_out.refusal(1), None);
        let logged = sold_out.engine.submit(sold_out.redeem(1), None).await.unwrap();
        assert_eq!(logged.outcome, Outcome::Refused(Refusal::OutsideWindow));
        assert_eq!(sold_out.refusal(1), Some(Refusal::OutsideWindow));
        set(1_000_300, 1_000_400).await;
        assert_eq!(sold_out.refusal(1), Some(Refusal::OutsideWindow));
        // It has begun by the clock, and not by the log.
        sold_out.time.pass(Duration::from_millis(200));
        assert_eq!(sold_out.refusal(1), None);
    }

    #[tokio::test]
    async fn the_writer_answers_when_the_clock_is_wrong_and_at_the_end() {
        let sold_out = SoldOut::new().await;
        sold_out.time.set_wall(Timestamp(1_000_000 + 3_600_001));
        assert_eq!(sold_out.refusal(1), None);
        sold_out.time.set_wall(Timestamp(1_000_000));
        assert_eq!(sold_out.refusal(1), Some(Refusal::SoldOut));
        sold_out.engine.shutdown().await;
        assert_eq!(sold_out.refusal(1), None);
    }
}
