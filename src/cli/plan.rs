//! `cuckood plan`: shows the layout of a filter, the reasons for it, and its costs.

use crate::domain::spec::{FORGET_STEPS_DEFAULT, parse_time};
use crate::domain::{Forget, Sizing, Spec};
use crate::engine::{self, Growth, Mode, Plan};
use anyhow::Context;
use bytesize::ByteSize;
use std::io::{self, Write};

/// Show the layout for a capacity and an error rate, and its costs.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Number of items. A suffix of k, M or G means thousands, millions or billions.
    #[arg(long, value_parser = items)]
    pub capacity: u64,
    /// Accepted false-positive rate: the share of "yes" among items that were never added. Compact filters only.
    #[arg(long, default_value_t = 0.001)]
    pub error_rate: f64,
    /// Plan a strict filter: 62 bits of digest per item, and practically no false positives.
    #[arg(long, conflicts_with = "forget_after")]
    pub strict: bool,
    /// Plan a filter that does not grow.
    #[arg(long)]
    pub fixed: bool,
    /// Plan a campaign that forgets each user after this time, such as 7d.
    #[arg(long, value_parser = parse_time)]
    pub forget_after: Option<u64>,
    /// Number of steps in which it forgets.
    #[arg(long, default_value_t = FORGET_STEPS_DEFAULT, requires = "forget_after")]
    pub forget_steps: u32,
    /// Print the plan as JSON, in the form of `GET /v1/plan`.
    #[arg(long)]
    pub json: bool,
}

/// Prints the plan.
///
/// # Errors
/// If no layout fits.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let forget = args.forget_after.map(|seconds| Forget::new(seconds, args.forget_steps)).transpose();
    let forget = forget.context("forgetting")?;
    let spec = Spec {
        capacity: args.capacity,
        mode: if args.strict { Mode::Strict } else { Mode::Compact },
        growth: if args.fixed { Growth::Fixed } else { Growth::Auto },
        sizing: if args.strict { Sizing::Exact } else { Sizing::ErrorRate(args.error_rate) },
        ignore_case: false,
        stock: None,
        forget,
    };
    let plan = engine::plan(&spec)?;
    let text = if args.json { format!("{}\n", serde_json::to_value(&plan)?) } else { describe(&plan) };
    Ok(io::stdout().write_all(text.as_bytes())?)
}

fn describe(plan: &Plan) -> String {
    let rows = [
        ("fingerprint", format!("{} bits", plan.fingerprint_bits)),
        ("bucket", format!("{} slots", plan.bucket_size)),
        ("table", format!("{} buckets", plan.buckets)),
        ("memory", bytes(plan.memory_bytes)),
        ("per item", format!("{:.2} bits", plan.bits_per_item)),
        ("load at capacity", format!("{:.1}% of the slots", 100.0 * plan.load_at_capacity)),
        ("error rate at capacity", format!("{:.2e} of the absent items", plan.error_rate_at_capacity)),
        ("disk, about", bytes(plan.disk_bytes)),
        ("memory while replaced", bytes(plan.replacement_peak_bytes)),
        ("startup, at most about", format!("{:.1} seconds", plan.startup_seconds)),
        ("why", plan.reason.clone()),
    ];
    rows.map(|(name, value)| format!("{name:<24}{value}\n")).concat()
}

/// Formats a size: with a unit for people, and in bytes.
fn bytes(bytes: u64) -> String {
    format!("{} ({bytes} bytes)", ByteSize(bytes))
}

/// Parses a number of items such as `250000`, `250k` or `2.5M`.
fn items(text: &str) -> Result<u64, String> {
    let (number, zeros) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 3),
        Some((at, 'M')) => (&text[..at], 6),
        Some((at, 'G' | 'B')) => (&text[..at], 9),
        _ => (text, 0),
    };
    let number = number.replace('_', "");
    let (whole, fraction) = number.split_once('.').unwrap_or((&number, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let fits = !whole.is_empty() && is_number(whole) && is_number(fraction) && fraction.len() <= zeros;
    let digits = fits.then(|| format!("{whole}{fraction:0<zeros$}"));
    let items = digits.and_then(|digits| digits.parse().ok());
    items.ok_or_else(|| "expected a number of items, such as 250000, 250k or 2.5M".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn item_counts_accept_suffixes() {
        for (text, wanted) in [
            ("1", 1),
            ("250000", 250_000),
            ("1_000_000", 1_000_000),
            ("10M", 10_000_000),
            ("2.5M", 2_500_000),
            ("250k", 250_000),
            ("1.25K", 1_250),
            ("1G", 1_000_000_000),
        ] {
            assert_eq!(items(text), Ok(wanted), "{text}");
        }
        for text in ["", "M", "1.5", "0.0001k", "-1", "1e6", "ten", "1MM", "1.2.3M", "99999999999G", ".5M"] {
            assert!(items(text).is_err(), "{text}");
        }
    }
}
