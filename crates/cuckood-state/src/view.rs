//! A campaign or coupon as requests see it while the writer changes it. Look-ups in its tables take no lock.

use super::ledger::{ChangeNumber, Ledger, RedemptionPage, RedemptionQuery, RedemptionView};
use super::statistics::FilterStatistics;
use crate::domain::{
    ALGORITHM, ChangeCounts, CodeStats, Description, FilterHead, FilterId, ForgetStepStats, Kind,
    LocalDays, Normalization, Profile, Raise, Redemption, RedemptionId, RedemptionStatus,
    Reference, Refusal, Spec, Stats, Timestamp, Unit, Unusable, UseCounts, WindowPosition,
};
use cuckood_filter::{
    self, Digest, FilterImage, FilterStats, Growth, LayoutError, Mode, Reader, SlotState,
    StateCounts,
};
use parking_lot::{Mutex, RwLock};
use serde::Serialize;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Maximum number of redemptions that one query scans, so that the writer need not wait long for the ledger.
const SCANNED_MAX: usize = 1_000;

/// The most codes that are looked up while the writer waits for the ledger.
const LOOKUPS_MAX: usize = 1_000;

/// Maximum number of redemptions that a lookup lists for a code or a customer.
pub const LISTED_MAX: usize = 64;

/// Maximum number of redemptions that a lookup scans for codes and customers that have more than an index lists.
const CROWDED_SCANNED_MAX: usize = 100_000;

/// The current status of a code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CodeFound {
    /// It was never added, or it was removed.
    Absent,
    /// It may be redeemed.
    Available,
    /// It is held.
    Held(Redemption),
    /// It has been redeemed. Once the retention of its redemption has passed, that is missing.
    Redeemed(Option<Redemption>),
}

/// A lookup of codes or customers: when, and how many redemptions it may still scan for those that have more than an index lists.
#[derive(Debug)]
pub struct LookUpScan {
    now: Timestamp,
    left: usize,
}

impl LookUpScan {
    /// A lookup at `now`.
    pub fn at(now: Timestamp) -> Self {
        let left = CROWDED_SCANNED_MAX;
        Self { now, left }
    }
}

/// The held and redeemed redemptions of a code or a customer.
#[derive(Default)]
struct Standing {
    /// The latest ones, up to [`LISTED_MAX`].
    latest: Vec<Redemption>,
    /// Number of all.
    number: u64,
    /// Number of holds among them that have run out, and that the log has no entry about yet.
    run_out: u32,
}

impl Standing {
    /// All that an index finds.
    fn of(latest: Vec<Redemption>, now: Timestamp) -> Self {
        let run_out = latest.iter().filter(|found| found.has_run_out(now)).count();
        Self {
            number: latest.len() as u64,
            run_out: run_out as u32,
            latest,
        }
    }

    fn add(&mut self, redemption: RedemptionView<'_>, now: Timestamp) {
        self.number += 1;
        self.run_out += u32::from(redemption.has_run_out(now));
        if self.latest.len() < LISTED_MAX {
            self.latest.push(redemption.unpack());
        }
    }
}

/// The status of a code.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum CodeStatus {
    /// The code may be redeemed while the coupon is active.
    Available,
    /// A redemption holds the code, or its last use.
    Held,
    /// The code is redeemed, all its uses.
    Redeemed,
    /// The code was never added, or was withdrawn.
    Absent,
}

/// A code with several uses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CodeUses {
    /// Its status.
    pub status: CodeStatus,
    /// Uses that are taken.
    pub taken: u32,
    /// Those of them that are held.
    pub held: u32,
    /// The held or redeemed ones, the latest first, up to [`LISTED_MAX`].
    pub redemptions: Vec<Redemption>,
}

/// A customer of a coupon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CustomerUses {
    /// Its uses. If they are limited, those whose retention is over count, too.
    pub taken: u64,
    /// The held or redeemed ones, the latest first, up to [`LISTED_MAX`].
    pub redemptions: Vec<Redemption>,
}

/// Counts of changes to the items of a filter since its creation.
#[derive(Debug, Default)]
pub struct Counters {
    /// Items added.
    pub adds: AtomicU64,
    /// Items removed.
    pub removes: AtomicU64,
    /// The changes per day and hour.
    pub statistics: Mutex<FilterStatistics>,
}

