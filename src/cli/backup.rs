//! `cuckood backup`: a consistent archive of a running service, or of the data directory of a stopped one, in a file.

use super::client::{ClientError, Connection};
use crate::engine::archive_directory;
use indicatif::ProgressBar;
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
    /// Print what was written as JSON.
    #[arg(long)]
    pub json: bool,
    /// How to reach the service; the key needs the scope `admin`.
    #[command(flatten)]
    pub connection: Connection,
}

/// Streams the archive into a temporary file beside `FILE`, syncs it and renames it.
///
/// # Errors
/// [`ClientError`]; the temporary file is removed.
pub fn run(args: &Args) -> Result<(), ClientError> {
    let file_error = |path: &Path| {
        let path = path.display().to_string();
        move |source| ClientError::File { path, source }
    };
    if args.file.exists() {
        let there = io::Error::from(io::ErrorKind::AlreadyExists);
        return Err(file_error(&args.file)(there));
    }
    let began = Instant::now();
    let mut answer = if args.from.is_none() { Some(request(args)?) } else { None };
    let mut partial = args.file.clone().into_os_string();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let progress = ProgressBar::no_length();
    let written = create(&partial).and_then(|file| {
        let bytes = match (&args.from, &mut answer) {
            (Some(dir), _) => {
                archive_directory(dir, &mut &file).map_err(io::Error::other)?;
                file.metadata()?.len()
            }
            (None, Some(answer)) => {
                let mut body = progress.wrap_read(answer.body_mut().as_reader());
                io::copy(&mut body, &mut &file)?
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
    let bytes = written.map_err(|error| {
        // The partial file is useless; if it can't be removed, nothing else depends on that.
        let _ = std::fs::remove_file(&partial);
        file_error(&args.file)(error)
    })?;
    let (file, seconds) = (args.file.display().to_string(), began.elapsed().as_secs_f64());
    let told = match args.json {
        true => json!({ "file": file, "bytes": bytes, "seconds": seconds }).to_string(),
        false => format!("wrote {file}, {bytes} bytes"),
    };
    // The backup exists, whether or not anybody reads this.
    let _ = writeln!(io::stdout(), "{told}");
    Ok(())
}

fn request(args: &Args) -> Result<http::Response<ureq::Body>, ClientError> {
    let path = "/v1/backup";
    let mut request = args.connection.agent()?.get(args.connection.address(path));
    if args.connection.key.is_some() {
        request = request.header("Authorization", args.connection.authorization());
    }
    args.connection.accept(path, request.call())
}

/// Creates a file that only its owner may read, because the archive contains secrets. Replaces what an earlier attempt has left.
fn create(path: &Path) -> io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => File::options().write(true).create_new(true).mode(0o600).open(path),
    }
}
