//! `cuckood move`: the image of a campaign or coupon from one service to another, as it comes.

use super::client::{ClientError, Connection};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;
use serde_json::json;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use ureq::SendBody;
use ureq::http::Response;

/// The longest description of a filter that is read, in bytes.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// The shortest and the longest pause before another attempt; each is twice the one before.
const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(8);

/// What is shown while it runs. How long an image is turns out at its end.
const PROGRESS: &str = "{spinner} {bytes} of about {total_bytes} {bytes_per_sec} {msg}";

/// Make a campaign or coupon on another service from its image, or on the same under another name.
///
/// It is made whole, as it was at one moment, or not at all. The original stays: stop writing to it before, and delete it afterwards.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// `campaigns/NAME` or `coupons/NAME`.
    pub what: String,
    /// Address of the service that has it.
    #[arg(long, value_name = "URL")]
    pub from: String,
    /// Address of the service that is to get it.
    #[arg(long, value_name = "URL")]
    pub to: String,
    /// Its name there. The same by default.
    #[arg(long, value_name = "NAME")]
    pub rename: Option<String>,
    /// API key with the scope `admin`, if the services require one.
    #[arg(long, value_name = "KEY", env = "CUCKOOD_KEY", hide_env_values = true)]
    pub key: Option<String>,
    /// API key of the service that is to get it, if it is another one.
    #[arg(long, value_name = "KEY", env = "CUCKOOD_TO_KEY", hide_env_values = true)]
    pub to_key: Option<String>,
    /// PEM file of certificates to trust instead of the system's, or of those that SSL_CERT_FILE names.
    #[arg(long, value_name = "FILE", env = "CUCKOOD_CACERT")]
    pub cacert: Option<PathBuf>,
    /// The same for the service that is to get it, if it is another one.
    #[arg(long, value_name = "FILE", env = "CUCKOOD_TO_CACERT")]
    pub to_cacert: Option<PathBuf>,
    /// How often to begin anew after a connection broke.
    #[arg(long, value_name = "TIMES", default_value_t = 3)]
    pub retries: u32,
    /// Print what was done as JSON.
    #[arg(long)]
    pub json: bool,
}

/// What is read of a filter's description.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Described {
    stats: DescribedStats,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct DescribedStats {
    memory_bytes: u64,
}

/// A filter on a service.
struct Place {
    connection: Connection,
    /// `/v1/campaigns/NAME`, or the same for a coupon.
    path: String,
}

/// Streams the image from the one service to the other.
///
/// # Errors
/// [`ClientError`]. Then nothing was made, unless it says that this is unknown.
pub fn run(args: &Args) -> Result<(), ClientError> {
    let (from, to) = places(args);
    if to.is_there()? {
        let detail = format!("{} has {} already", to.connection.url, to.path);
        return Err(ClientError::Refused { status: 409, code: "already-exists".into(), detail });
    }
    let progress = ProgressBar::new(from.describe()?.stats.memory_bytes);
    if let Ok(style) = ProgressStyle::with_template(PROGRESS) {
        progress.set_style(style);
    }
    let (began, mut pause, mut retries) = (Instant::now(), PAUSE_MIN, args.retries);
    let moved = loop {
        let broken = match attempt(&from, &to, &progress) {
            // The answer to an earlier attempt was lost.
            Err(ClientError::Refused { code, .. }) if retries < args.retries && code == "already-exists" => {
                break Ok(());
            }
            Err(error) if retries > 0 && may_go_on(&error) => error,
            ended => break ended,
        };
        retries -= 1;
        progress.set_message(format!("{broken}; beginning anew in {pause:?}"));
        progress.tick();
        std::thread::sleep(pause);
        pause = (2 * pause).min(PAUSE_MAX);
    };
    progress.finish_and_clear();
    moved?;
    let (bytes, seconds) = (progress.position(), began.elapsed().as_secs_f64());
    let place = to.connection.address(&to.path);
    let told = match args.json {
        true => json!({ "made": place, "bytes": bytes, "seconds": seconds }).to_string(),
        false => format!("made {place} from {bytes} bytes; the original is still there"),
    };
    // It is made, whether or not anybody reads this.
    let _ = writeln!(io::stdout(), "{told}");
    Ok(())
}

fn places(args: &Args) -> (Place, Place) {
    let connection = |url: &str, key: Option<String>, cacert: Option<PathBuf>| {
        let url = url.to_owned();
        Connection { url, key, cacert }
    };
    let to_key = args.to_key.clone().or_else(|| args.key.clone());
    let to_cacert = args.to_cacert.clone().or_else(|| args.cacert.clone());
    let kind = args.what.split_once('/').map_or(args.what.as_str(), |(kind, _)| kind);
    let there = args.rename.as_ref().map_or_else(|| args.what.clone(), |name| format!("{kind}/{name}"));
    let from = Place {
        connection: connection(&args.from, args.key.clone(), args.cacert.clone()),
        path: format!("/v1/{}", args.what),
    };
    let to = Place { connection: connection(&args.to, to_key, to_cacert), path: format!("/v1/{there}") };
    (from, to)
}

fn attempt(from: &Place, to: &Place, progress: &ProgressBar) -> Result<(), ClientError> {
    let image = from.get(&format!("{}/image", from.path))?;
    progress.set_position(0);
    progress.set_message("");
    let body = progress.wrap_read(image.into_body().into_reader());
    let path = format!("{}/image", to.path);
    let mut request = to.connection.agent()?.put(to.connection.address(&path));
    request = request.header("Content-Type", "application/octet-stream");
    if to.connection.key.is_some() {
        request = request.header("Authorization", to.connection.authorization());
    }
    to.connection.accept(&path, request.send(SendBody::from_owned_reader(body))).map(drop)
}

/// Whether it may succeed if it is begun anew.
fn may_go_on(error: &ClientError) -> bool {
    match error {
        ClientError::Transport { .. } => true,
        // An image that was cut short on the way is damaged, too.
        ClientError::Refused { code, .. } if code == "image-damaged" => true,
        ClientError::Refused { status, .. } => matches!(status, 408 | 429 | 502 | 503 | 504),
        _ => false,
    }
}

impl Place {
    fn get(&self, path: &str) -> Result<Response<ureq::Body>, ClientError> {
        let mut request = self.connection.agent()?.get(self.connection.address(path));
        if self.connection.key.is_some() {
            request = request.header("Authorization", self.connection.authorization());
        }
        self.connection.accept(path, request.call())
    }

    fn describe(&self) -> Result<Described, ClientError> {
        let mut answer = self.get(&self.path)?;
        let text = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
        let url = self.connection.address(&self.path);
        let text = text.map_err(|source| ClientError::Transport { url, source: Box::new(source) })?;
        Ok(serde_json::from_str(&text).unwrap_or_default())
    }

    fn is_there(&self) -> Result<bool, ClientError> {
        match self.get(&self.path) {
            Ok(_) => Ok(true),
            Err(ClientError::Refused { status: 404, code, .. }) if code != "route-not-found" => Ok(false),
            Err(error) => Err(error),
        }
    }
}