/// One campaign or coupon, as readers see it. A new one replaces it when its window, its capacity or its tables are replaced.
#[derive(Clone)]
pub struct FilterView {
    /// Its id.
    pub id: FilterId,
    pub(super) profile: Profile,
    pub(super) reader: Reader,
    pub(super) counters: Arc<Counters>,
    pub(super) ledger: Arc<RwLock<Ledger>>,
    pub(super) redemptions_retention: Arc<AtomicU64>,
    /// That of the layout, once it was asked for: it takes longer to compute than everything else that a list shows.
    pub(super) capacity_max: OnceLock<u64>,
}

/// A view is read like its profile. The secret in there never leaves the service but in an image or a backup.
impl Deref for FilterView {
    type Target = Profile;

    fn deref(&self) -> &Profile {
        &self.profile
    }
}

impl FilterView {
    /// Returns a raise to this capacity, with the layout for it.
    ///
    /// # Errors
    /// A message that names the field, if no layout fits the capacity.
    pub fn raise(&self, capacity: u64) -> Result<Raise, LayoutError> {
        let layout = match self.spec.growth {
            // A capacity only ever rises: if it won't be raised now, it won't when the command is applied.
            Growth::Auto if capacity > self.spec.capacity => Spec {
                capacity,
                ..self.spec.clone()
            }
            .layout()?,
            Growth::Auto | Growth::Fixed => self.layout,
        };
        Ok(Raise { capacity, layout })
    }

    /// Returns the digest of an item under this filter's secret, after normalization.
    ///
    /// # Errors
    /// [`Unusable`].
    #[inline]
    pub fn digest(&self, item: impl AsRef<[u8]>) -> Result<Digest, Unusable> {
        let item = item.as_ref();
        let normalized = match self.spec.normalization {
            // Most lists have many of these, and `apply` is not inlined here.
            Normalization::Exact | Normalization::ByDefault => return Ok(self.secret.digest(item)),
            rule @ (Normalization::Ascii | Normalization::Case | Normalization::Code) => {
                rule.apply(item)?
            }
        };
        Ok(self.secret.digest(&normalized))
    }

    /// Returns the digest of a customer of this coupon, whose name is used exactly as given.
    pub fn customer_digest(&self, customer: &str) -> Digest {
        self.secret.digest(customer.as_bytes())
    }

    /// In a campaign: whether it has the user, whatever its window. In a coupon: whether the code may be redeemed at `now`, because the
    /// coupon is active and the code is available, or its hold has run out. In an open pool a code is available that is not there, as
    /// long as the stock allows another one.
    #[inline]
    pub fn contains(&self, digest: Digest, now: Timestamp) -> bool {
        if self.spec.supply.is_open_pool() {
            return self.admits(&[digest], now) == [true];
        }
        self.answers(now)
            && self
                .tables_at(now)
                .accepts(digest, |state| self.is_valid(digest, state, now))
    }

    /// [`Self::contains`] for a list; `out` is cleared first.
    pub fn contains_many(&self, digests: &[Digest], now: Timestamp, out: &mut Vec<bool>) {
        if self.spec.supply.is_open_pool() {
            *out = self.admits(digests, now);
        } else if self.answers(now) {
            self.tables_at(now)
                .accepts_many(digests, out, |digest, state| {
                    self.is_valid(digest, state, now)
                });
        } else {
            out.clear();
            out.resize(digests.len(), false);
        }
    }

    /// Which codes an open pool would take at `now`.
    fn admits(&self, digests: &[Digest], now: Timestamp) -> Vec<bool> {
        let stock = self.spec.supply.stock.unwrap_or(0);
        if !self.answers(now) || !self.ledger.read().has_room(stock, now) {
            return vec![false; digests.len()];
        }
        let states = self.reader.view(0).states(digests).into_iter().zip(digests);
        states
            .map(|(state, &digest)| state.is_none_or(|state| self.is_valid(digest, state, now)))
            .collect()
    }

    /// Whether its items are codes that must not be guessed. In an open pool any code is as good as another.
    pub fn has_secret_codes(&self) -> bool {
        self.kind == Kind::Coupon && !self.spec.supply.is_open_pool()
    }

