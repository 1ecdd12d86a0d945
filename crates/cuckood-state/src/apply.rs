//! `apply`: an entry of the log changes the state and gets its outcome.

use super::idempotency::{Bounds, Lookup, RecordOwner, Records, retention_min_seconds};
use super::machine::{SWEEP_MAX, SharedState, State};
use crate::domain::{
    Annotations, Applied, Command, Entry, FilterId, Happened, IMAGE_IDLE_SECONDS, IdempotencyKey,
    Outcome, Profile, Proposal, PutLineUp, Refusal, Target, Timestamp,
};
use cuckood_filter::StateCounts;

/// Buckets of tables that every entry empties where items move to another table, whatever it is about.
const BUCKETS_EMPTIED: u64 = 4;

/// The outcomes of deletions are stored under this ID, which no filter has: a repeated deletion finds no filter any more.
const NO_FILTER: FilterId = FilterId(0);

impl State {
    /// Applies the entry that follows the last one, and returns its outcome.
    ///
    /// # Panics
    /// When the entry does not follow the last one: the log has a gap, and going on would lose writes.
    pub fn apply(&mut self, entry: Entry) -> Applied {
        assert_eq!(entry.seq, self.applied.next(), "the log has a gap");
        self.applied = entry.seq;
        self.history.begin(&entry);
        let applied = self.apply_next(entry.proposal);
        self.note_applied(&applied);
        applied
    }

    /// Passes over the entry that follows the last one, which can't be applied: it changes nothing, not even the time.
    pub fn skip(&mut self, entry: &Entry) {
        assert_eq!(entry.seq, self.applied.next(), "the log has a gap");
        self.applied = entry.seq;
        self.history.begin(entry);
        self.shared
            .events
            .record_unrequested(self.shared.now, || Happened::Skipped { entry: entry.seq.0 });
        self.note_applied(&Applied {
            outcome: Outcome::Skipped,
            replayed: false,
        });
    }

    /// Adds an entry and its outcome to the running hash.
    fn note_applied(&mut self, applied: &Applied) {
        let shared = &self.shared;
        let StateCounts {
            available,
            held,
            redeemed,
        } = shared.totals.codes;
        let now = shared.now.0;
        let events = shared.events.next();
        let redemptions = shared.totals.redemptions;
        let records = self.records.len();
        let figures = [
            now,
            shared.epochs,
            events,
            redemptions,
            records,
            available,
            held,
            redeemed,
        ];
        self.history.end(self.applied, applied, figures);
    }

    fn apply_next(&mut self, proposal: Proposal) -> Applied {
        let Proposal {
            at,
            by,
            command,
            idempotency,
        } = proposal;
        self.shared.events.by = None;
        if matches!(command, Command::TurnBack) && at < self.shared.now {
            return Applied {
                outcome: self.turn_back(at),
                replayed: false,
            };
        }
        self.shared.now = self.shared.now.max(at);
        self.sweep_filters();
        self.records.forget(
            &Bounds::of(&self.shared.settings, self.shared.now),
            SWEEP_MAX,
        );
        self.forget_unmoved_imports();
        if let Some(idle_since) = self.shared.now.0.checked_sub(IMAGE_IDLE_SECONDS * 1_000) {
            self.abort_images(Timestamp(idle_since + 1));
        }

        let owner = RecordOwner::of(by.as_ref());
        self.shared.events.by = by;
        let applied = match &idempotency {
            None => {
                let outcome = self.execute(&command).unwrap_or_else(Outcome::Refused);
                Applied {
                    outcome,
                    replayed: false,
                }
            }
            Some(key) => self.execute_once(&command, key, owner),
        };
        self.advance(BUCKETS_EMPTIED);
        applied
    }

