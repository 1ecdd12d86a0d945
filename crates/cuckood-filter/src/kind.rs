//! The kinds of tables that hot code is compiled for, and the choice of the right one at run time.

use super::place::{Dimensions, Place};
use super::slots::{Lanes, OwnShape};

/// A kind of table: how its slots lie in words, and how it places items. Hot code is compiled for each kind.
#[derive(Clone, Copy)]
pub(super) struct TableKind<S, P> {
    pub(super) shape: S,
    pub(super) place: P,
}

impl<S: OwnShape, P: Place> TableKind<S, P> {
    #[inline(always)]
    pub(super) fn of(lanes: &Lanes, dimensions: &Dimensions) -> Self {
        Self { shape: S::of(lanes), place: P::of(dimensions) }
    }
}

/// Binds two type names to the kind of a planned table, and evaluates an expression with them: as a rule, a call of a generic
/// function.
///
/// Buckets of four slots are the usual ones, and a filter that grows passes through many widths, so there is a kind for each
/// width. Other buckets have kinds for their usual widths, and one for the rest. The function must not be inlined, or the code for
/// all kinds ends up in one function that spills its registers.
macro_rules! with_kind {
    ($plan:expr, $shape:ident, $place:ident => $body:expr) => {{
        use $crate::place::{First, Nested, Stepped, Whole};
        use $crate::slots::{Fixed, Lanes, StrictShape};
        use $crate::plan::TablePlan;
        let plan: TablePlan = $plan;
        match plan {
            TablePlan::Strict { .. } => {
                type $shape = StrictShape;
                type $place = Whole;
                $body
            }
            TablePlan::Segment { k: 0, step_bits: 0, .. } | TablePlan::Doubling { segment: 0, .. } => {
                with_kind!(@segment plan, First, $shape, $place => $body)
            }
            TablePlan::Segment { step_bits: 0, .. } | TablePlan::Doubling { .. } => {
                with_kind!(@segment plan, Nested, $shape, $place => $body)
            }
            // What is hot there has kinds of its own, in `super::stepped`.
            TablePlan::Segment { .. } => {
                type $shape = Lanes;
                type $place = Stepped;
                $body
            }
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

/// As [`with_kind`], for code that is not hot: it is compiled only once for each placement, and looks a compact table's geometry up
/// at run time.
macro_rules! with_any_kind {
    ($plan:expr, $shape:ident, $place:ident => $body:expr) => {
        match $plan {
            $crate::plan::TablePlan::Strict { .. } => {
                type $shape = $crate::slots::StrictShape;
                type $place = $crate::place::Whole;
                $body
            }
            $crate::plan::TablePlan::Segment { step_bits: 0, .. }
            | $crate::plan::TablePlan::Doubling { .. } => {
                type $shape = $crate::slots::Lanes;
                type $place = $crate::place::Nested;
                $body
            }
            $crate::plan::TablePlan::Segment { .. } => {
                type $shape = $crate::slots::Lanes;
                type $place = $crate::place::Stepped;
                $body
            }
        }
    };
}
pub(super) use with_any_kind;