    /// Whether a rejected add reveals that one of its codes was absent: the codes are secret, and the filter can be full.
    pub fn may_refuse_codes(&self) -> bool {
        self.has_secret_codes() && self.spec.growth == Growth::Fixed
    }

    /// Copies of an item. In a strict filter 0 or 1; in a compact one never too low, and colliding items count too.
    pub fn count(&self, digest: Digest, now: Timestamp) -> u32 {
        self.tables_at(now).count(digest)
    }

    /// The largest result of [`Self::count`].
    pub fn copies_max(&self) -> u32 {
        self.reader.view(0).copies_max()
    }

    /// Prefetches the cache lines for a lookup of this item.
    #[inline]
    pub fn prefetch(&self, digest: Digest) {
        self.reader.prefetch(digest);
    }

    /// Returns the status of a code as of `now`, ignoring the window. `None` for a compact filter, which has no states.
    ///
    /// The writer first changes a code's state, then its redemption. So a code that is just being held may still look available here, and
    /// one that is just being redeemed may have no redemption yet.
    pub fn look_up(&self, digests: &[Digest], now: Timestamp) -> Option<Vec<CodeFound>> {
        if self.spec.mode == Mode::Compact {
            return None;
        }
        let mut found = Vec::with_capacity(digests.len());
        for digests in digests.chunks(LOOKUPS_MAX) {
            let ledger = self.ledger.read();
            let states = self.reader.view(0).states(digests);
            found.extend(states.into_iter().zip(digests).map(|(state, digest)| {
                let current = ledger
                    .current(*digest)
                    .filter(|current| !current.has_run_out(now));
                match (state, current) {
                    (None, _) => CodeFound::Absent,
                    (Some(_), Some(current)) if current.status() == RedemptionStatus::Held => {
                        CodeFound::Held(current.unpack())
                    }
                    (Some(_), Some(current)) => {
                        CodeFound::Redeemed(self.seen_at(current.unpack(), now))
                    }
                    (Some(SlotState::Redeemed), None) => CodeFound::Redeemed(None),
                    (Some(SlotState::Available | SlotState::Held), None) => CodeFound::Available,
                }
            }));
        }
        Some(found)
    }

    /// Returns the uses of codes with several uses, ignoring the window.
    pub fn look_up_uses(&self, digests: &[Digest], scan: &mut LookUpScan) -> Vec<CodeUses> {
        let found = digests.iter().map(|digest| self.uses_of(*digest, scan));
        found.collect()
    }

    fn uses_of(&self, digest: Digest, scan: &mut LookUpScan) -> CodeUses {
        let ledger = self.ledger.read();
        let is_absent = self.is_absent(&ledger, digest);
        let tally = ledger.tally(digest);
        let standing = ledger.standing_of_code(digest);
        drop(ledger);
        let is_of = |found: RedemptionView<'_>| found.digest() == digest;
        let standing = match standing {
            Some(found) => Standing::of(found, scan.now),
            None => self.latest_standing(scan, is_of),
        };
        let run_out = standing.run_out;
        let taken = tally.map_or(0, |tally| tally.taken).saturating_sub(run_out);
        let held = tally.map_or(0, |tally| tally.held).saturating_sub(run_out);
        let status = if is_absent {
            CodeStatus::Absent
        } else if taken < self.spec.supply.uses {
            CodeStatus::Available
        } else if held > 0 {
            CodeStatus::Held
        } else {
            CodeStatus::Redeemed
        };
        CodeUses {
            status,
            taken,
            held,
            redemptions: self.listed(standing.latest, scan.now),
        }
    }

    /// Whether a code with several uses was never added, or was removed. In an open pool: whether no use of it is taken.
    fn is_absent(&self, ledger: &Ledger, digest: Digest) -> bool {
        let is_there = self.reader.view(0).state(digest).is_some();
        let is_used = self.spec.supply.is_open_pool() && ledger.tally(digest).is_some();
        !is_there && !is_used
    }

    /// Counts the codes with several uses that were never added, or were removed.
    pub fn absent_codes(&self, digests: &[Digest]) -> usize {
        let ledger = self.ledger.read();
        let absent = digests
            .iter()
            .filter(|digest| self.is_absent(&ledger, **digest));
        absent.count()
    }

