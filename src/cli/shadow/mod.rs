//! `cuckood shadow`: mirrors the changes of a key in Redis into a campaign or coupon, or compares the two, so that a team can move from
//! Redis without a stop (docs/MOVING_FROM_REDIS.md).

mod changes;
mod commands;
mod compare;
mod feed;
mod mirror;
pub mod redis;

use super::client::ServiceAddress;
use super::note;
use anyhow::{Context, bail, ensure};
use changes::{Interest, KeyType, MIRRORED};
use cuckood_state::domain::counted;
use feed::Sender;
use mirror::{Mirror, MirrorTarget};
use redis::Redis;
use serde::Serialize;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::mpsc;

/// Mirror the changes of a key in Redis into a campaign or coupon, or compare the two.
///
/// Reads the output of MONITOR, until Ctrl-C or SIGTERM, or a file of commands, and mirrors CF.ADD, CF.ADDNX, CF.INSERT, CF.INSERTNX,
/// CF.DEL, SADD, SREM, DEL and UNLINK. After a lost connection, it reconnects to Redis and reports the gap. Ends with a summary as
/// JSON; the exit status is 1 if the two may differ: a change was missed, could not be mirrored, or had another effect here.
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
    /// The database of the key, with --commands. Default: that of --redis, otherwise 0.
    #[arg(long, value_name = "NUMBER", requires = "commands")]
    pub database: Option<i64>,
    /// The key in Redis: a cuckoo filter or a set.
    #[arg(long, value_name = "K")]
    pub key: String,
    /// `campaigns/NAME` or `coupons/NAME`, which must exist.
    #[arg(long, value_name = "FILTER")]
    pub into: String,
    /// Mirror the commands of a file instead: the output of `redis-cli monitor`, a command per line, or a Redis append-only file. `-`
    /// is standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "compare")]
    pub commands: Option<PathBuf>,
    /// Change nothing: look up every item of a file in both, one item per line, and count disagreements. `-` is standard input.
    #[arg(long, value_name = "FILE", requires = "redis")]
    pub compare: Option<PathBuf>,
    /// With --compare: maximum number of disagreements for exit status 0.
    #[arg(long, value_name = "ITEMS", default_value_t = 0, requires = "compare")]
    pub max_disagreements: u64,
    /// Print the result as JSON. It always is; the option exists for scripts that state it.
    #[arg(long)]
    pub json: bool,
    /// Address of the service.
    #[arg(
        long,
        value_name = "URL",
        env = "CUCKOOD_URL",
        default_value = "http://127.0.0.1:8080"
    )]
    pub url: String,
    /// API key, if the service requires one; its scopes must include `read` and, to mirror, `write`.
    #[arg(long, value_name = "KEY", env = "CUCKOOD_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// PEM file of certificates to trust instead of the system's or SSL_CERT_FILE, for Redis and for the service.
    #[arg(long, value_name = "FILE", env = "CUCKOOD_CACERT")]
    pub cacert: Option<PathBuf>,
}

/// Mirrors, or compares.
///
/// # Errors
/// If changes may be missing, or the two disagree.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let connection = ServiceAddress {
        url: args.url.clone(),
        key: args.api_key.clone(),
        cacert: args.cacert.clone(),
    };
    let redis = args
        .redis
        .as_deref()
        .map(|url| redis::client(url, args.cacert.as_deref()))
        .transpose()?;
    let target = MirrorTarget::find(&connection, &args.into)?;
    let of_redis = redis
        .as_ref()
        .map(|redis| redis.get_connection_info().redis_settings().db());
    let database = args.database.or(of_redis);
    let interest = Interest {
        key: args.key.clone().into_bytes(),
        database,
        key_type: KeyType::Unknown,
    };
    match (&args.compare, &args.commands, redis) {
        (Some(file), _, Some(redis)) => {
            let redis = &mut Redis::connect(&redis)?;
            let (different, comparison) = compare::run(redis, &args.key, &target, file)?;
            print(&comparison)?;
            let is_allowed = different <= args.max_disagreements;
            let found = counted(different, "disagreement");
            let key = &args.key;
            let into = &args.into;
            let max = args.max_disagreements;
            ensure!(
                is_allowed,
                "{key} and {into}: {found}, more than --max-disagreements {max} allows; see disagreements"
            );
            Ok(())
        }
        (_, Some(file), _) => mirror(&target, |to| feed::file(file, interest, to), None),
        (_, _, Some(client)) => {
            let rejections = Rejections::start(&client)?;
            mirror(
                &target,
                |to| feed::monitor(client.clone(), interest, to),
                rejections.as_ref(),
            )
        }
        _ => bail!(
            "there is no source of changes; name Redis with --redis, or a file with --commands"
        ),
    }
}

/// The commands for filters or sets that Redis rejects during a run. MONITOR reports them like any others.
struct Rejections<'a> {
    client: &'a ::redis::Client,
    /// Their number before the run.
    before: u64,
}

impl<'a> Rejections<'a> {
    /// Starts counting; `None` if Redis does not report them.
    ///
    /// # Errors
    /// If Redis can't be reached.
    fn start(client: &'a ::redis::Client) -> anyhow::Result<Option<Self>> {
        let before = known(Redis::connect(client)?.rejected_commands(&MIRRORED));
        Ok(before.map(|before| Self { client, before }))
    }

    /// Returns their number so far; `None` if it is unknown, as after a restart of Redis, which counts from 0.
    fn count(&self) -> Option<u64> {
        let now =
            Redis::connect(self.client).and_then(|mut redis| redis.rejected_commands(&MIRRORED));
        known(now)?.checked_sub(self.before)
    }
}

/// Returns a number of rejected commands; `None`, and a note, if it is unknown.
fn known(rejected: anyhow::Result<u64>) -> Option<u64> {
    match rejected {
        Ok(count) => Some(count),
        Err(error) => {
            note(&format!(
                "{error}; the number of rejected commands is unknown"
            ));
            None
        }
    }
}

/// Mirrors the events of a feed, until it ends.
fn mirror(
    target: &MirrorTarget,
    feed: impl FnOnce(Sender) -> anyhow::Result<()>,
    rejections: Option<&Rejections<'_>>,
) -> anyhow::Result<()> {
    let (to, events) = mpsc::sync_channel(feed::QUEUE_MAX);
    let mut mirror = Mirror::new(target, feed::on_signals(to.clone())?);
    feed(to)?;
    let ended = mirror.follow(&events);
    let summary = mirror.summary(rejections.and_then(Rejections::count));
    print(&summary)?;
    ended?;
    if !summary.faults().is_empty() {
        bail!(
            "the two may differ, see {}: compare them with --compare",
            summary.faults().join(", ")
        );
    }
    Ok(())
}

fn print(result: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string(result)?;
    writeln!(io::stdout(), "{text}").context("standard output")
}
