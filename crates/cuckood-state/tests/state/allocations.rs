//! The memory account compared with real allocations: everything that this thread allocates from the heap is counted.

use crate::counting::allocated;
use cuckood_state::FilterStatistics;
use cuckood_state::domain::{Command, HourRetention, Outcome, Settings, Supply, Target, Timestamp};
use cuckood_state::testing::commands::{NewFilter, insert, target};
use cuckood_state::testing::machine::Machine;

const COUPON: Target = target(1);

const REDEMPTIONS: u64 = 20_000;

/// A state with a coupon for this many redemptions.
fn machine(stock: Option<u64>) -> Machine {
    let mut machine = Machine::new();
    let settings = Settings {
        redemptions_retention_seconds: 60,
        events_retention_seconds: 0,
        ..Settings::default()
    };
    machine.apply(Command::Configure(settings));
    machine.create(
        COUPON,
        &NewFilter {
            supply: Supply {
                stock,
                ..Supply::default()
            },
            ..NewFilter::coupon(REDEMPTIONS)
        },
    );
    if stock.is_none() {
        for first in (0..REDEMPTIONS).step_by(10_000) {
            machine.apply(insert(COUPON, first..first + 10_000));
        }
    }
    machine
}

/// What redemptions take is in the account, and once they are forgotten nothing is left of it.
#[test]
fn redemption_memory_matches_account() {
    for stock in [None, Some(REDEMPTIONS)] {
        let mut machine = machine(stock);
        let heap = allocated();
        let account = machine.state.sizes().records_bytes as i64;
        for number in 0..REDEMPTIONS {
            machine.now.0 += 1;
            let hold_seconds = if number.is_multiple_of(2) { 30 } else { 0 };
            let outcome = machine.redeem(COUPON, number, &format!("order-{number}"), hold_seconds);
            assert!(matches!(outcome, Outcome::Redeemed(_)), "{outcome:?}");
        }
        while machine.state.free_discarded(1_000) {}
        let taken = allocated() - heap;
        let counted = machine.state.sizes().records_bytes as i64 - account;
        assert!(
            taken <= counted,
            "{taken} bytes, of which {counted} are counted"
        );
        assert!(
            counted <= 2 * taken,
            "{taken} bytes, but {counted} are counted"
        );
        machine.pass_seconds(9_000);
        while machine.state.sizes().redemptions > 0 {
            machine.pass_seconds(1);
            machine.apply(Command::Advance { buckets_max: 0 });
        }
        while machine.state.free_discarded(1_000) {}
        let left = allocated() - heap;
        let counted = machine.state.sizes().records_bytes as i64 - account;
        // The ordinals of redeemed codes stay taken.
        assert!(
            left <= 50_000 && counted <= 50_000,
            "{left} bytes are left, of which {counted} are counted"
        );
    }
}

/// A campaign of capacity 100 takes at most 1.8 KB, including its table, secret and statistics.
#[test]
fn tiny_campaigns_take_little_memory() {
    const CAMPAIGNS: u64 = 1_000;
    let mut machine = Machine::new();
    machine.apply(Command::Configure(Settings::default()));
    let before = allocated();
    for number in 1..=CAMPAIGNS {
        machine.create(target(number), &NewFilter::campaign(100, 0.001));
    }
    let each = (allocated() - before) / CAMPAIGNS as i64;
    assert!(each <= 1_800, "{each} bytes");
}

/// Statistics allocate at most once per period, and hold what the account says.
#[test]
fn statistics_memory_matches_account() {
    const HOUR: u64 = 3_600_000;
    const HOURS: HourRetention = HourRetention::ThirtySixDays;
    let heap = allocated();
    let mut statistics = FilterStatistics::default();
    for hour in 0..900 * 24 {
        statistics.add(Timestamp(hour * HOUR), &[hour + 1, 0, 0, 0, 0, 0, 0], HOURS);
        let before = allocated();
        statistics.add(
            Timestamp(hour * HOUR + 1),
            &[0, hour + 1, 0, 0, 0, 0, 0],
            HOURS,
        );
        assert_eq!(allocated(), before);
    }
    let taken = allocated() - heap;
    let counted = statistics.add(Timestamp(0), &Default::default(), HOURS);
    assert!(
        taken.cast_unsigned() <= counted,
        "{taken} bytes, {counted} counted"
    );
    assert!(counted < (400 + 864) * 16, "{counted} bytes");
}