    /// Returns the uses of customers.
    pub fn look_up_customers(
        &self,
        customers: &[Digest],
        scan: &mut LookUpScan,
    ) -> Vec<CustomerUses> {
        let found = customers
            .iter()
            .map(|customer| self.uses_of_customer(*customer, scan));
        found.collect()
    }

    fn uses_of_customer(&self, customer: Digest, scan: &mut LookUpScan) -> CustomerUses {
        let ledger = self.ledger.read();
        let tally = ledger.customer_tally(customer);
        let standing = ledger.standing_of_customer(customer);
        drop(ledger);
        let is_of = |found: RedemptionView<'_>| found.customer() == Some(customer);
        let standing = match standing {
            Some(found) => Standing::of(found, scan.now),
            None => self.latest_standing(scan, is_of),
        };
        let taken = tally.map_or(standing.number, |tally| tally.taken.into());
        CustomerUses {
            taken: taken.saturating_sub(standing.run_out.into()),
            redemptions: self.listed(standing.latest, scan.now),
        }
    }

    /// Counts the customers of whom nothing is known.
    pub fn absent_customers(&self, customers: &[Digest]) -> usize {
        // The writer waits for one customer at most.
        let is_absent = |customer: &&Digest| {
            let ledger = self.ledger.read();
            let is_listed = || {
                let standing = ledger.standing_of_customer(**customer);
                standing.is_none_or(|standing| !standing.is_empty())
            };
            ledger.customer_tally(**customer).is_none() && !is_listed()
        };
        customers.iter().filter(is_absent).count()
    }

    /// Returns when the first hold of a code with several uses expires, of those that have not run out at `now`. If other codes have very
    /// many holds that expire earlier, it is the first of the latest ones.
    pub fn first_expiry(&self, digest: Digest, now: Timestamp) -> Option<Timestamp> {
        let ledger = self.ledger.read();
        let mut first = ledger.first_holds(now).take(SCANNED_MAX);
        let found = first.find(|hold| hold.digest() == digest);
        if let Some(found) = found.map(RedemptionView::unpack) {
            return found.held_until();
        }
        let standing = ledger.standing_of_code(digest).unwrap_or_default();
        let expiries = standing.iter().filter_map(Redemption::held_until);
        expiries.filter(|until| *until > now).min()
    }

    /// Those of the held or redeemed redemptions that readers see at `now`.
    fn listed(&self, standing: Vec<Redemption>, now: Timestamp) -> Vec<Redemption> {
        let seen = standing
            .into_iter()
            .filter_map(|found| self.seen_at(found, now));
        seen.filter(Redemption::stands).take(LISTED_MAX).collect()
    }

