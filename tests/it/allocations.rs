//! The memory account compared with real allocations: everything that this thread allocates from the heap is counted.

#![allow(unsafe_code)] // An allocator is unsafe by its nature; this one only counts.

use crate::random_log::code;
use cuckood::domain::{
    Command, Count, Digests, Entry, FilterId, Kind, Name, Outcome, Proposal, RedemptionId, Reference,
    Settings, Sizing, Spec, Statistics, Target, Timestamp, Window,
};
use cuckood::filter::{Growth, Layout, Mode, Secret};
use cuckood::state::State;
use std::alloc::{GlobalAlloc, System};
use std::cell::Cell;

#[global_allocator]
static COUNTING: Counting = Counting;

struct Counting;

thread_local! {
    /// Bytes that this thread has allocated and not freed.
    static ALLOCATED: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    // While a thread ends there is nothing left to count.
    let _ = ALLOCATED.try_with(|allocated| allocated.set(allocated.get() + bytes));
}

// SAFETY: every call is forwarded unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: std::alloc::Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller keeps to the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: std::alloc::Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller keeps to the contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: std::alloc::Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: the caller keeps to the contract.
        unsafe { System.realloc(start, layout, size) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: std::alloc::Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller keeps to the contract.
        unsafe { System.dealloc(start, layout) }
    }
}

fn allocated() -> i64 {
    ALLOCATED.get()
}

const TARGET: Target = Target(FilterId(1));

const REDEMPTIONS: u64 = 20_000;

/// A state with a coupon for this many redemptions.
fn state(stock: Option<u64>) -> State {
    let mut state = State::new();
    let (mode, growth, sizing) = (Mode::Strict, Growth::Auto, Sizing::Exact);
    let spec = Spec { capacity: REDEMPTIONS, mode, growth, sizing, ignore_case: false, stock, forget: None };
    let settings =
        Settings { redemptions_retention_seconds: 60, events_retention_seconds: 0, ..Settings::default() };
    apply(&mut state, 1_000, Command::Configure(settings));
    let created = Command::Create {
        kind: Kind::Coupon,
        name: Name::new("c").unwrap(),
        id: TARGET.0,
        secret: Secret::new([7; 192]),
        layout: Layout::strict(REDEMPTIONS).unwrap(),
        spec,
        window: Window::default(),
        annotations: Default::default(),
    };
    apply(&mut state, 1_000, created);
    if stock.is_none() {
        for first in (0..REDEMPTIONS).step_by(10_000) {
            let digests = Digests((first..first + 10_000).map(code).collect());
            let insert = Command::Insert { target: TARGET, digests, if_absent: false, revive: false };
            apply(&mut state, 1_000, insert);
        }
    }
    state
}

fn apply(state: &mut State, at: u64, command: Command) {
    let proposal = Proposal::new(Timestamp(at), command);
    let outcome = state.apply(Entry { seq: state.applied().next(), proposal }).outcome;
    assert!(!matches!(outcome, Outcome::Refused(_)), "{outcome:?}");
    while state.free_discarded(1_000) {}
}

fn redeem(state: &mut State, number: u64) {
    let mixed = u128::from(code(number).0) << 64 | u128::from(number);
    let command = Command::Redeem {
        target: TARGET,
        digest: code(number),
        redemption: RedemptionId(mixed.to_be_bytes()),
        reference: Reference::new(&format!("order-{number}")).unwrap(),
        hold_seconds: if number.is_multiple_of(2) { 30 } else { 0 },
    };
    apply(state, 1_000 + number, command);
}

/// What redemptions take is in the account, and once they are forgotten nothing is left of it.
#[test]
fn redemption_memory_matches_account() {
    for stock in [None, Some(REDEMPTIONS)] {
        let mut state = state(stock);
        let (heap, account) = (allocated(), state.sizes().records_bytes as i64);
        (0..REDEMPTIONS).for_each(|number| redeem(&mut state, number));
        let (taken, counted) = (allocated() - heap, state.sizes().records_bytes as i64 - account);
        assert!(taken <= counted, "{taken} bytes, of which {counted} are counted");
        assert!(counted <= 2 * taken, "{taken} bytes, but {counted} are counted");
        let mut at = 10_000_000;
        while state.sizes().redemptions > 0 {
            at += 1_000;
            apply(&mut state, at, Command::Advance { buckets_max: 0 });
        }
        let (left, counted) = (allocated() - heap, state.sizes().records_bytes as i64 - account);
        // The ordinals of redeemed codes stay taken.
        assert!(left <= 50_000 && counted <= 50_000, "{left} bytes are left, of which {counted} are counted");
    }
}

/// A campaign of capacity 100 takes at most 1.8 KB, including its table, secret and statistics.
#[test]
fn tiny_campaigns_take_little_memory() {
    const CAMPAIGNS: u64 = 1_000;
    let mut state = State::new();
    apply(&mut state, 1_000, Command::Configure(Settings::default()));
    let error_rate = 0.001;
    let layout = Layout::compact(100, error_rate, Growth::Auto).unwrap();
    let before = allocated();
    for number in 0..CAMPAIGNS {
        let create = Command::Create {
            kind: Kind::Campaign,
            name: Name::new(&format!("campaign-{number}")).unwrap(),
            id: FilterId(xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes())),
            secret: Secret::new([7; 192]),
            layout,
            spec: Spec {
                capacity: 100,
                mode: Mode::Compact,
                growth: Growth::Auto,
                sizing: Sizing::ErrorRate(error_rate),
                ignore_case: false,
                stock: None,
                forget: None,
            },
            window: Window::default(),
            annotations: Default::default(),
        };
        apply(&mut state, 1_000, create);
    }
    let each = (allocated() - before) / CAMPAIGNS as i64;
    assert!(each <= 1_800, "{each} bytes");
}

/// Statistics allocate at most once per period, and hold what the account says.
#[test]
fn statistics_memory_matches_account() {
    const HOUR: u64 = 3_600_000;
    let (heap, mut statistics) = (allocated(), Statistics::default());
    for hour in 0..900 * 24 {
        statistics.count(Timestamp(hour * HOUR), Count::Added, hour + 1);
        let before = allocated();
        statistics.count(Timestamp(hour * HOUR + 1), Count::Removed, hour + 1);
        assert_eq!(allocated(), before);
    }
    let (taken, counted) = (allocated() - heap, statistics.memory_bytes());
    assert!(
        taken.cast_unsigned() <= counted + 2 * Statistics::GROWTH_BYTES,
        "{taken} bytes, {counted} counted"
    );
    assert!(counted < 448 * 16, "{counted} bytes");
}
