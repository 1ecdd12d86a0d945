//! What a filter is created with: the options of CF.RESERVE, as far as they have a meaning here.

use super::failure::Failure;
use super::parser::Arguments;
use crate::domain::{Kind, Sizing, Spec};
use crate::engine::{Growth, Layout, Mode};

/// The error rate of all filters that this door creates.
const ERROR_RATE: f64 = 0.001;

/// Redis' bucket size, unless another one is asked for.
const REDIS_BUCKET_SIZE: i64 = 2;

/// Nodes that an insert searches, where the layout has to say so: as many as in filters that are sized by their error rate.
const MAX_SEARCH: u32 = 2_000;

/// The longest fingerprint, in bits.
const FINGERPRINT_BITS_MAX: u8 = 32;

/// The options of a filter to create.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reserve {
    capacity: u64,
    /// If one was asked for that there is here.
    bucket_size: Option<u8>,
    growth: Growth,
}

impl Reserve {
    /// A filter that grows beyond its capacity.
    pub fn with_capacity(capacity: u64) -> Self {
        Self { capacity, bucket_size: None, growth: Growth::Auto }
    }

    /// Parses a capacity for Redis' own bucket size.
    pub fn capacity(argument: &[u8]) -> Result<u64, Failure> {
        check_capacity(argument, REDIS_BUCKET_SIZE)
    }

    /// Parses `capacity [BUCKETSIZE n] [MAXITERATIONS n] [EXPANSION n]`. What Redis would refuse is refused.
    pub fn parse(arguments: Arguments<'_>) -> Result<Self, Failure> {
        let mut bucket_size = REDIS_BUCKET_SIZE;
        let mut reserve = Self::with_capacity(0);
        number(arguments.at(0)).ok_or_else(bad_capacity)?;
        for at in (1..arguments.len()).step_by(2) {
            let (option, value) = (arguments.at(at), arguments.at(at + 1));
            if option.eq_ignore_ascii_case(b"BUCKETSIZE") {
                bucket_size = option_value("BUCKETSIZE", value, 1..=255)?;
                reserve.bucket_size = u8::try_from(bucket_size).ok().filter(|size| matches!(size, 2 | 4 | 8));
            } else if option.eq_ignore_ascii_case(b"MAXITERATIONS") {
                option_value("MAXITERATIONS", value, 1..=65_535)?;
            } else if option.eq_ignore_ascii_case(b"EXPANSION") {
                let expansion = option_value("EXPANSION", value, 0..=32_768)?;
                reserve.growth = if expansion == 0 { Growth::Fixed } else { Growth::Auto };
            } else {
                return Err(Failure::err("Unknown argument received"));
            }
        }
        reserve.capacity = check_capacity(arguments.at(0), bucket_size)?;
        Ok(reserve)
    }

    /// The spec of a filter of this kind: compact campaigns and strict coupons, as over HTTP.
    pub fn spec(self, kind: Kind) -> Result<Spec, Failure> {
        let Self { capacity, bucket_size, growth } = self;
        let (mode, sizing) = match (kind, bucket_size) {
            (Kind::Coupon, _) => (Mode::Strict, Sizing::Exact),
            (Kind::Campaign, None) => (Mode::Compact, Sizing::ErrorRate(ERROR_RATE)),
            (Kind::Campaign, Some(bucket_size)) => (Mode::Compact, self.layout(bucket_size)?),
        };
        Ok(Spec { capacity, mode, growth, sizing, ignore_case: false, stock: None, forget: None })
    }

