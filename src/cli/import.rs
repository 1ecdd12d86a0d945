//! `cuckood import`: a file, or standard input, into a campaign or coupon.

use super::client::{ClientError, Connection};
use super::source::Source;
use super::upload::Upload;
use serde::Deserialize;
use std::io::{self, Write};
use std::path::PathBuf;
use thiserror::Error;

/// Import a file into a campaign or coupon and print the result.
///
/// A broken connection is taken up again by itself, unless it was standard input that was sent. The exit status is 0 only if the
/// import is done, or checked, and no more lines were rejected than --max-rejected says.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// `campaigns/NAME` or `coupons/NAME`.
    pub into: String,
    /// A text file with an item a line, NDJSON (.ndjson, .jsonl) or CSV (.csv); also compressed (.gz, .zst). `-` is standard input.
    pub file: PathBuf,
    /// What the file is, whatever its name says.
    #[arg(long)]
    pub format: Option<Format>,
    /// Put the file's items in the place of those that are there.
    #[arg(long)]
    pub replace: bool,
    /// The import's id: the same one again continues an import that broke off. Made up unless given.
    #[arg(long)]
    pub id: Option<String>,
    /// CSV: the column that has the items. Only a header of one column may leave it out.
    #[arg(long)]
    pub column: Option<String>,
    /// Fail if the file brings fewer items; 1 with --replace unless said otherwise.
    #[arg(long, value_name = "ITEMS")]
    pub min_items: Option<u64>,
    /// With --replace: fail if there would be so much less than there is, as 0.2 for a fifth.
    #[arg(long, value_name = "SHARE", requires = "replace")]
    pub max_shrink: Option<f64>,
    /// Stop when more lines are rejected. Without it, all good lines are imported, and any rejected one ends in exit status 1.
    #[arg(long, value_name = "LINES")]
    pub max_rejected: Option<u64>,
    /// Read, count and compare, and change nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// How often a broken connection is taken up again.
    #[arg(long, value_name = "TIMES", default_value_t = 10)]
    pub retries: u32,
    /// Print the result as JSON, which it is in any case: a script that says so stays right.
    #[arg(long)]
    pub json: bool,
    /// How to reach the service.
    #[command(flatten)]
    pub connection: Connection,
}

/// What an upload is made of.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
pub enum Format {
    /// An item a line.
    Text,
    /// A JSON string or `{"item":…}` a line.
    Ndjson,
    /// A header row and records.
    Csv,
}

/// Why an import ends with exit status 1.
#[derive(Debug, Error)]
pub enum ImportError {
    /// The service said no, or can't be reached.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Lines were rejected.
    #[error("{rejected} lines were rejected, see errors; --max-rejected allows some")]
    Rejected {
        /// How many.
        rejected: u64,
    },
}

/// The part of the answer that the exit status goes by.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Answer {
    rejected: u64,
}

/// Streams the file to the service.
///
/// # Errors
/// [`ImportError`].
pub fn run(args: &Args) -> Result<(), ImportError> {
    let file_error = |source| ClientError::File { path: args.file.display().to_string(), source };
    let source = Source::open(&args.file).map_err(file_error)?;
    let upload = upload(args).map_err(file_error)?;
    upload.ask()?;
    let sent = upload.send(&source);
    source.finish();
    let text = sent?;
    let told = writeln!(io::stdout(), "{text}");
    told.map_err(|source| ClientError::File { path: "standard output".into(), source })?;
    let Answer { rejected } = serde_json::from_str(&text).unwrap_or_default();
    if rejected > args.max_rejected.unwrap_or(0) {
        return Err(ImportError::Rejected { rejected });
    }
    Ok(())
}

fn upload(args: &Args) -> io::Result<Upload<'_>> {
    let name = args.file.to_string_lossy();
    let (name, encoding) = match (name.strip_suffix(".gz"), name.strip_suffix(".zst")) {
        (Some(name), _) => (name, Some("gzip")),
        (_, Some(name)) => (name, Some("zstd")),
        _ => (&*name, None),
    };
    let by_name = match name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("ndjson" | "jsonl") => Format::Ndjson,
        Some("csv") => Format::Csv,
        _ => Format::Text,
    };
    let media_type = match args.format.unwrap_or(by_name) {
        Format::Text => "text/plain",
        Format::Ndjson => "application/x-ndjson",
        Format::Csv => "text/csv",
    };
    let id = match &args.id {
        Some(id) => id.clone(),
        None => made_up_id()?,
    };
    let mode = if args.replace { "replace" } else { "append" };
    let given = [
        ("column", args.column.clone()),
        ("min_items", args.min_items.map(|items| items.to_string())),
        ("max_shrink", args.max_shrink.map(|share| share.to_string())),
        ("max_rejected", args.max_rejected.map(|lines| lines.to_string())),
        ("dry_run", args.dry_run.then(|| "true".to_owned())),
    ];
    let given = given.into_iter().filter_map(|(name, value)| Some((name, value?)));
    Ok(Upload {
        connection: &args.connection,
        path: format!("/v1/{}/imports", args.into),
        id,
        query: [("mode", mode.to_owned())].into_iter().chain(given).collect(),
        headers: [("Content-Type", media_type)]
            .into_iter()
            .chain(encoding.map(|encoding| ("Content-Encoding", encoding)))
            .collect(),
        retries: args.retries,
    })
}

/// An id that nobody else has: by it the upload goes on.
fn made_up_id() -> io::Result<String> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    Ok(hex::encode(random))
}