    /// The latest held or redeemed redemptions of a code or customer that has too many for an index, as far as the lookup may scan. The
    /// writer need not wait long for the ledger.
    fn latest_standing(
        &self,
        scan: &mut LookUpScan,
        is_of: impl Fn(RedemptionView<'_>) -> bool,
    ) -> Standing {
        let mut standing = Standing::default();
        let mut before = ChangeNumber(u64::MAX);
        while scan.left > 0 {
            let ledger = self.ledger.read();
            let mut at_end = true;
            for redemption in ledger.latest(before).take(SCANNED_MAX.min(scan.left)) {
                at_end = false;
                scan.left -= 1;
                before = redemption.change();
                if redemption.stands() && is_of(redemption) {
                    standing.add(redemption, scan.now);
                }
            }
            if at_end {
                break;
            }
        }
        standing
    }

    fn answers(&self, now: Timestamp) -> bool {
        self.kind == Kind::Campaign || self.window.contains(now)
    }

    fn is_valid(&self, digest: Digest, state: SlotState, now: Timestamp) -> bool {
        match state {
            SlotState::Redeemed => false,
            SlotState::Available => true,
            SlotState::Held if self.spec.supply.has_several_uses() => {
                let standing = self.ledger.read().standing_of_code(digest);
                let mut standing = standing.into_iter().flatten();
                standing.any(|redemption| redemption.has_run_out(now))
            }
            SlotState::Held => self
                .ledger
                .read()
                .current(digest)
                .is_some_and(|hold| hold.has_run_out(now)),
        }
    }

    /// The redemption of this id, as it is seen at `now`; none once its retention has passed.
    pub fn redemption(&self, id: &RedemptionId, now: Timestamp) -> Option<Redemption> {
        self.ledger
            .read()
            .get(id)
            .and_then(|redemption| self.seen_at(redemption.unpack(), now))
    }

    /// A page of up to `limit` redemptions after `after`, as of `now`, in the order of the query. It scans a limited number of
    /// redemptions, so a page may have fewer though more follow.
    pub fn redemptions(
        &self,
        query: &RedemptionQuery,
        after: Option<ChangeNumber>,
        limit: usize,
        now: Timestamp,
    ) -> RedemptionPage {
        self.ledger
            .read()
            .page(query, after, limit, SCANNED_MAX, |redemption| {
                let seen = self.seen_at(redemption.clone(), now)?;
                query
                    .status
                    .is_none_or(|status| status == seen.status)
                    .then_some(seen)
            })
    }

    /// Counts the codes that are held at `now`, up to `max`.
    pub fn holds(&self, now: Timestamp, max: usize) -> usize {
        self.ledger.read().holds_after(now, max)
    }

    fn seen_at(&self, redemption: Redemption, now: Timestamp) -> Option<Redemption> {
        let retention = self.redemptions_retention.load(Ordering::Relaxed);
        (!redemption.is_past_retention(now, retention)).then(|| redemption.seen_at(now))
    }

    /// Codes by status, by the states of items. In an open pool, the available ones are the rest of the stock.
    pub(super) fn code_counts(&self, states: StateCounts, ledger: &Ledger) -> StateCounts {
        let used = match ledger.use_sums() {
            Some((taken, _)) => taken,
            None => states.held + states.redeemed,
        };
        let left = |stock: u64| stock.saturating_sub(used);
        StateCounts {
            available: self.spec.supply.stock.map_or(states.available, left),
            ..states
        }
    }

    /// The campaign or coupon as its owner sees it at `now`.
    pub fn describe(&self, now: Timestamp) -> Description {
        let FilterStats {
            items,
            memory_bytes,
            segments,
            states,
            copies_max,
            steps,
        } = self.tables_at(now).stats();
        let ledger = self.ledger.read();
        let codes = CodeStats {
            states: states.map(|states| self.code_counts(states, &ledger)),
            uses: ledger.use_sums().map(|(taken, held)| UseCounts {
                held,
                redeemed: taken - held,
            }),
        };
        drop(ledger);
        let stats = Stats {
            items,
            memory_bytes,
            segments,
            adds: self.counters.adds.load(Ordering::Relaxed),
            removes: self.counters.removes.load(Ordering::Relaxed),
            codes,
            copies_max,
            steps: self.step_stats(&steps),
        };
        Description {
            id: self.id,
            kind: self.kind,
            name: self.name.clone(),
            spec: self.spec.clone(),
            window: self.window,
            created_at: self.created_at,
            annotations: self.annotations.clone(),
            stats,
        }
    }

    /// Different items that a filter of this spec takes, however it grows: later ones may be rejected.
    pub fn capacity_max(&self) -> u64 {
        *self
            .capacity_max
            .get_or_init(|| self.spec.capacity_max(&self.layout))
    }

    /// Its days or hours with counts among the last `number` up to `now`, each with its beginning, in order.
    pub fn statistics(
        &self,
        unit: Unit,
        number: u64,
        now: Timestamp,
    ) -> Vec<(Timestamp, ChangeCounts)> {
        self.counters.statistics.lock().last(unit, number, now)
    }

    /// Its last `number` days up to `now`, in a time zone that is `offset_hours` ahead of UTC.
    pub fn local_days(&self, offset_hours: i64, number: u64, now: Timestamp) -> LocalDays {
        let statistics = self.counters.statistics.lock();
        statistics.local_days(offset_hours, number, now)
    }

    /// A view of its tables. A campaign that forgets is seen in its step at `now`.
    #[inline]
    fn tables_at(&self, now: Timestamp) -> cuckood_filter::TableView<'_> {
        self.reader
            .view(self.spec.forget.map_or(0, |forget| forget.step_at(now)))
    }