    /// The shortest fingerprints that keep the error rate in buckets of this size.
    fn layout(self, bucket_size: u8) -> Result<Sizing, Failure> {
        // The first segment of a filter that grows has half of the rate, and each further one half of what is left.
        let share = match self.growth {
            Growth::Auto => ERROR_RATE / 2.0,
            Growth::Fixed => ERROR_RATE,
        };
        for fingerprint_bits in 4..=FINGERPRINT_BITS_MAX {
            match Layout::compact_with(self.capacity, fingerprint_bits, bucket_size, MAX_SEARCH, self.growth)
            {
                Ok(layout) if layout.error_rate_at(1.0) > share => {}
                Ok(_) => return Ok(Sizing::Layout { fingerprint_bits, bucket_size, max_search: MAX_SEARCH }),
                Err(_) if fingerprint_bits < FINGERPRINT_BITS_MAX => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(bad_capacity())
    }
}

fn bad_capacity() -> Failure {
    Failure::err("Bad capacity")
}

fn check_capacity(argument: &[u8], bucket_size: i64) -> Result<u64, Failure> {
    let capacity = number(argument).ok_or_else(bad_capacity)?;
    if capacity < 2 * bucket_size {
        return Err(Failure::err("Capacity must be at least (BucketSize * 2)"));
    }
    u64::try_from(capacity).map_err(|_| bad_capacity())
}

fn option_value(name: &str, value: &[u8], range: std::ops::RangeInclusive<i64>) -> Result<i64, Failure> {
    let value = number(value).ok_or_else(|| Failure::err(format!("Couldn't parse {name}")))?;
    if range.contains(&value) {
        return Ok(value);
    }
    let (least, most) = range.into_inner();
    Err(Failure::err(format!("{name}: value must be an integer between {least} and {most}, inclusive.")))
}

/// Parses a number.
pub fn number(argument: &[u8]) -> Option<i64> {
    str::from_utf8(argument).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::parser::{Parser, RequestLimits};
    use super::*;

    fn parsed(line: &str) -> Result<Reserve, String> {
        let limits = RequestLimits { arguments_max: 0, argument_bytes_max: 0, request_bytes_max: 0 };
        let (mut parser, line) = (Parser::default(), format!("{line}\r\n"));
        parser.parse(line.as_bytes(), &limits).unwrap();
        Reserve::parse(parser.arguments(line.as_bytes())).map_err(|failure| failure.text.into_owned())
    }

    #[test]
    fn options_are_taken_where_they_have_a_meaning() {
        let plain = Reserve::with_capacity(1_000);
        assert_eq!(parsed("1000"), Ok(plain));
        assert_eq!(parsed("1000 MAXITERATIONS 20 expansion 4"), Ok(plain));
        assert_eq!(parsed("1000 BUCKETSIZE 3"), Ok(plain));
        assert_eq!(parsed("1000 bucketsize 8"), Ok(Reserve { bucket_size: Some(8), ..plain }));
        assert_eq!(parsed("1000 EXPANSION 0"), Ok(Reserve { growth: Growth::Fixed, ..plain }));
        for (line, wanted) in [
            ("x", "Bad capacity"),
            ("-1", "Capacity must be at least"),
            ("3", "Capacity must be at least"),
            ("15 BUCKETSIZE 8", "Capacity must be at least"),
            ("1000 BUCKETSIZE x", "Couldn't parse BUCKETSIZE"),
            ("1000 BUCKETSIZE 0", "BUCKETSIZE: value must be"),
            ("1000 MAXITERATIONS 0", "MAXITERATIONS: value must be"),
            ("1000 EXPANSION -1", "EXPANSION: value must be"),
            ("1000 ERROR 1", "Unknown argument"),
        ] {
            let failure = parsed(line).unwrap_err();
            assert!(failure.starts_with(wanted), "{line}: {failure}");
        }
    }

    #[test]
    fn every_bucket_size_keeps_the_error_rate() {
        for (bucket_size, growth) in
            [2, 4, 8].into_iter().flat_map(|size| [(size, Growth::Auto), (size, Growth::Fixed)])
        {
            for capacity in [16, 1_000, 1_000_000] {
                let reserve = Reserve { capacity, bucket_size: Some(bucket_size), growth };
                let Ok(Spec { sizing: Sizing::Layout { fingerprint_bits, max_search, .. }, .. }) =
                    reserve.spec(Kind::Campaign)
                else {
                    panic!("{reserve:?}")
                };
                let layout =
                    Layout::compact_with(capacity, fingerprint_bits, bucket_size, max_search, growth)
                        .unwrap();
                assert!(layout.error_rate_at(1.0) <= ERROR_RATE, "{reserve:?} {layout:?}");
                assert!(fingerprint_bits <= 16, "{reserve:?} {layout:?}");
            }
        }
    }
}
