//! `cuckood move`: streams the image of a campaign or coupon from one service to another.

use super::client::{Client, ClientError, ServiceAddress, pauses};
use super::{kind_of, progress, report};
use anyhow::bail;
use cuckood_state::domain::counted;
use indicatif::ProgressBar;
use serde_json::json;
use std::path::PathBuf;
use std::time::Instant;
use ureq::SendBody;
use ureq::http::Method;

/// Create a campaign or coupon on another service from its image, or on the same under another name.
///
/// The copy is complete, as of one position, or does not exist. The original remains: stop its writes before, and delete it afterwards.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// `campaigns/NAME` or `coupons/NAME`.
    pub what: String,
    /// Address of the source service.
    #[arg(long, value_name = "URL")]
    pub from: String,
    /// Address of the target service.
    #[arg(long, value_name = "URL")]
    pub to: String,
    /// Its name there. The same by default.
    #[arg(long, value_name = "NAME")]
    pub rename: Option<String>,
    /// API key with the scope `admin`, if the services require one.
    #[arg(long, value_name = "KEY", env = "CUCKOOD_KEY", hide_env_values = true)]
    pub key: Option<String>,
    /// API key of the receiving service, if it is another one.
    #[arg(
        long,
        value_name = "KEY",
        env = "CUCKOOD_TO_KEY",
        hide_env_values = true
    )]
    pub to_key: Option<String>,
    /// PEM file of certificates to trust instead of the system's or SSL_CERT_FILE.
    #[arg(long, value_name = "FILE", env = "CUCKOOD_CACERT")]
    pub cacert: Option<PathBuf>,
    /// The same for the receiving service, if it is another one.
    #[arg(long, value_name = "FILE", env = "CUCKOOD_TO_CACERT")]
    pub to_cacert: Option<PathBuf>,
    /// Maximum number of restarts after lost connections.
    #[arg(long, value_name = "TIMES", default_value_t = 3)]
    pub retries: u32,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

/// A filter on a service.
struct FilterAddress {
    client: Client,
    /// `/v1/campaigns/NAME`, or the same for a coupon.
    path: String,
}

impl FilterAddress {
    fn new(
        url: &str,
        what: &str,
        key: Option<&String>,
        cacert: Option<&PathBuf>,
    ) -> anyhow::Result<Self> {
        let connection = ServiceAddress {
            url: url.to_owned(),
            key: key.cloned(),
            cacert: cacert.cloned(),
        };
        Ok(Self {
            client: connection.client()?,
            path: format!("/v1/{what}"),
        })
    }
}

/// Streams the image from one service to the other.
///
/// # Errors
/// If nothing was created, or the outcome is unknown.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let kind = kind_of(&args.what)?;
    let renamed = match &args.rename {
        Some(name) => format!("{}s/{name}", kind.as_str()),
        None => args.what.clone(),
    };
    let from = FilterAddress::new(
        &args.from,
        &args.what,
        args.key.as_ref(),
        args.cacert.as_ref(),
    )?;
    let to_key = args.to_key.as_ref().or(args.key.as_ref());
    let to_cacert = args.to_cacert.as_ref().or(args.cacert.as_ref());
    let to = FilterAddress::new(&args.to, &renamed, to_key, to_cacert)?;
    let created = to.client.url(&to.path);
    match to.client.get(&to.path, None) {
        Ok(_) => bail!("already-exists: {created} exists; choose another name with --rename"),
        Err(error) if error.code == "campaign-not-found" || error.code == "coupon-not-found" => {}
        Err(error) => return Err(error.into()),
    }
    let described = from.client.get(&from.path, None)?;
    let progress = progress::bytes(
        described["stats"]["memory_bytes"].as_u64(),
        "of the image (about)",
    );
    let start = Instant::now();
    let mut pauses = pauses();
    let mut retries = args.retries;
    let moved = loop {
        let broken = match attempt(&from, &to, &progress) {
            // The response to an earlier attempt was lost.
            Err(error) if retries < args.retries && error.code == "already-exists" => break Ok(()),
            // An image truncated in transit is damaged, too.
            Err(error)
                if retries > 0 && (error.is_transient() || error.code == "image-damaged") =>
            {
                error
            }
            ended => break ended,
        };
        retries -= 1;
        let pause = pauses.next().unwrap_or_default();
        progress.println(format!("{broken}; starting again in {pause:?}"));
        std::thread::sleep(pause);
    };
    progress.finish_and_clear();
    moved?;
    let bytes = progress.position();
    let seconds = start.elapsed().as_secs_f64();
    let json = json!({ "made": created, "bytes": bytes, "seconds": seconds });
    let made = format!(
        "created {created} from {}; the original is still there",
        counted(bytes, "byte")
    );
    report(args.json, &json, &made);
    Ok(())
}

fn attempt(
    from: &FilterAddress,
    to: &FilterAddress,
    progress: &ProgressBar,
) -> Result<(), ClientError> {
    let image = from.client.read(&format!("{}/image", from.path))?;
    progress.set_position(0);
    let body = SendBody::from_owned_reader(progress.wrap_read(image));
    let headers = [("Content-Type", "application/octet-stream")];
    to.client
        .call(
            Method::PUT,
            &format!("{}/image", to.path),
            &headers,
            body,
            None,
        )
        .map(drop)
}
