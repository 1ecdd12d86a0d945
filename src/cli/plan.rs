//! `cuckood plan`: shows the layout of a filter, the reasons for it, and its costs; or the costs of a whole service.

use super::unreadable;
use super::workload::{self, Workload, WorkloadPlan};
use crate::engine::{self, Plan};
use anyhow::{Context, anyhow};
use bytesize::ByteSize;
use cuckood_filter::{Growth, Mode};
use cuckood_state::domain::spec::{FORGET_STEPS_DEFAULT, parse_time};
use cuckood_state::domain::{Forget, Normalization, Sizing, Spec};
use serde::Serialize;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

/// Show the layout for a capacity and an error rate, and its costs; or the costs of a whole service.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Number of items. A suffix of k, M or G means thousands, millions or billions.
    #[arg(long, value_parser = items, required_unless_present = "workload", default_value_t = 0)]
    pub capacity: u64,
    /// Plan a whole service instead: a TOML file with its filters and its load. docs/SCALE.md has an example.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["capacity", "strict", "fixed", "forget_after"])]
    pub workload: Option<PathBuf>,
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
    if let Some(path) = &args.workload {
        let text = fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
        let workload: Workload = toml::from_str(&text).map_err(|fault| {
            let line = fault
                .span()
                .map_or(0, |span| text[..span.start].matches('\n').count())
                + 1;
            anyhow!(
                "{}, line {line}: {}; docs/SCALE.md has an example",
                path.display(),
                fault.message()
            )
        })?;
        let plan = workload::plan(&workload)?;
        return print(&plan, args.json, workload_text);
    }
    let forget = args
        .forget_after
        .map(|seconds| Forget::new(seconds, args.forget_steps))
        .transpose();
    let forget = forget.context("forgetting")?;
    let spec = Spec {
        capacity: args.capacity,
        mode: if args.strict {
            Mode::Strict
        } else {
            Mode::Compact
        },
        growth: if args.fixed {
            Growth::Fixed
        } else {
            Growth::Auto
        },
        sizing: if args.strict {
            Sizing::Exact
        } else {
            Sizing::ErrorRate(args.error_rate)
        },
        normalization: Normalization::Exact,
        supply: Default::default(),
        forget,
    };
    print(&engine::plan(&spec)?, args.json, filter_text)
}

fn print<P: Serialize>(plan: &P, json: bool, text: fn(&P) -> String) -> anyhow::Result<()> {
    let text = if json {
        format!("{}\n", serde_json::to_value(plan)?)
    } else {
        text(plan)
    };
    Ok(io::stdout().write_all(text.as_bytes())?)
}

fn workload_text(plan: &WorkloadPlan) -> String {
    let every = |seconds: f64| format!("{seconds:.0} seconds");
    rows([
        ("campaigns and coupons", plan.filters.to_string()),
        ("tables", bytes(plan.tables_bytes)),
        ("redemptions", bytes(plan.redemptions_bytes)),
        ("memory, at most", bytes(plan.peak_bytes)),
        ("disk, at most", bytes(plan.disk_bytes)),
        (
            "startup, at most about",
            format!("{:.1} seconds", plan.startup_seconds),
        ),
        (
            "log and events",
            format!("{}/s", ByteSize(plan.log_bytes_per_second)),
        ),
        (
            "a snapshot every",
            plan.snapshot_every_seconds
                .map_or("never: no writes".into(), every),
        ),
        (
            "snapshots, at most",
            format!("{}/s", ByteSize(plan.snapshot_bytes_per_second)),
        ),
    ])
}

fn filter_text(plan: &Plan) -> String {
    rows([
        ("fingerprint", format!("{} bits", plan.fingerprint_bits)),
        ("bucket", format!("{} slots", plan.bucket_size)),
        ("table", format!("{} buckets", plan.buckets)),
        ("memory", bytes(plan.memory_bytes)),
        ("per item", format!("{:.2} bits", plan.bits_per_item)),
        (
            "load at capacity",
            format!("{:.1}% of the slots", 100.0 * plan.load_at_capacity),
        ),
        ("capacity, at most", format!("{} items", plan.capacity_max)),
        (
            "error rate at capacity",
            format!("{:.2e} of the absent items", plan.error_rate_at_capacity),
        ),
        ("disk, about", bytes(plan.disk_bytes)),
        ("memory while replaced", bytes(plan.replacement_peak_bytes)),
        (
            "startup, at most about",
            format!("{:.1} seconds", plan.startup_seconds),
        ),
        ("why", plan.reason.clone()),
    ])
}

fn rows<const N: usize>(rows: [(&str, String); N]) -> String {
    rows.map(|(name, value)| format!("{name:<24}{value}\n"))
        .concat()
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
    let fits =
        !whole.is_empty() && is_number(whole) && is_number(fraction) && fraction.len() <= zeros;
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
        for text in [
            "",
            "M",
            "1.5",
            "0.0001k",
            "-1",
            "1e6",
            "ten",
            "1MM",
            "1.2.3M",
            "99999999999G",
            ".5M",
        ] {
            assert!(items(text).is_err(), "{text}");
        }
    }

    #[test]
    fn workload_plan_sums_filters_and_redemptions() {
        let plan = |text: &str| workload::plan(&toml::from_str(text).unwrap()).unwrap();
        let one = plan("filters = [{ capacity = 1_000_000, error_rate = 0.01 }]");
        let many = plan(
            "redemptions_per_second = 100\nredemptions_retention_seconds = 60\n\
             filters = [{ count = 10, capacity = 1_000_000, error_rate = 0.01 }, { capacity = 1_000 }]",
        );
        assert_eq!((one.filters, many.filters), (1, 11));
        assert!(many.tables_bytes > 10 * one.tables_bytes);
        assert_eq!(
            (one.redemptions_bytes, many.redemptions_bytes),
            (0, 6_000 * 132)
        );
        assert!(many.peak_bytes > many.tables_bytes + many.redemptions_bytes + one.tables_bytes);
        assert_eq!(
            (one.log_bytes_per_second, one.snapshot_bytes_per_second),
            (0, 0)
        );
        assert!(many.log_bytes_per_second > 0 && many.snapshot_every_seconds > Some(0.0));
        assert!(many.startup_seconds > one.startup_seconds && many.disk_bytes > one.disk_bytes);
        // Without writes no snapshot is due.
        let text = workload_text(&one);
        assert!(
            text.contains("a snapshot every        never: no writes"),
            "{text}"
        );
        assert!(!text.contains("inf") && !text.contains("NaN"), "{text}");
        let error = toml::from_str::<Workload>("log_max_bytes = 0\nfilters = []").unwrap_err();
        assert!(
            error.to_string().contains("expected a nonzero u64"),
            "{error}"
        );
    }
}