    /// Executes a command unless it was executed before under the same key. A refusal changed nothing, so it is not stored: a repeat is
    /// decided again.
    fn execute_once(
        &mut self,
        command: &Command,
        key: &IdempotencyKey,
        owner: RecordOwner,
    ) -> Applied {
        let bounds = Bounds::of(&self.shared.settings, self.shared.now);
        let refused = |why| Applied {
            outcome: Outcome::Refused(why),
            replayed: false,
        };
        if let Some(stored) = self.look_up_stored(command, key, &bounds) {
            return stored;
        }
        let filter = self.recorded_under(command);
        let room = self
            .records
            .make_room(owner, Records::bytes_max(command), &bounds, SWEEP_MAX);
        if let Err(oldest) = room {
            let now = self.shared.now;
            let until = oldest
                .unwrap_or(now)
                .plus_seconds(retention_min_seconds(&self.shared.settings));
            let retry_after_seconds = until.0.saturating_sub(now.0).div_ceil(1_000).max(1);
            return refused(Refusal::IdempotencyFull {
                retry_after_seconds,
            });
        }
        let outcome = self.execute(command).unwrap_or_else(Outcome::Refused);
        // A new filter has its ID only now.
        if !matches!(outcome, Outcome::Refused(_))
            && let Some(filter) = filter.or_else(|| self.shared.named(command))
        {
            self.records
                .store(owner, filter, key, command, &outcome, self.shared.now);
        }
        Applied {
            outcome,
            replayed: false,
        }
    }

    /// Looks up what is stored for a command under an idempotency key, as an entry of the time `now` would find it.
    pub fn recorded(&self, command: &Command, key: &IdempotencyKey, now: Timestamp) -> Lookup {
        let Some(filter) = self.recorded_under(command) else {
            return Lookup::New;
        };
        let bounds = Bounds::of(&self.shared.settings, self.shared.now.max(now));
        self.records.look_up(filter, key, command, bounds.forgotten)
    }

    /// Returns the time that every stored outcome remains, in seconds.
    pub fn idempotency_retention_min_seconds(&self) -> u64 {
        retention_min_seconds(&self.shared.settings)
    }

    /// The ID under which the outcome of a command is stored; `None` if it is of a filter that does not exist.
    fn recorded_under(&self, command: &Command) -> Option<FilterId> {
        if is_deletion(command) {
            Some(NO_FILTER)
        } else {
            self.shared.named(command)
        }
    }

    /// Returns the outcome of a command whose key was used before.
    fn look_up_stored(
        &self,
        command: &Command,
        key: &IdempotencyKey,
        bounds: &Bounds,
    ) -> Option<Applied> {
        let reused = Applied {
            outcome: Outcome::Refused(Refusal::KeyReused),
            replayed: false,
        };
        if let Some(filter) = self.recorded_under(command) {
            match self.records.look_up(filter, key, command, bounds.forgotten) {
                Lookup::New => {}
                Lookup::Answered(outcome) => {
                    return Some(Applied {
                        outcome,
                        replayed: true,
                    });
                }
                Lookup::Reused(_) => return Some(reused),
            }
        }
        if !is_deletion(command) {
            return None;
        }
        // The key may have been used for what is there now.
        match self
            .records
            .look_up(self.shared.named(command)?, key, command, bounds.forgotten)
        {
            Lookup::New => None,
            Lookup::Answered(_) | Lookup::Reused(_) => Some(reused),
        }
    }

    /// Returns what [`Self::apply`] would answer at `at` to a command whose key was used before, without an entry.
    pub fn stored_outcome(
        &self,
        command: &Command,
        key: &IdempotencyKey,
        at: Timestamp,
    ) -> Option<Applied> {
        let bounds = Bounds::of(&self.shared.settings, at.max(self.shared.now));
        self.look_up_stored(command, key, &bounds)
    }