    fn step_stats(&self, steps: &[cuckood_filter::StepStats]) -> Vec<ForgetStepStats> {
        let Some(forget) = self.spec.forget else {
            return Vec::new();
        };
        let stats = |&cuckood_filter::StepStats { step, items }: &cuckood_filter::StepStats| {
            ForgetStepStats {
                begin: forget.begin_of(step),
                items,
                forgotten_at: forget.end_of(step),
            }
        };
        steps.iter().map(stats).collect()
    }

    /// Whether the coupon can have this stock. Existing redemptions stay, even if they exceed it.
    pub(super) fn check_stock(&self, stock: u64) -> Result<(), Refusal> {
        let Spec {
            growth,
            capacity,
            supply,
            ..
        } = self.spec;
        if !supply.is_open_pool() {
            return Err(Refusal::NoStock);
        }
        if growth == Growth::Fixed && stock > capacity {
            return Err(Refusal::StockBeyondCapacity { capacity });
        }
        Ok(())
    }

    /// Rejects a change of the codes of an open pool, which has those alone that are in use.
    pub(super) fn require_added_codes(&self) -> Result<(), Refusal> {
        if self.spec.supply.is_open_pool() {
            Err(Refusal::RequiresAddedCodes)
        } else {
            Ok(())
        }
    }

    /// Its head, with the image of its tables.
    pub(super) fn head(&self, tables: FilterImage) -> FilterHead {
        FilterHead {
            algorithm: ALGORITHM,
            profile: self.profile.clone(),
            adds: self.counters.adds.load(Ordering::Relaxed),
            removes: self.counters.removes.load(Ordering::Relaxed),
            tables,
            last_change: self.ledger.read().last_change().0,
            latest: self.counters.statistics.lock().latest,
        }
    }

    /// The refusal of an entry that redeems or holds this code now. It must be the same at every time from `logged`, that of the last
    /// entry, to `now`, and the entry must do nothing else to this coupon. `None` otherwise.
    ///
    /// The caller keeps the state from changing during the call. The view must be the newest one of its filter.
    pub fn certain_refusal(
        &self,
        digest: Digest,
        reference: &Reference,
        customer: Option<Digest>,
        logged: Timestamp,
        now: Timestamp,
    ) -> Option<Refusal> {
        let supply = &self.spec.supply;
        if self.spec.mode == Mode::Compact {
            return None;
        }
        let state = self.reader.view(0).state(digest);
        // Of several uses, some may be left after the code was removed.
        if state.is_none() && !supply.is_open_pool() && !supply.has_several_uses() {
            return Some(Refusal::CodeUnknown);
        }
        let ledger = self.ledger.read();
        let current = ledger.current_for(digest, reference);
        // The same reference gets its redemption again, and a hold that has run out is ended.
        if current.is_some_and(|current| current.is_under(reference) || current.has_run_out(now)) {
            return None;
        }
        // Only an entry makes the end of the window final: a clock may be set back.
        let is_inactive = self.window.position(now) == WindowPosition::Before
            || self.window.position(logged) == WindowPosition::After;
        if supply.per_customer.is_some() && customer.is_none() {
            return None;
        }
        // Expired holds free uses.
        let is_none_overdue = ledger.overdue(now).is_none();
        let is_at_limit = |customer| ledger.is_at_limit(customer);
        match (state, supply.stock) {
            (None, None) => Some(Refusal::CodeUnknown),
            (Some(SlotState::Redeemed), _) => Some(Refusal::CodeRedeemed),
            (Some(SlotState::Held), _) if supply.has_several_uses() => {
                is_none_overdue.then_some(Refusal::CodeHeld)
            }
            (Some(SlotState::Held), _) => current
                .filter(|current| current.status() == RedemptionStatus::Held)
                .map(|_| Refusal::CodeHeld),
            (Some(SlotState::Available), _) | (None, Some(_)) if is_inactive => {
                Some(Refusal::OutsideWindow)
            }
            _ if !is_none_overdue => None,
            _ if !self.window.contains(logged) || !self.window.contains(now) => None,
            _ if customer.is_some_and(is_at_limit) => Some(Refusal::CustomerLimit),
            (None, Some(stock)) if ledger.taken() >= stock => Some(Refusal::SoldOut),
            (Some(SlotState::Available), _) | (None, Some(_)) => None,
        }
    }
}
