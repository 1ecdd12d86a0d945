//! When a campaign forgets its users: after what time, and in how many steps.
//!
//! Time is cut into steps since 1970, which are numbered. A user who is added in a step is kept for as many steps after it as the
//! time has. So a user stays for at least that time, and goes at most one step later.

use super::Timestamp;
use crate::filter::layout::{STEPS_MAX, STEPS_MIN};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The shortest time after which a campaign can forget, in seconds.
pub const FORGET_SECONDS_MIN: u64 = 60;

/// The longest time after which a campaign can forget, in seconds: 400 days.
pub const FORGET_SECONDS_MAX: u64 = 400 * 86_400;

/// In how many steps a campaign forgets unless it is asked for another number. A user stays up to an eighth of the time longer.
pub const FORGET_STEPS_DEFAULT: u32 = 8;

/// After what time a campaign forgets, and in how many steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Wire")]
pub struct Forget {
    after_seconds: u64,
    steps: u32,
}

/// What is read before it is checked.
#[derive(Deserialize)]
struct Wire {
    after_seconds: u64,
    steps: u32,
}

impl TryFrom<Wire> for Forget {
    type Error = ForgetError;

    fn try_from(Wire { after_seconds, steps }: Wire) -> Result<Self, ForgetError> {
        Self::new(after_seconds, steps)
    }
}

/// Why a campaign can't forget like that.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ForgetError {
    /// This is not a time.
    #[error("expected a time such as 7d, 36h, 90m or 3600s")]
    NotATime,
    /// The time is out of range.
    #[error("expected 1 minute to 400 days")]
    Time,
    /// The number of steps is out of range.
    #[error("expected {STEPS_MIN} to {STEPS_MAX}")]
    Steps,
}

/// Units of time, the longest first: its letter, and its length in seconds.
const UNITS: [(char, u64); 4] = [('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];

/// The seconds of a time that is written as a whole number and a unit: `7d`, `36h`, `90m`, `3600s`.
///
/// # Errors
/// [`ForgetError::NotATime`].
pub fn parse_time(text: &str) -> Result<u64, ForgetError> {
    let seconds = UNITS.iter().find_map(|(letter, length)| {
        let number = text.strip_suffix(*letter)?;
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let number = is_number.then(|| number.parse::<u64>().unwrap_or(u64::MAX))?;
        Some(number.saturating_mul(*length))
    });
    seconds.ok_or(ForgetError::NotATime)
}

/// A time as [`parse_time`] reads it, in the longest unit that fits.
pub fn write_time(seconds: u64) -> String {
    let (letter, length) =
        UNITS.into_iter().find(|(_, length)| seconds.is_multiple_of(*length)).unwrap_or(('s', 1));
    format!("{}{letter}", seconds / length)
}

impl Forget {
    /// Forgetting after so many seconds, in so many steps.
    ///
    /// # Errors
    /// [`ForgetError`] if either is out of range.
    pub fn new(after_seconds: u64, steps: u32) -> Result<Self, ForgetError> {
        if !(FORGET_SECONDS_MIN..=FORGET_SECONDS_MAX).contains(&after_seconds) {
            return Err(ForgetError::Time);
        }
        if !(STEPS_MIN..=STEPS_MAX).contains(&steps) {
            return Err(ForgetError::Steps);
        }
        Ok(Self { after_seconds, steps })
    }

    /// For how many seconds users stay at least.
    pub fn after_seconds(&self) -> u64 {
        self.after_seconds
    }

    /// In how many steps users go.
    pub fn steps(&self) -> u32 {
        self.steps
    }

    /// The number of the step at this time.
    pub fn step_at(&self, at: Timestamp) -> u64 {
        let step = u128::from(at.0) * u128::from(self.steps) / self.after_milliseconds();
        u64::try_from(step).unwrap_or(u64::MAX)
    }

    /// When a step begins.
    pub fn begin_of(&self, step: u64) -> Timestamp {
        let at = (u128::from(step) * self.after_milliseconds()).div_ceil(u128::from(self.steps));
        u64::try_from(at).map_or(Timestamp::MAX, Timestamp)
    }

    /// From when on users who were added in this step are forgotten.
    pub fn end_of(&self, step: u64) -> Timestamp {
        self.begin_of(step.saturating_add(u64::from(self.steps)).saturating_add(1))
    }

    fn after_milliseconds(&self) -> u128 {
        u128::from(self.after_seconds) * 1_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever the time and the number of steps: a user stays for the time, and goes at most one step later.
        #[test]
        fn a_user_stays_for_the_time_and_at_most_a_step_longer(
            after_seconds in FORGET_SECONDS_MIN..=FORGET_SECONDS_MAX,
            steps in 2_u32..=32,
            added in prop_oneof![0..1_u64 << 45, any::<u64>()],
        ) {
            let forget = Forget::new(after_seconds, steps).unwrap();
            let (after, added) = (after_seconds * 1_000, Timestamp(added));
            let step = forget.step_at(added);
            let (begin, gone) = (forget.begin_of(step), forget.end_of(step));
            prop_assert!(begin <= added);
            if gone < Timestamp::MAX {
                prop_assert!(gone.0 - added.0 >= after);
                prop_assert!(gone.0 - added.0 <= after + after.div_ceil(u64::from(steps)));
                // The state and its readers go by steps, others by times: both agree to the millisecond.
                prop_assert_eq!(forget.step_at(gone), step + u64::from(steps) + 1);
                prop_assert_eq!(forget.step_at(Timestamp(gone.0 - 1)), step + u64::from(steps));
            }
        }
    }

    #[test]
    fn decoded_value_obeys_constructor() {
        for (seconds, steps, is_possible) in
            [(0, 8, false), (1, 8, false), (u64::MAX, 8, false), (60, 0, false), (60, 2, true)]
        {
            let bytes = postcard::to_stdvec(&(seconds, steps)).unwrap();
            assert_eq!(postcard::from_bytes::<Forget>(&bytes).is_ok(), is_possible, "{seconds} {steps}");
        }
    }

    #[test]
    fn what_is_out_of_range_is_refused() {
        for (seconds, is_possible) in
            [(59, false), (60, true), (400 * 86_400, true), (400 * 86_400 + 1, false)]
        {
            assert_eq!(Forget::new(seconds, 8).is_ok(), is_possible);
        }
        for (steps, is_possible) in [(0, false), (1, false), (2, true), (32, true), (33, false)] {
            assert_eq!(Forget::new(60, steps).is_ok(), is_possible);
        }
    }

    #[test]
    fn a_time_is_read_and_written_in_the_longest_unit() {
        for (text, seconds, written) in [
            ("7d", 604_800, "7d"),
            ("168h", 604_800, "7d"),
            ("90m", 5_400, "90m"),
            ("60s", 60, "1m"),
            ("61s", 61, "61s"),
        ] {
            assert_eq!(parse_time(text), Ok(seconds));
            assert_eq!(write_time(seconds), written);
        }
        assert_eq!(parse_time("99999999999999999999d"), Ok(u64::MAX));
        for text in ["", "d", "7", "7 d", "-7d", "+7d", "7D", "7w", "1.5d", "7d ", "٣d"] {
            assert_eq!(parse_time(text), Err(ForgetError::NotATime), "{text}");
        }
    }
}
