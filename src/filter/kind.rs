//! The kinds of tables that code is compiled for, and the choice among them when it runs.

use super::place::{First, Nested, Whole};
use super::table::Plan;

/// A shape and a placement: all that the code for one kind of table depends on, and is compiled for.
#[derive(Clone, Copy)]
pub(super) struct Kind<S, P> {
    pub(super) shape: S,
    pub(super) place: P,
}

/// Where items lie, by the sort of table.
#[derive(Clone, Copy)]
pub(super) enum Placement {
    First(First),
    Later(Nested),
    Strict(Whole),
}

impl Placement {
    pub(super) fn of(plan: Plan) -> Self {
        match plan {
            Plan::Segment { base_bits, base_buckets, k: 0, .. } => {
                Self::First(First::new(u32::from(base_bits), base_buckets))
            }
            Plan::Segment { base_bits, base_buckets, k, .. } => {
                Self::Later(Nested::new(u32::from(base_bits), base_buckets, k))
            }
            Plan::Strict { buckets } => Self::Strict(Whole::new(buckets)),
        }
    }
}

/// Runs the code for a table's kind: compiled for each width of the usual four slots, since a filter that grows comes by
/// many, for the usual widths of other buckets, and once for the rest. The body is to be a call of a function that is not
/// inlined, or all those kinds end up in one function that spills its registers.
macro_rules! with_kind {
    ($table:expr, $kind:ident => $body:expr) => {{
        use $crate::filter::slots::{Fixed, StrictShape};
        use $crate::filter::kind::{Kind, Placement};
        let table = &*$table;
        match table.placement {
            Placement::Strict(place) => {
                let $kind = Kind { shape: StrictShape, place };
                $body
            }
            Placement::First(place) => with_kind!(@segment table, place, $kind => $body),
            Placement::Later(place) => with_kind!(@segment table, place, $kind => $body),
        }
    }};
    (@segment $table:ident, $place:ident, $kind:ident => $body:expr) => {
        match $table.lanes.slots {
            4 => with_kind!(@widths $table, $place, $kind => $body, 4:
                4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32),
            2 => with_kind!(@widths $table, $place, $kind => $body, 2: 8 12 16 32),
            _ => with_kind!(@widths $table, $place, $kind => $body, 8: 8 12 16 32),
        }
    };
    (@widths $table:ident, $place:ident, $kind:ident => $body:expr, $slots:literal: $($bits:literal)+) => {
        match $table.lanes.bits {
            $($bits => {
                let $kind = Kind { shape: Fixed::<$bits, $slots>, place: $place };
                $body
            })+
            _ => {
                let $kind = Kind { shape: $table.lanes, place: $place };
                $body
            }
        }
    };
}
pub(super) use with_kind;
