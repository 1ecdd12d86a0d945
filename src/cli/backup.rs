//! `cuckood backup`: a consistent archive of a running service, or of the data directory of a stopped one, in a file.

use super::client::ServiceAddress;
use super::{progress, report};
use crate::engine::archive_directory;
use anyhow::{Context, bail};
use cuckood_state::domain::counted;
use serde_json::json;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;
use ureq::BodyReader;

/// Write a backup of a running service, or of a stopped one's data directory, to a file. The file is complete or does not exist.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The file to create. It must not exist yet.
    pub file: PathBuf,
    /// Data directory of a stopped service, instead of a running one. A node among several stores snapshots only: entries after the newest
    /// snapshot are not included.
    #[arg(long, value_name = "DIR")]
    pub from: Option<PathBuf>,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
    /// How to reach the service; the key needs the scope `admin`.
    #[command(flatten)]
    pub connection: ServiceAddress,
}

/// Streams the archive into `FILE.partial`, syncs it and renames it.
///
/// # Errors
/// If the service rejects the request, or the file can't be written; the temporary file is removed.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let name = args.file.display().to_string();
    let start = Instant::now();
    if args.file.exists() {
        bail!("{name} exists; name a new file");
    }
    let service = match &args.from {
        Some(_) => None,
        None => Some(args.connection.client()?.read("/v1/backup")?),
    };
    let bytes = save(service, args.from.as_deref(), &args.file).with_context(|| name.clone())?;
    let json = json!({ "file": name, "bytes": bytes, "seconds": start.elapsed().as_secs_f64() });
    report(
        args.json,
        &json,
        &format!("wrote {name}, {}", counted(bytes, "byte")),
    );
    Ok(())
}

/// Saves the archive of a service, or else of a directory. Returns the number of bytes. Only the owner may read the file, because the
/// archive contains secrets.
fn save(service: Option<BodyReader<'_>>, from: Option<&Path>, path: &Path) -> anyhow::Result<u64> {
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let partial = path.with_added_extension("partial");
    // An earlier attempt may have left it. If it can't be removed, creating it fails.
    let _ = std::fs::remove_file(&partial);
    let name = partial.file_name().unwrap_or_default();
    let mut file = tempfile::Builder::new()
        .prefix(name)
        .rand_bytes(0)
        .tempfile_in(directory)?;
    if let Some(dir) = from {
        archive_directory(dir, &mut file)?;
    }
    if let Some(archive) = service {
        let progress = progress::bytes(None, "of the archive");
        let copied = io::copy(&mut progress.wrap_read(archive), &mut file);
        progress.finish_and_clear();
        copied?;
    }
    let bytes = file.as_file().metadata()?.len();
    file.as_file().sync_all()?;
    file.persist_noclobber(path)?;
    File::open(directory)?.sync_all()?;
    Ok(bytes)
}
