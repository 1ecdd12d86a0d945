//! `cuckood shadow`: mirrors the changes of a key in Redis into a campaign or coupon, or compares the two, so that a team can move from
//! Redis without a stop (docs/REDIS.md).

mod address;
mod changes;
mod compare;
mod error;
mod feed;
mod line;
mod link;
mod mirror;
mod stop;
mod summary;
mod target;
mod told;
mod value;

pub use error::ShadowError;

use super::client::{ClientError, Connection};
use address::Address;
use changes::Interest;
use link::Dialer;
use mirror::Mirror;
use serde::Serialize;
use std::io::{self, Write};
use std::path::PathBuf;
use stop::Stop;
use target::Target;
use told::Sender;

/// Mirror the changes of a key in Redis into a campaign or coupon, or compare the two.
///
/// Reads what MONITOR tells, until Ctrl-C or SIGTERM, or a file of commands, and mirrors CF.ADD, CF.ADDNX, CF.INSERT, CF.INSERTNX,
/// CF.DEL, SADD, SREM, DEL and UNLINK. Where the connection to Redis breaks it is made again, and the gap is told. Ends with a summary
/// as JSON; the exit status is 0 only if nothing is known to be missing.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Redis: `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]`, `rediss://` for TLS.
    #[arg(
        long,
        value_name = "URL",
        env = "CUCKOOD_REDIS",
        hide_env_values = true,
        required_unless_present = "commands"
    )]
    pub redis: Option<String>,
    /// The key in Redis: a cuckoo filter or a set.
    #[arg(long, value_name = "K")]
    pub key: String,
    /// `campaigns/NAME` or `coupons/NAME`, which must exist.
    #[arg(long, value_name = "FILTER")]
    pub into: String,
    /// Mirror the commands of a file instead: what `redis-cli monitor` has printed, a command a line, or a Redis append-only file. `-`
    /// is standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "compare")]
    pub commands: Option<PathBuf>,
    /// Change nothing: ask both about every item of a file, one item a line, and count disagreements. `-` is standard input.
    #[arg(long, value_name = "FILE", requires = "redis")]
    pub compare: Option<PathBuf>,
    /// With --compare: how many disagreements still make the exit status 0.
    #[arg(long, value_name = "ITEMS", default_value_t = 0, requires = "compare")]
    pub max_disagreements: u64,
    /// Print the result as JSON. It always is; the option exists for scripts that state it.
    #[arg(long)]
    pub json: bool,
    /// Address of the service.
    #[arg(long, value_name = "URL", env = "CUCKOOD_URL", default_value = "http://127.0.0.1:8080")]
    pub url: String,
    /// API key, if the service requires one; its scopes must include `read` and, to mirror, `write`.
    #[arg(long, value_name = "KEY", env = "CUCKOOD_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// PEM file of certificates to trust instead of the system's, or of those that SSL_CERT_FILE names: Redis' and the service's.
    #[arg(long, value_name = "FILE", env = "CUCKOOD_CACERT")]
    pub cacert: Option<PathBuf>,
}

/// Mirrors, or compares.
///
/// # Errors
/// [`ShadowError`].
pub fn run(args: &Args) -> Result<(), ShadowError> {
    let connection =
        Connection { url: args.url.clone(), key: args.api_key.clone(), cacert: args.cacert.clone() };
    let dialer = args.redis.as_deref().map(|url| dialer(url, &connection)).transpose()?;
    let target = Target::find(&connection, &args.into)?;
    let database = dialer.as_ref().map(|dialer| dialer.address.database);
    let interest = Interest { key: args.key.clone().into_bytes(), database };
    match (&args.compare, &args.commands, dialer) {
        (Some(file), _, Some(dialer)) => {
            let comparison = compare::run(&mut dialer.open()?, &args.key, &target, file)?;
            tell(&comparison)?;
            match comparison.disagreements() {
                few if few <= args.max_disagreements => Ok(()),
                many => Err(ShadowError::Disagree(many)),
            }
        }
        (_, Some(file), _) => mirror(&target, |to, _| feed::file(file, interest, to)),
        (_, _, Some(dialer)) => mirror(&target, |to, stop| feed::monitor(dialer, interest, to, stop)),
        _ => Err(ShadowError::Unfit("name Redis with --redis, or a file with --commands".into())),
    }
}

fn dialer(url: &str, connection: &Connection) -> Result<Dialer, ShadowError> {
    let address: Address = url.parse()?;
    let tls = if address.tls { Some(connection.tls()?) } else { None };
    Ok(Dialer { address, tls })
}

/// Mirrors what a feed tells, until it ends.
fn mirror(
    target: &Target<'_>,
    feed: impl FnOnce(Sender, Stop) -> Result<(), ShadowError>,
) -> Result<(), ShadowError> {
    let of_this_machine = |error: io::Error| ShadowError::Unfit(error.to_string());
    let (to, told) = told::channel();
    let stop = Stop::on_signals(to.clone()).map_err(of_this_machine)?;
    let mut mirror = Mirror::new(target, stop.clone()).map_err(of_this_machine)?;
    feed(to, stop)?;
    let ended = mirror.follow(&told);
    let summary = mirror.summary();
    tell(&summary)?;
    ended?;
    if summary.is_complete() { Ok(()) } else { Err(ShadowError::Incomplete) }
}

fn tell(result: &impl Serialize) -> Result<(), ClientError> {
    let told = serde_json::to_string(result).map_err(Into::into);
    let told = told.and_then(|text| writeln!(io::stdout(), "{text}"));
    told.map_err(|source| ClientError::File { path: "standard output".into(), source })
}
