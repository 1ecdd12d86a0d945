//! Refusals without an entry in the log: a redemption that can only be refused is answered from the view. Only a node with a local log does
//! so.
//!
//! The outcome is the one that the log would have given in between, because
//! - it is read from a state between two group commits: all of an entry and nothing of the next, as durable as the log;
//! - the entry would change nothing it depends on, and have the same outcome at every time from that of the last entry to the clock's;
//! - no earlier attempt at the code is in progress, which a repeated request must find.

use cuckood_filter::Digest;
use cuckood_state::domain::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Rows and columns of the counts of attempts.
const COUNTS: usize = 32;

/// The writer's progress, for readers that refuse without it.
#[derive(Default)]
pub(super) struct Refusals {
    /// Odd while entries are applied: a sequence lock over the complete state.
    applying: AtomicU64,
    /// By code: redemptions that were accepted, and that the log has not decided yet. Codes that share a count only send each other to the
    /// writer.
    attempts: [[AtomicU32; COUNTS]; COUNTS],
}

/// A redemption in progress. It ends when this is dropped.
pub(super) struct PendingRedemption {
    refusals: Arc<Refusals>,
    digest: Digest,
}

impl Refusals {
    /// Entries are applied from here on. Only the writer says so.
    pub(super) fn begin(&self) {
        self.applying.fetch_add(1, Ordering::Relaxed);
        // A reader that sees something of the entries sees that they are being applied.
        fence(Ordering::Release);
    }

    /// All of them are applied, and readers can see it.
    pub(super) fn end(&self) {
        self.applying.fetch_add(1, Ordering::Release);
    }

    /// Reads the state, and returns the result if no entry was applied during it.
    pub(super) fn between_commits<T>(&self, read: impl FnOnce() -> Option<T>) -> Option<T> {
        let before = self.applying.load(Ordering::Acquire);
        if !before.is_multiple_of(2) {
            return None;
        }
        let found = read();
        fence(Ordering::Acquire);
        found.filter(|_| self.applying.load(Ordering::Relaxed) == before)
    }

    /// Whether an attempt at this code may be in progress. If it returns false, the effects of all earlier attempts are visible.
    pub(super) fn is_attempted(&self, digest: Digest) -> bool {
        self.attempts(digest).load(Ordering::Acquire) > 0
    }

    fn attempts(&self, digest: Digest) -> &AtomicU32 {
        // The low bits of a digest choose its fingerprint, and any bits do here.
        let code = (digest.0 >> 32) as usize;
        &self.attempts[code / COUNTS % COUNTS][code % COUNTS]
    }
}

impl PendingRedemption {
    /// Notes the attempt that a command is, if it is one.
    pub(super) fn of(refusals: &Arc<Refusals>, command: &Command) -> Option<PendingRedemption> {
        let (Command::Redeem(redeem) | Command::RedeemFor { redeem, .. }) = command else {
            return None;
        };
        let digest = redeem.digest;
        refusals.attempts(digest).fetch_add(1, Ordering::Relaxed);
        Some(PendingRedemption {
            refusals: refusals.clone(),
            digest,
        })
    }
}

