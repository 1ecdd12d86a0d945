//! `cuckood import`: a file into a campaign or coupon.

use super::client::{ClientError, Connection};
use indicatif::{ProgressBar, ProgressStyle};
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use ureq::SendBody;

/// Import a file into a campaign or coupon and print the result.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// `campaigns/NAME` or `coupons/NAME`.
    pub into: String,
    /// A text file with an item a line, NDJSON (.ndjson, .jsonl) or CSV (.csv); also compressed (.gz, .zst).
    pub file: PathBuf,
    /// Put the file's items in the place of those that are there.
    #[arg(long)]
    pub replace: bool,
    /// The import's id: the same one again continues an import that broke off.
    #[arg(long)]
    pub id: Option<String>,
    /// CSV: the column that has the items; else the first.
    #[arg(long)]
    pub column: Option<String>,
    /// Print the result as JSON, which it is in any case: a script that says so stays right.
    #[arg(long)]
    pub json: bool,
    /// How to reach the service.
    #[command(flatten)]
    pub connection: Connection,
}

/// Streams the file to the service.
///
/// # Errors
/// [`ClientError`].
pub fn run(args: &Args) -> Result<(), ClientError> {
    let file_error = |source| ClientError::File { path: args.file.display().to_string(), source };
    let file = File::open(&args.file).map_err(file_error)?;
    let length = file.metadata().map_err(file_error)?.len();
    let name = args.file.to_string_lossy();
    let (name, encoding) = match (name.strip_suffix(".gz"), name.strip_suffix(".zst")) {
        (Some(name), _) => (name, Some("gzip")),
        (_, Some(name)) => (name, Some("zstd")),
        _ => (&*name, None),
    };
    let media_type = match name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("ndjson" | "jsonl") => "application/x-ndjson",
        Some("csv") => "text/csv",
        _ => "text/plain",
    };
    let progress = ProgressBar::new(length);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}") {
        progress.set_style(style);
    }
    let path = format!("/v1/{}/imports", args.into);
    let mut request = args
        .connection
        .agent()?
        .post(args.connection.address(&path))
        .query("mode", if args.replace { "replace" } else { "append" })
        .header("Content-Type", media_type);
    for (name, value) in [("id", &args.id), ("column", &args.column)] {
        if let Some(value) = value {
            request = request.query(name, value);
        }
    }
    if let Some(encoding) = encoding {
        request = request.header("Content-Encoding", encoding);
    }
    if args.connection.key.is_some() {
        request = request.header("Authorization", args.connection.authorization());
    }
    let answer = request.send(SendBody::from_owned_reader(progress.wrap_read(file)));
    let mut answer = args.connection.accept(&path, answer)?;
    progress.finish_and_clear();
    let text = answer.body_mut().read_to_string();
    let text = text.map_err(|source| ClientError::Transport {
        url: args.connection.address(&path),
        source: Box::new(source),
    })?;
    writeln!(io::stdout(), "{text}")
        .map_err(|source| ClientError::File { path: "standard output".into(), source })
}
