//! `cuckood plan`: what a filter of some size would be like, and why.

use crate::domain::{Sizing, Spec};
use crate::engine::{self, Growth, LayoutError, Mode};
use std::io::{self, Write};
use thiserror::Error;

/// Show the layout that a capacity and an error rate lead to.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Items.
    #[arg(long)]
    pub capacity: u64,
    /// Share of strangers for whom the answer may be "yes"; compact filters only.
    #[arg(long, default_value_t = 0.001)]
    pub error_rate: f64,
    /// A strict filter: 62 bits of digest, no error to speak of.
    #[arg(long)]
    pub strict: bool,
    /// A filter that does not grow.
    #[arg(long)]
    pub fixed: bool,
}

/// Why there is no plan.
#[derive(Debug, Error)]
pub enum PlanError {
    /// No layout fits.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The terminal is gone.
    #[error(transparent)]
    Output(#[from] io::Error),
}

/// Prints the plan.
///
/// # Errors
/// [`PlanError`].
pub fn run(args: &Args) -> Result<(), PlanError> {
    let spec = Spec {
        capacity: args.capacity,
        mode: if args.strict { Mode::Strict } else { Mode::Compact },
        growth: if args.fixed { Growth::Fixed } else { Growth::Auto },
        sizing: if args.strict { Sizing::Exact } else { Sizing::ErrorRate(args.error_rate) },
        ignore_case: false,
    };
    let plan = engine::plan(&spec)?;
    let mut out = io::stdout();
    writeln!(out, "fingerprint bits        {}", plan.layout.fingerprint_bits)?;
    writeln!(out, "bucket size             {}", plan.layout.bucket_size)?;
    writeln!(out, "buckets                 {}", plan.layout.buckets)?;
    writeln!(out, "memory                  {} bytes", plan.memory_bytes)?;
    writeln!(out, "bits an item            {:.2}", plan.bits_per_item)?;
    writeln!(out, "load at capacity        {:.3}", plan.load_at_capacity)?;
    writeln!(out, "error rate at capacity  {:.3e}", plan.error_rate_at_capacity)?;
    writeln!(out, "why                     {}", plan.reason)?;
    Ok(())
}
