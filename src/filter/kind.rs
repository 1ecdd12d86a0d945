//! The kinds of tables that code is compiled for, and the choice among them when it runs.

use super::place::{Dimensions, Place};
use super::slots::{Lanes, Shape};

/// A shape and a placement: all that the code for one kind of table depends on, and is compiled for.
#[derive(Clone, Copy)]
pub(super) struct Kind<S, P> {
    pub(super) shape: S,
    pub(super) place: P,
}

impl<S: Shape, P: Place> Kind<S, P> {
    #[inline(always)]
    pub(super) fn of(lanes: &Lanes, dimensions: &Dimensions) -> Self {
        Self { shape: S::of(lanes), place: P::of(dimensions) }
    }
}

/// Names the kind of a planned table as two types, to call the function, or take the one, that is compiled for it: for each
/// width of the usual four slots, since a filter that grows comes by many, for the usual widths of other buckets, and once
/// for the rest. The function is not to be inlined, or all those kinds end up in one that spills its registers.
macro_rules! with_kind {
    ($plan:expr, $shape:ident, $place:ident => $body:expr) => {{
        use $crate::filter::place::{First, Nested, Whole};
        use $crate::filter::slots::{Fixed, Lanes, StrictShape};
        use $crate::filter::plan::Plan;
        let plan: Plan = $plan;
        match plan {
            Plan::Strict { .. } => {
                type $shape = StrictShape;
                type $place = Whole;
                $body
            }
            Plan::Segment { k: 0, .. } => with_kind!(@segment plan, First, $shape, $place => $body),
            Plan::Segment { .. } => with_kind!(@segment plan, Nested, $shape, $place => $body),
        }
    }};
    (@segment $plan:ident, $placement:ident, $shape:ident, $place:ident => $body:expr) => {{
        type $place = $placement;
        match $plan.bucket_size() {
            4 => with_kind!(@widths $plan, $shape => $body, 4:
                4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32),
            2 => with_kind!(@widths $plan, $shape => $body, 2: 8 12 16 32),
            _ => with_kind!(@widths $plan, $shape => $body, 8: 8 12 16 32),
        }
    }};
    (@widths $plan:ident, $shape:ident => $body:expr, $slots:literal: $($bits:literal)+) => {
        match $plan.fingerprint_bits() {
            $($bits => {
                type $shape = Fixed<$bits, $slots>;
                $body
            })+
            _ => {
                type $shape = Lanes;
                $body
            }
        }
    };
}
pub(super) use with_kind;
