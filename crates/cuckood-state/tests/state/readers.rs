//! Readers take no lock, and see each entry of the log completely or not at all.

use cuckood_state::domain::{
    Command, Entry, Guards, ImportMode, Kind, Proposal, Seq, Target, Timestamp,
};
use cuckood_state::testing::commands::{
    NewFilter, code, import_begin, import_end, import_lines, insert, name_of, redeem, redemption,
    remove, replace, target,
};
use cuckood_state::testing::random::Random;
use cuckood_state::{State, Views};
use std::hint::spin_loop;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

const COUPON: Target = target(1);
const CODES: u64 = 6;

/// The clock of the reader. No hold has run out by it, so holds end by entries alone.
const NOW: Timestamp = Timestamp(1_000);

/// A random log about the codes of one strict coupon. Time passes in entries that do nothing else, so an entry ends holds or acts on a code,
/// but not both.
struct Log {
    random: Random,
    entries: Vec<Entry>,
    at: Timestamp,
    redemptions: u64,
}

impl Log {
    fn push(&mut self, command: Command) {
        let seq = Seq(self.entries.len() as u64 + 1);
        self.entries.push(Entry {
            seq,
            proposal: Proposal::new(self.at, command),
        });
    }

    fn some_codes(&mut self) -> impl Iterator<Item = u64> + use<> {
        let bits = self.random.below(1 << CODES);
        (0..CODES).filter(move |number| bits >> number & 1 > 0)
    }

    /// A recent redemption, or one that does not exist.
    fn some_redemption(&mut self) -> u64 {
        self.redemptions.saturating_sub(self.random.below(CODES))
    }

    fn step(&mut self) {
        let target = COUPON;
        let command = match self.random.below(16) {
            0..3 => insert(target, self.some_codes()),
            3 => {
                let Command::Insert { digests, .. } = insert(target, self.some_codes()) else {
                    unreachable!()
                };
                Command::Insert {
                    target,
                    digests,
                    if_absent: false,
                    revive: true,
                }
            }
            4..7 => remove(target, self.some_codes()),
            7..11 => {
                self.redemptions += 1;
                let number = self.random.below(CODES);
                let serial = self.redemptions;
                let hold_seconds = [0, 5, 60][self.random.below(3) as usize];
                redeem(
                    target,
                    number,
                    serial,
                    &format!("order-{serial}"),
                    hold_seconds,
                )
            }
            11 => Command::Confirm {
                target,
                redemption: redemption(self.some_redemption()),
            },
            12 => Command::Cancel {
                target,
                redemption: redemption(self.some_redemption()),
            },
            13 => {
                let first = self.random.below(CODES);
                let pair = |from| [(first + from) % CODES, (first + from + 1) % CODES];
                replace(target, pair(0), pair(2))
            }
            14 => {
                self.at = self.at.plus_seconds(self.random.below(8));
                Command::Advance { buckets_max: 100 }
            }
            _ => return self.import(),
        };
        self.push(command);
    }

    /// An import that replaces all codes but those in use.
    fn import(&mut self) {
        let import = format!("i{}", self.entries.len());
        self.push(import_begin(
            COUPON,
            &import,
            ImportMode::Replace,
            Guards::default(),
        ));
        let lines = import_lines(COUPON, &import, self.some_codes());
        self.push(lines);
        (0..3).for_each(|_| self.push(import_end(COUPON, &import, 100)));
    }
}

fn log(seed: u64, steps: usize) -> Vec<Entry> {
    let mut log = Log {
        random: Random::new(seed),
        entries: Vec::new(),
        at: NOW,
        redemptions: 0,
    };
    log.push(NewFilter::coupon(50).create(COUPON));
    (0..steps).for_each(|_| log.step());
    log.entries
}

fn is_valid(view: &Views, number: u64) -> bool {
    view.find(Kind::Coupon, &name_of(COUPON))
        .is_some_and(|coupon| coupon.contains(code(number), NOW))
}

fn apply(state: &mut State, entry: &Entry) {
    state.apply(entry.clone());
    state.publish();
    state.take_events(&mut Default::default());
    state.free_discarded(100);
}

/// Each answer is that before or that after an entry which was being applied during the look-up.
#[test]
fn reader_sees_each_entry_whole_or_not_at_all() {
    for seed in 1..4 {
        let entries = log(seed, 1_200);
        let mut state = State::default();
        // For each number of entries, the codes that are valid after them.
        let mut valid: Vec<Vec<bool>> = vec![vec![false; CODES as usize]];
        for entry in &entries {
            apply(&mut state, entry);
            valid.push(
                (0..CODES)
                    .map(|number| is_valid(&state.view(), number))
                    .collect(),
            );
        }
        let changes = valid.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert!(changes > entries.len() / 4, "{changes} changes");

        let mut state = State::default();
        let view = state.view();
        let begun = AtomicUsize::new(0);
        let applied = AtomicUsize::new(0);
        let look_ups = AtomicUsize::new(0);
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                for number in (0..CODES).cycle() {
                    let first = applied.load(SeqCst);
                    let answer = is_valid(&view, number);
                    let last = begun.load(SeqCst);
                    look_ups.fetch_add(1, SeqCst);
                    let is_possible = valid[first..=last]
                        .iter()
                        .any(|valid| valid[number as usize] == answer);
                    assert!(
                        is_possible,
                        "code {number}: {answer} during {:#?}",
                        &entries[first..last]
                    );
                    if first == entries.len() {
                        break;
                    }
                }
            });
            for (number, entry) in (1..).zip(&entries) {
                let before = look_ups.load(SeqCst);
                begun.store(number, SeqCst);
                apply(&mut state, entry);
                applied.store(number, SeqCst);
                // The reader runs when the next entry begins.
                while look_ups.load(SeqCst) == before && !reader.is_finished() {
                    spin_loop();
                }
            }
        });
    }
}