    fn execute(&mut self, command: &Command) -> Result<Outcome, Refusal> {
        let is_hidden = |Target(id)| self.filters.get(&id).is_some_and(|filter| filter.is_hidden);
        if !self.shared.images.0.is_empty() && command.target().is_some_and(is_hidden) {
            return Err(Refusal::FilterGone);
        }
        match command {
            Command::Configure(settings) => {
                self.shared.configure(settings.clone());
                Ok(Outcome::Configured)
            }
            Command::Advance { buckets_max } => Ok(self.advance(u64::from(*buckets_max))),
            // An entry whose time is not in the past has nothing to turn back.
            Command::TurnBack => Ok(Outcome::TurnedBack {
                redemptions: 0,
                holds: 0,
            }),
            Command::Restored { clock } => {
                self.shared.events.leap(*clock);
                self.shared
                    .events
                    .record_unrequested(self.shared.now, || Happened::Restored);
                Ok(Outcome::Restored)
            }
            Command::Enable { version } => {
                self.shared.format = self.shared.format.max(*version);
                let rule = self.shared.growth_rule();
                self.filters
                    .values_mut()
                    .for_each(|filter| filter.set_growth_rule(rule));
                Ok(Outcome::Enabled)
            }
            Command::Create {
                kind,
                name,
                id,
                secret,
                spec,
                layout,
                window,
                annotations,
            } => {
                let kind = *kind;
                let layout = *layout;
                let window = *window;
                let created_at = self.shared.now;
                let existing = self
                    .shared
                    .catalog
                    .get(kind, name)
                    .map(|view| &view.annotations);
                let annotations = existing
                    .unwrap_or(&Annotations::default())
                    .changed(annotations);
                let annotations = annotations.ok_or(Refusal::TooManyLabels)?;
                let name = name.clone();
                let secret = secret.clone();
                let spec = spec.clone();
                let profile = Profile {
                    kind,
                    name,
                    secret,
                    spec,
                    layout,
                    window,
                    created_at,
                    annotations,
                };
                self.create(*id, profile)
            }
            Command::Delete { kind, name } => self.delete(*kind, name),
            Command::PutLineUp(put) => self.shared.put_line_up(self.applied, put),
            Command::DeleteLineUp { name } => self.shared.delete_line_up(name),
            Command::Update(update) => {
                self.on(update.target.0, |subject| subject.update(update))?
            }
            Command::Insert {
                target,
                digests,
                if_absent,
                revive,
            } => self.on(target.0, |subject| {
                subject.insert(&digests.0, *if_absent, *revive)
            })?,
            Command::Remove {
                target,
                digests,
                all,
            } => self.on(target.0, |subject| subject.remove(&digests.0, *all))?,
            Command::Replace { target, from, to } => {
                self.on(target.0, |subject| subject.replace(&from.0, &to.0))?
            }
            Command::Clear { target } => self.on(target.0, |subject| subject.clear()),
            Command::Redeem(redeem) => {
                self.on(redeem.target.0, |subject| subject.redeem(redeem, None))?
            }
            Command::RedeemFor { redeem, customer } => self.on(redeem.target.0, |subject| {
                subject.redeem(redeem, Some(*customer))
            })?,
            Command::Confirm { target, redemption } => {
                self.on(target.0, |subject| subject.confirm(redemption))?
            }
            Command::Cancel { target, redemption } => {
                self.on(target.0, |subject| subject.cancel(redemption, false))?
            }
            Command::Forfeit { target, redemption } => {
                self.on(target.0, |subject| subject.cancel(redemption, true))?
            }
            Command::ImageBegin(begin) => self.image_begin(begin),
            Command::ImageRecord { upload, record } => self.image_record(*upload, record),
            Command::ImageAbandon { upload } => {
                self.abort_image(*upload);
                Ok(Outcome::ImageAbandoned)
            }
            Command::ImportBegin(begin) => {
                self.on(begin.target.0, |subject| subject.import_begin(begin))?
            }
            Command::ImportLines(lines) => self.on(lines.target.0, |filter| {
                let running = filter
                    .shared
                    .running_import(lines.target.0, &lines.import)?;
                filter.import_lines(lines, &running)
            })?,
            Command::ImportEnd(end) => self.on(end.target.0, |filter| {
                let running = filter.shared.running_import(end.target.0, &end.import)?;
                filter.import_end(end, &running)
            })?,
        }
    }
}

fn is_deletion(command: &Command) -> bool {
    matches!(
        command,
        Command::Delete { .. } | Command::DeleteLineUp { .. }
    )
}

