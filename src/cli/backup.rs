//! `cuckood backup`: a consistent archive of a running service, or of the data directory of a stopped one, in a file.

use super::client::Connection;
use super::progress;
use crate::engine::archive_directory;
use anyhow::{Context, bail};
use serde_json::json;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Write a backup of a running service, or of a stopped one's data directory, to a file. The file is complete or does not exist.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The file to create. It must not exist yet.
    pub file: PathBuf,
    /// The data directory of a stopped service to read, instead of a running service. A node among several stores snapshots alone: what its
    /// log has after the newest one is not in it.
    #[arg(long, value_name = "DIR")]
    pub from: Option<PathBuf>,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
    /// How to reach the service; the key needs the scope `admin`.
    #[command(flatten)]
    pub connection: Connection,
}

/// Streams the archive into a temporary file next to `FILE`, syncs it and renames it.
///
/// # Errors
/// If the service rejects the request, or the file can't be written; the temporary file is removed.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let name = args.file.display().to_string();
    if args.file.exists() {
        bail!("{name} exists: name a new file");
    }
    let start = Instant::now();
    let mut response = match args.from {
        Some(_) => None,
        None => Some(args.connection.client()?.get("/v1/backup")?),
    };
    let mut partial = args.file.clone().into_os_string();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let progress = progress::bytes(None, "of the archive");
    let written = create(&partial).and_then(|file| {
        let bytes = match (&args.from, &mut response) {
            (Some(dir), _) => {
                archive_directory(dir, &mut &file).map_err(io::Error::other)?;
                file.metadata()?.len()
            }
            (None, Some(response)) => {
                io::copy(&mut progress.wrap_read(response.body_mut().as_reader()), &mut &file)?
            }
            (None, None) => 0,
        };
        file.sync_all()?;
        std::fs::rename(&partial, &args.file)?;
        let directory = args.file.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(bytes)
    });
    progress.finish_and_clear();
    let bytes = written
        .inspect_err(|_| {
            // The partial file is useless; if it can't be removed, nothing else depends on that.
            let _ = std::fs::remove_file(&partial);
        })
        .with_context(|| name.clone())?;
    let result = match args.json {
        true => json!({ "file": name, "bytes": bytes, "seconds": start.elapsed().as_secs_f64() }).to_string(),
        false => format!("wrote {name}, {bytes} bytes"),
    };
    // The backup exists, whether or not the result is read.
    let _ = writeln!(io::stdout(), "{result}");
    Ok(())
}

/// Creates a file that only its owner may read, because the archive contains secrets. Replaces what an earlier attempt has left.
fn create(path: &Path) -> io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => File::options().write(true).create_new(true).mode(0o600).open(path),
    }
}
