//! `cuckood restore FILE DIR`: creates a data directory from a backup. `cuckood restore SOURCE… --into-cluster`: starts a shared log from a
//! backup, or from the data directory that is furthest ahead.

use super::serve::configuration;
use super::{print_line, progress};
use crate::clock::{Clock, ClockLimits};
use crate::engine::{archive_directory, positions, restore, restore_into_cluster};
use anyhow::{Context, bail};
use cuckood_log::store::StoreOptions;
use cuckood_state::domain::{ClockReading, counted};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Restore a backup into an empty or absent directory, or into an empty log of several nodes.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The backup, and the data directory to create: absent or empty. With `--into-cluster`, the backup only, or the data directories of
    /// stopped nodes, of which the one furthest ahead is used.
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Create the log of the configuration (`journal.kind = "nats"`), whose stream must not exist. Then start the nodes, each with an empty
    /// directory.
    #[arg(long)]
    pub into_cluster: bool,
    /// Configuration file, for `--into-cluster`; without one, only the environment applies.
    #[arg(long, value_name = "FILE", env = "CUCKOOD_CONFIG")]
    pub config: Option<PathBuf>,
    /// Directory for the unpacked backup with `--into-cluster`; defaults to the directory for temporary files. It takes as much space as a
    /// data directory.
    #[arg(long, value_name = "DIR", requires = "into_cluster")]
    pub scratch: Option<PathBuf>,
}

const TEMPORARY: &str = "can't make a directory for temporary files; name another with --scratch";

/// Verifies the complete archive, then restores it, then reports it.
///
/// # Errors
/// The errors of [`restore`] and [`restore_into_cluster`].
pub fn run(args: &Args) -> anyhow::Result<()> {
    let clock = Clock::system(ClockLimits::default()).reading();
    let told = match args.paths.as_slice() {
        _ if args.into_cluster => into_cluster(args, clock)?,
        [file, dir] => {
            let progress = progress::file(file, 2);
            let wrap = |archive| progress.wrap_read(archive);
            let last = restore(file, dir, &StoreOptions::default(), clock, wrap)?;
            progress.finish_and_clear();
            format!(
                "restored {} into {}, up to position {}",
                file.display(),
                dir.display(),
                last.0
            )
        }
        paths => bail!(
            "{} given, expected a backup and a directory, or --into-cluster with a backup or data directories",
            counted(paths.len() as u64, "path")
        ),
    };
    print_line(&told);
    Ok(())
}

fn into_cluster(args: &Args, clock: ClockReading) -> anyhow::Result<String> {
    let config = configuration(args.config.as_deref())?;
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix("cuckood-restore-");
    let folder = |scratch: &Path| builder.tempdir_in(scratch);
    let folder = args
        .scratch
        .as_deref()
        .map_or_else(|| builder.tempdir(), folder);
    let folder = folder.context(TEMPORARY)?;
    let positions = positions(&args.paths)?;
    let source = positions.last().map_or(&args.paths[0], |(dir, _)| dir);
    let archive = folder.path().join("archive");
    let file = if source.is_dir() { &archive } else { source };
    if source.is_dir() {
        archive_directory(source, &mut File::create(&archive).context(TEMPORARY)?)?;
    }
    let scratch = folder.path().join("unpacked");
    let last = restore_into_cluster(file, &scratch, &config.engine_options().journal, clock)?;
    let positions = positions
        .iter()
        .map(|(dir, at)| format!("{}: up to position {}\n", dir.display(), at.0));
    let mut told = positions.collect::<String>();
    let source = source.display();
    if !told.is_empty() {
        told.push_str(&format!("{source} is furthest ahead\n"));
    }
    Ok(format!(
        "{told}the log starts from {source}, after position {}; later writes are missing: start the nodes with empty directories",
        last.0
    ))
}