impl Drop for PendingRedemption {
    fn drop(&mut self) {
        // After a panic of the writer, the next startup decides.
        if std::thread::panicking() {
            return;
        }
        // A reader that sees the end of the attempt also sees its effects.
        self.refusals
            .attempts(self.digest)
            .fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, ClockLimits};
    use crate::config::Config;
    use crate::engine::journal::JournalOptions;
    use crate::engine::{Engine, EngineOptions, EngineStatus, SubmitError, creation};
    use cuckood_filter::{Growth, Mode};
    use cuckood_log::journal::OpenJournal;
    use cuckood_log::journal::{
        Delivery, Durability, Journal, JournalError, LocalJournal, LocalOptions, Ticket,
    };
    use cuckood_log::store::Store;
    use cuckood_state::FilterView;
    use cuckood_state::domain::{
        ClockReading, Kind, Name, Normalization, Outcome, Proposal, Redeem, RedemptionId,
        Reference, Refusal, Seq, Settings, Sizing, Spec, Supply, Target, Timestamp, Update, Window,
    };
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize};
    use std::task::{Context, Poll};
    use std::time::{Duration, Instant};
    use tempfile::TempDir;

    /// An open pool that is sold out.
    struct SoldOut {
        engine: Engine,
        pool: Arc<FilterView>,
        /// The clock's reading, in milliseconds.
        time: Arc<AtomicU64>,
        _directory: TempDir,
    }

    impl SoldOut {
        async fn new() -> SoldOut {
            Self::over(|options| options).await
        }

        async fn over(adjust: impl FnOnce(EngineOptions) -> EngineOptions) -> SoldOut {
            let directory = tempfile::tempdir().unwrap();
            let config = Config::load(None, [("CUCKOOD__STORAGE__DURABILITY", "relaxed")]).unwrap();
            let path = directory.path().to_owned();
            let settings = Settings::default();
            let mut options = adjust(EngineOptions {
                path,
                settings,
                ..config.engine_options()
            });
            (
                options.store.free_space_min_bytes,
                options.store.ballast_bytes,
            ) = (0, 0);
            let time = Arc::new(AtomicU64::new(1_000_000));
            let wall = time.clone();
            let reading = move || ClockReading {
                wall: Timestamp(wall.load(Ordering::Relaxed)),
                uptime: Duration::ZERO,
            };
            let engine = Engine::start(options, Clock::new(reading, ClockLimits::default()));
            assert_eq!(engine.recovered().await, EngineStatus::Ready);
            let mode = Mode::Strict;
            let growth = Growth::Auto;
            let sizing = Sizing::Exact;
            let spec = Spec {
                capacity: 10,
                mode,
                growth,
                sizing,
                normalization: Normalization::Exact,
                supply: Supply::of_stock(1),
                forget: None,
            };
            let name = Name::new("sale").unwrap();
            let create = creation(
                Kind::Coupon,
                name.clone(),
                spec,
                Window::default(),
                Default::default(),
            )
            .unwrap();
            engine.submit(None, create, None).await.unwrap();
            let pool = engine.view().find(Kind::Coupon, &name).unwrap();
            let sold_out = SoldOut {
                engine,
                pool,
                time,
                _directory: directory,
            };
            sold_out
                .engine
                .submit(None, sold_out.redeem(0), None)
                .await
                .unwrap();
            sold_out
        }

        fn update(
            &self,
            [starts_at, ends_at]: [Option<Option<Timestamp>>; 2],
            stock: Option<u64>,
        ) -> Command {
            let target = Target(self.pool.id);
            let annotations = Default::default();
            Command::Update(Update {
                target,
                starts_at,
                ends_at,
                capacity: None,
                stock,
                annotations,
            })
        }

        fn redeem(&self, code: u64) -> Command {
            self.hold(code, 0).1
        }

        fn hold(&self, code: u64, hold_seconds: u64) -> (RedemptionId, Command) {
            let target = Target(self.pool.id);
            let digest = digest(code);
            let reference = reference(code);
            let redemption = RedemptionId(cuckood_log::journal::random());
            (
                redemption,
                Command::Redeem(Redeem {
                    target,
                    digest,
                    redemption,
                    reference,
                    hold_seconds,
                }),
            )
        }

        fn refusal(&self, code: u64) -> Option<Refusal> {
            self.engine
                .certain_refusal(&self.pool, digest(code), &reference(code), None)
        }
    }

    /// A log that delivers nothing while it is held.
    #[derive(Clone, Debug, Default)]
    struct Hold {
        is_on: Arc<AtomicBool>,
        proposed: Arc<AtomicUsize>,
    }

    struct Held(LocalJournal, Hold);

    impl OpenJournal for Hold {
        fn open(&self, store: &Arc<Store>) -> Result<Box<dyn Journal>, JournalError> {
            let local = LocalJournal::open(store.clone(), LocalOptions::at(Durability::Relaxed))?;
            Ok(Box::new(Held(local, self.clone())))
        }
    }

    impl Journal for Held {
        fn propose(&mut self, first: Ticket, batch: Vec<Proposal>) -> Result<(), JournalError> {
            self.1.proposed.fetch_add(batch.len(), Ordering::SeqCst);
            self.0.propose(first, batch)
        }
        fn poll(
            &mut self,
            after: Seq,
            now: Instant,
            context: &mut Context<'_>,
        ) -> Poll<Result<Delivery, JournalError>> {
            if self.1.is_on.load(Ordering::SeqCst) {
                Poll::Pending
            } else {
                self.0.poll(after, now, context)
            }
        }
        fn wake_at(&self, now: Instant) -> Option<Instant> {
            self.0.wake_at(now)
        }
        fn barrier(&mut self, barrier: Ticket) {
            self.0.barrier(barrier);
        }
        fn place(&self) -> Vec<u8> {
            self.0.place()
        }
        fn prune(&mut self, through: Seq, budget: u64) -> Result<bool, JournalError> {
            self.0.prune(through, budget)
        }
        fn settle(&mut self) -> Result<(), JournalError> {
            self.0.settle()
        }
    }

    fn digest(code: u64) -> Digest {
        Digest((code + 1) << 32 | code)
    }

    fn reference(code: u64) -> Reference {
        Reference::new(&format!("order-{code}")).unwrap()
    }

    #[tokio::test]
    async fn shortcut_refusal_matches_log() {
        let sold_out = SoldOut::new().await;
        let before = sold_out.engine.info().last_seq;
        assert_eq!(sold_out.refusal(1), Some(Refusal::SoldOut));
        // A client whose redemption exists gets it again.
        assert_eq!(sold_out.refusal(0), None);
        assert_eq!(sold_out.engine.info().last_seq, before);
        let logged = sold_out
            .engine
            .submit(None, sold_out.redeem(1), None)
            .await
            .unwrap();
        assert_eq!(logged.outcome, Outcome::Refused(Refusal::SoldOut));
        assert_eq!(sold_out.engine.metrics().refused_unlogged.get(), 1);
    }

    /// The first attempt may still succeed: a repetition must not be refused before.
    #[tokio::test]
    async fn repeated_request_never_overtakes_first() {
        let sold_out = SoldOut::new().await;
        let first = PendingRedemption::of(&sold_out.engine.inner.refusals, &sold_out.redeem(1));
        let second = PendingRedemption::of(&sold_out.engine.inner.refusals, &sold_out.redeem(1));
        assert!(first.is_some());
        assert_eq!(
            (sold_out.refusal(1), sold_out.refusal(2)),
            (None, Some(Refusal::SoldOut))
        );
        drop(first);
        assert_eq!(sold_out.refusal(1), None);
        drop(second);
        assert_eq!(sold_out.refusal(1), Some(Refusal::SoldOut));
        let other = Command::Clear {
            target: Target(sold_out.pool.id),
        };
        assert!(PendingRedemption::of(&sold_out.engine.inner.refusals, &other).is_none());
    }

    /// Its caller may have disconnected: the log decides all the same.
    #[tokio::test]
    async fn attempt_lasts_until_log_has_decided() {
        let hold = Hold::default();
        let journal = JournalOptions::Other(Arc::new(hold.clone()));
        let sold_out = SoldOut::over(|options| EngineOptions { journal, ..options }).await;
        let refusals = sold_out.engine.inner.refusals.clone();
        let before = hold.proposed.load(Ordering::SeqCst);
        hold.is_on.store(true, Ordering::SeqCst);
        let engine = sold_out.engine.clone();
        let redeem = sold_out.redeem(1);
        let caller = tokio::spawn(async move { engine.submit(None, redeem, None).await });
        while hold.proposed.load(Ordering::SeqCst) == before {
            tokio::task::yield_now().await;
        }
        assert!(refusals.is_attempted(digest(1)));
        caller.abort();
        assert!(caller.await.unwrap_err().is_cancelled());
        assert!(refusals.is_attempted(digest(1)));
        hold.is_on.store(false, Ordering::SeqCst);
        // After it in the log.
        sold_out
            .engine
            .submit(None, sold_out.redeem(2), None)
            .await
            .unwrap();
        assert!(!refusals.is_attempted(digest(1)) && !refusals.is_attempted(digest(2)));
    }

    /// Its caller got an unknown outcome.
    #[tokio::test]
    async fn overdue_attempt_lasts_until_log_has_decided() {
        let hold = Hold::default();
        let journal = JournalOptions::Other(Arc::new(hold.clone()));
        let commit_timeout = Duration::ZERO;
        let sold_out = SoldOut::over(|options| EngineOptions {
            journal,
            commit_timeout,
            ..options
        })
        .await;
        let refusals = sold_out.engine.inner.refusals.clone();
        hold.is_on.store(true, Ordering::SeqCst);
        let overdue = sold_out.engine.submit(None, sold_out.redeem(1), None).await;
        assert_eq!(overdue, Err(SubmitError::StorageFailed));
        assert!(refusals.is_attempted(digest(1)));
        hold.is_on.store(false, Ordering::SeqCst);
        sold_out
            .engine
            .submit(None, sold_out.redeem(2), None)
            .await
            .unwrap();
        assert!(!refusals.is_attempted(digest(1)));
    }

    /// Readers judge holds by the clock, and the log has the time at which the cancellation was written.
    #[tokio::test]
    async fn hold_seen_expired_is_never_cancelled() {
        let journal = Hold::default();
        let options = JournalOptions::Other(Arc::new(journal.clone()));
        let pool = SoldOut::over(|all| EngineOptions {
            journal: options,
            ..all
        })
        .await;
        let raise = pool.update([None; 2], Some(2));
        pool.engine.submit(None, raise, None).await.unwrap();
        let (id, hold) = pool.hold(1, 1);
        pool.engine.submit(None, hold, None).await.unwrap();
        let seen = || pool.pool.redemption(&id, pool.engine.now()).unwrap().status;
        pool.time.fetch_add(999, Ordering::Relaxed);
        let before = journal.proposed.load(Ordering::SeqCst);
        journal.is_on.store(true, Ordering::SeqCst);
        let cancel = Command::Cancel {
            target: Target(pool.pool.id),
            redemption: id,
        };
        let engine = pool.engine.clone();
        let caller = tokio::spawn(async move { engine.submit(None, cancel, None).await });
        while journal.proposed.load(Ordering::SeqCst) == before {
            tokio::task::yield_now().await;
        }
        pool.time.fetch_add(10, Ordering::Relaxed);
        assert_eq!(seen(), cuckood_state::domain::RedemptionStatus::Held);
        journal.is_on.store(false, Ordering::SeqCst);
        // It wakes the writer.
        pool.engine
            .submit(None, pool.redeem(2), None)
            .await
            .unwrap();
        caller.await.unwrap().unwrap();
        assert_eq!(seen(), cuckood_state::domain::RedemptionStatus::Cancelled);
        assert_eq!(pool.engine.now(), Timestamp(1_001_009));
    }

    #[tokio::test]
    async fn answered_caller_reads_at_current_time() {
        let pool = SoldOut::new().await;
        for _ in 0..2_000 {
            pool.engine
                .submit(None, Command::Advance { buckets_max: 0 }, None)
                .await
                .unwrap();
            let now = pool.time.fetch_add(1, Ordering::Relaxed) + 1;
            assert_eq!(pool.engine.now(), Timestamp(now));
        }
    }

    #[tokio::test]
    async fn concurrent_changes_never_cause_wrong_refusal() {
        let sold_out = SoldOut::new().await;
        sold_out.engine.inner.refusals.begin();
        assert_eq!(sold_out.refusal(1), None);
        sold_out.engine.inner.refusals.end();
        assert_eq!(sold_out.refusal(1), Some(Refusal::SoldOut));
        // The request has found the pool before.
        let raise = sold_out.update([None; 2], Some(2));
        sold_out.engine.submit(None, raise, None).await.unwrap();
        assert_eq!(sold_out.refusal(1), None);
        sold_out
            .engine
            .submit(None, sold_out.redeem(2), None)
            .await
            .unwrap();
        assert_eq!(sold_out.refusal(1), Some(Refusal::SoldOut));
        let delete = Command::Delete {
            kind: Kind::Coupon,
            name: sold_out.pool.name.clone(),
        };
        sold_out.engine.submit(None, delete, None).await.unwrap();
        assert_eq!(sold_out.refusal(1), None);
    }

    /// The clock has passed the end, but it may be set back: only an entry guarantees that no redemption is admitted any more.
    #[tokio::test]
    async fn window_refusal_requires_log_and_clock() {
        let sold_out = SoldOut::new().await;
        let set = async |starts_at: u64, ends_at: u64| {
            let window = [starts_at, ends_at].map(|at| Some(Some(Timestamp(at))));
            sold_out
                .engine
                .submit(None, sold_out.update(window, None), None)
                .await
                .unwrap();
        };
        set(0, 1_000_100).await;
        assert_eq!(sold_out.refusal(1), Some(Refusal::SoldOut));
        sold_out.time.fetch_add(100, Ordering::Relaxed);
        assert_eq!(sold_out.refusal(1), None);
        let logged = sold_out
            .engine
            .submit(None, sold_out.redeem(1), None)
            .await
            .unwrap();
        assert_eq!(logged.outcome, Outcome::Refused(Refusal::OutsideWindow));
        assert_eq!(sold_out.refusal(1), Some(Refusal::OutsideWindow));
        set(1_000_300, 1_000_400).await;
        assert_eq!(sold_out.refusal(1), Some(Refusal::OutsideWindow));
        // It has started by the clock, and not by the log.
        sold_out.time.fetch_add(200, Ordering::Relaxed);
        assert_eq!(sold_out.refusal(1), None);
    }

    #[tokio::test]
    async fn writer_decides_if_clock_wrong_or_stopping() {
        let sold_out = SoldOut::new().await;
        sold_out
            .time
            .store(1_000_000 + 3_600_001, Ordering::Relaxed);
        assert_eq!(sold_out.refusal(1), None);
        sold_out.time.store(1_000_000, Ordering::Relaxed);
        assert_eq!(sold_out.refusal(1), Some(Refusal::SoldOut));
        sold_out.engine.shutdown().await;
        assert_eq!(sold_out.refusal(1), None);
    }

    #[test]
    fn read_sees_complete_commit() {
        const COMMITS: u64 = 200_000;
        let refusals = Refusals::default();
        let [one, other] = [const { AtomicU64::new(0) }; 2];
        let read = || {
            let one = one.load(Ordering::Relaxed);
            let other = other.load(Ordering::Relaxed);
            Some((one, other))
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1..=COMMITS {
                    refusals.begin();
                    one.store(number, Ordering::Relaxed);
                    other.store(number, Ordering::Relaxed);
                    refusals.end();
                }
            });
            while one.load(Ordering::Relaxed) < COMMITS {
                if let Some((one, other)) = refusals.between_commits(read) {
                    assert_eq!(one, other);
                }
            }
        });
        assert_eq!(refusals.between_commits(read), Some((COMMITS, COMMITS)));
    }
}