impl SharedState {
    /// The filter or line-up that a command is about, if it exists. A line-up counts as a filter whose ID is that of the entry which
    /// created it: no key of a line-up is also one of a filter.
    fn named(&self, command: &Command) -> Option<FilterId> {
        match command {
            Command::Create { kind, name, .. } | Command::Delete { kind, name } => {
                self.catalog.get(*kind, name).map(|view| view.id)
            }
            Command::PutLineUp(PutLineUp { name, .. }) | Command::DeleteLineUp { name } => self
                .catalog
                .line_up(name)
                .map(|line_up| FilterId(line_up.created_by.0)),
            Command::Configure(_)
            | Command::Update(_)
            | Command::Insert { .. }
            | Command::Remove { .. }
            | Command::Replace { .. }
            | Command::Clear { .. }
            | Command::Redeem(_)
            | Command::Confirm { .. }
            | Command::Cancel { .. }
            | Command::ImportBegin(_)
            | Command::ImportLines(_)
            | Command::ImportEnd(_)
            | Command::Advance { .. }
            | Command::TurnBack
            | Command::Restored { .. }
            | Command::ImageBegin(_)
            | Command::ImageRecord { .. }
            | Command::ImageAbandon { .. }
            | Command::RedeemFor { .. }
            | Command::Forfeit { .. }
            | Command::Enable { .. } => command.target().map(|Target(filter)| filter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FreshEvents;
    use crate::domain::{
        Ending, ImportBegin, ImportEnd, ImportId, ImportMode, KeyName, Kind, Redeem, Redemption,
        RedemptionStatus, Seq, Settings, UploadDigest, Window,
    };
    use crate::testing::commands::{NewFilter, insert, name, name_of, redeem, redemption, target};
    use crate::testing::machine::Machine;
    use cuckood_filter::GrowthRule;
    use proptest::prelude::*;

    fn refused(refusal: Refusal) -> Applied {
        Applied {
            outcome: Outcome::Refused(refusal),
            replayed: false,
        }
    }

    /// Applies a command with the idempotency key of this number.
    fn keyed(machine: &mut Machine, command: Command, key: u64) -> Applied {
        let idempotency = Some(IdempotencyKey {
            scope: u128::from(key),
            request: 1,
        });
        machine.propose(Proposal {
            idempotency,
            ..Proposal::new(machine.now, command)
        })
    }

    fn create(filter: u64) -> Command {
        NewFilter::coupon(2_000).create(target(filter))
    }

    fn delete(filter: u64) -> Command {
        Command::Delete {
            kind: Kind::Coupon,
            name: name_of(target(filter)),
        }
    }

    fn hold(filter: u64, code: u64, seconds: u64) -> Command {
        redeem(target(filter), code, code, "order", seconds)
    }

    fn shown(machine: &Machine, code: u64) -> Redemption {
        let coupon = machine.filter(target(1));
        coupon.redemption(&redemption(code), machine.now).unwrap()
    }

    #[test]
    fn redemption_id_is_never_used_twice() {
        let mut machine = Machine::new();
        machine.apply(create(1));
        machine.apply(insert(target(1), 0..10));
        let again = |code: u64| match hold(1, code, 60) {
            Command::Redeem(Redeem {
                target,
                digest,
                reference,
                hold_seconds,
                ..
            }) => Command::Redeem(Redeem {
                target,
                digest,
                redemption: redemption(5),
                reference,
                hold_seconds,
            }),
            other => other,
        };
        assert!(matches!(
            machine.apply(hold(1, 5, 60)),
            Outcome::Redeemed(_)
        ));
        let taken = Outcome::Refused(Refusal::AlreadyExists(vec!["id".into()]));
        assert_eq!(machine.apply(again(6)), taken);
        machine.apply(Command::Cancel {
            target: target(1),
            redemption: redemption(5),
        });
        assert_eq!(
            (machine.apply(again(6)), machine.apply(again(5))),
            (taken.clone(), taken)
        );
        assert_eq!(machine.state.sizes().redemptions, 1);
    }

    /// Nodes of 0.1.0 grow by the former rule, so all do until the version is enabled.
    #[test]
    fn growth_rule_follows_enabled_version() {
        let mut machine = Machine::new();
        let rule = |machine: &Machine, id| {
            machine.state.filters[&FilterId(id)]
                .tables
                .filter
                .reader()
                .growth_rule()
        };
        machine.apply(create(1));
        assert_eq!(rule(&machine, 1), GrowthRule::Immediate);
        machine.apply(Command::Enable { version: 2 });
        machine.apply(create(2));
        assert_eq!([1, 2].map(|id| rule(&machine, id)), [GrowthRule::Paced; 2]);
    }

    /// All campaigns share one ledger, which must stay empty whatever a log says.
    #[test]
    fn strict_campaign_takes_no_redemption() {
        let mut machine = Machine::new();
        let mut campaign = create(1);
        if let Command::Create { kind, .. } = &mut campaign {
            *kind = Kind::Campaign;
        }
        machine.apply(campaign);
        machine.apply(insert(target(1), 0..10));
        assert_eq!(
            machine.apply(hold(1, 5, 60)),
            Outcome::Refused(Refusal::RequiresStrictMode)
        );
        assert_eq!(machine.state.sizes().redemptions, 0);
    }

    #[test]
    #[should_panic(expected = "the log has a gap")]
    fn log_gap_is_rejected() {
        let mut machine = Machine::new();
        let proposal = Proposal::new(Timestamp(0), delete(1));
        machine.state.apply(Entry {
            seq: Seq(2),
            proposal,
        });
    }

    #[test]
    fn time_never_runs_backwards() {
        let mut machine = Machine::new();
        machine.apply(create(1));
        machine.now = Timestamp(500_000);
        machine.apply(create(2));
        assert_eq!(machine.state.now(), Timestamp(1_000_000));
        assert_eq!(machine.filter(target(2)).created_at, Timestamp(1_000_000));
    }

    /// An outcome is found again by the command's target, even if the filter did not exist before, or no longer exists.
    #[test]
    fn repeated_command_returns_stored_outcome() {
        let mut machine = Machine::new();
        let created = keyed(&mut machine, create(1), 1);
        assert!(matches!(created.outcome, Outcome::Created(_)) && !created.replayed);
        machine.apply(insert(target(1), 1..100));
        let again = keyed(&mut machine, create(1), 1);
        assert_eq!(
            again,
            Applied {
                replayed: true,
                ..created
            }
        );

        let inserted = keyed(&mut machine, insert(target(1), 100..200), 2);
        machine.apply(Command::Clear { target: target(1) });
        assert_eq!(
            keyed(&mut machine, insert(target(1), 100..200), 2),
            Applied {
                replayed: true,
                ..inserted
            }
        );

        let deleted = keyed(&mut machine, delete(1), 3);
        assert_eq!(
            deleted,
            Applied {
                outcome: Outcome::Deleted,
                replayed: false
            }
        );
        machine.apply(create(2));
        assert_eq!(
            keyed(&mut machine, delete(1), 3),
            Applied {
                replayed: true,
                ..deleted
            }
        );
    }

    /// A refused creation has no filter for its outcome: a repeat is decided again.
    #[test]
    fn failed_creation_is_decided_again() {
        let mut machine = Machine::new();
        let window = Window {
            starts_at: Some(Timestamp(2)),
            ends_at: Some(Timestamp(1)),
        };
        for _ in 0..2 {
            let refused = refused(Refusal::WindowEndsFirst);
            let create = NewFilter {
                window,
                ..NewFilter::coupon(2_000)
            };
            assert_eq!(keyed(&mut machine, create.create(target(1)), 1), refused);
        }
        assert_eq!(machine.state.sizes().idempotency_records, 0);
    }

    /// A refusal changed nothing, so it takes no space, and a repeat is decided again.
    #[test]
    fn refusals_are_not_stored() {
        let mut machine = Machine::new();
        machine.apply(create(1));
        assert_eq!(
            keyed(&mut machine, hold(1, 7, 60), 1),
            refused(Refusal::CodeUnknown)
        );
        assert_eq!(machine.state.sizes().idempotency_records, 0);
        machine.apply(insert(target(1), 7..8));
        let held = keyed(&mut machine, hold(1, 7, 60), 1);
        assert!(
            matches!(held.outcome, Outcome::Redeemed(_)) && !held.replayed,
            "{held:?}"
        );
        assert_eq!(
            keyed(&mut machine, hold(1, 7, 60), 1),
            Applied {
                replayed: true,
                ..held
            }
        );
    }

    /// An ID belongs to one filter. A caller that draws a taken one draws again.
    #[test]
    fn taken_id_returns_already_exists() {
        let mut machine = Machine::new();
        machine.apply(create(1));
        let Command::Create {
            kind,
            id,
            secret,
            spec,
            layout,
            window,
            ..
        } = create(1)
        else {
            unreachable!()
        };
        let other = Command::Create {
            kind,
            name: name("other"),
            id,
            secret,
            spec,
            layout,
            window,
            annotations: Default::default(),
        };
        let outcome = machine.apply(other);
        assert_eq!(
            outcome,
            Outcome::Refused(Refusal::AlreadyExists(vec!["id".into()]))
        );
    }

    #[test]
    fn different_request_under_key_is_rejected() {
        let mut machine = Machine::new();
        machine.apply(create(1));
        keyed(&mut machine, insert(target(1), 1..2), 1);
        let idempotency = Some(IdempotencyKey {
            scope: 1,
            request: 2,
        });
        let proposal = Proposal {
            idempotency,
            ..Proposal::new(machine.now, insert(target(1), 2..3))
        };
        let seq = machine.state.applied().next();
        assert_eq!(
            machine.state.apply(Entry { seq, proposal }),
            refused(Refusal::KeyReused)
        );
    }

    #[test]
    fn command_without_outcome_space_is_rejected() {
        let mut machine = Machine::new();
        machine.apply(create(1));
        machine.apply(Command::Configure(Settings {
            idempotency_room_bytes: 0,
            ..Settings::default()
        }));
        let full = keyed(&mut machine, insert(target(1), 1..2), 1);
        assert_eq!(
            full,
            refused(Refusal::IdempotencyFull {
                retry_after_seconds: 3_600
            })
        );
        let outcome = machine.apply(hold(1, 1, 60));
        assert_eq!(outcome, Outcome::Refused(Refusal::CodeUnknown));
    }

    #[test]
    fn import_ends_with_its_filter() {
        let mut machine = Machine::new();
        machine.apply(create(1));
        let target = target(1);
        let import = ImportId::new("nightly").unwrap();
        let mode = ImportMode::Replace;
        let owner = KeyName::new("key").unwrap();
        let begun = machine.apply(Command::ImportBegin(ImportBegin {
            target,
            import: import.clone(),
            mode,
            if_absent: false,
            guards: mode.guards(),
            owner,
            is_named: true,
        }));
        assert!(matches!(begun, Outcome::Import(_)));
        machine.apply(delete(1));
        let ended = machine.apply(Command::ImportEnd(ImportEnd {
            target,
            import,
            ending: Ending::Whole {
                upload: UploadDigest { bytes: 0, hash: 0 },
                warnings: Vec::new(),
            },
            entries_max: 10,
        }));
        assert_eq!(ended, Outcome::Refused(Refusal::FilterGone));
        assert_eq!(
            (
                machine.state.sizes().tables_bytes,
                machine.state.shared.totals.records_bytes
            ),
            (0, 0)
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        /// One entry expires no more holds than it may, the first ones first, and those of deleted filters cost it nothing.
        #[test]
        fn entry_expires_bounded_number_of_holds(deleted in 0_u64..1_500, held in 1_u64..1_500) {
            let mut machine = Machine::new();
            machine.apply(Command::Configure(Settings { events_retention_seconds: 60, ..Settings::default() }));
            machine.apply(create(1));
            machine.apply(create(2));
            for (filter, holds) in [(2, deleted), (1, held)] {
                machine.apply(insert(target(filter), 1..holds + 1));
                (1..=holds).for_each(|code| drop(machine.apply(hold(filter, code, 60 + code / 100))));
            }
            machine.apply(delete(2));
            machine.state.take_events(&mut FreshEvents::default());
            prop_assert_eq!(machine.state.sweep_events_bytes(5, machine.now), 0);
            machine.pass_seconds(1_000);
            let mut expired = 0;
            while expired < held {
                let room = machine.state.sweep_events_bytes(1, machine.now);
                machine.apply(delete(3));
                let mut fresh = FreshEvents::default();
                machine.state.take_events(&mut fresh);
                let bytes: usize = fresh.iter().map(|event| event.bytes.len()).sum();
                prop_assert!(bytes > 0 && bytes as u64 <= room, "{} bytes, room for {}", bytes, room);
                expired = held.min(expired + SWEEP_MAX as u64);
                let totals = machine.state.shared.totals;
                prop_assert_eq!(totals.redemptions - totals.holds, expired);
                prop_assert_eq!(shown(&machine, expired).changed_at, machine.now);
                prop_assert!(expired == held || shown(&machine, expired + 1).changed_at < machine.now);
            }
            prop_assert_eq!(shown(&machine, held).status, RedemptionStatus::Expired);
            prop_assert_eq!(machine.state.sweep_events_bytes(5, machine.now), 0);
        }
    }
}
