//! `cuckood key new`: a key for a caller, and the entry for the configuration.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use std::io::{self, Write};

/// Random bytes of a key.
const KEY_BYTES: usize = 32;

/// Make API keys.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub action: Action,
}

/// What to do about keys.
#[derive(clap::Subcommand, Debug)]
pub enum Action {
    /// Print a new key and its entry for `auth.keys`. The key is not kept anywhere.
    New {
        /// What the key is called in the service's messages.
        #[arg(long, default_value = "new")]
        name: String,
        /// What it may do: read, write, redeem, admin.
        #[arg(long, value_delimiter = ',', default_value = "read", value_parser = ["read", "write", "redeem", "admin"])]
        scopes: Vec<String>,
        /// Campaigns and coupons that it may touch: those whose names begin so.
        #[arg(long, default_value = "")]
        prefix: String,
        /// From when on it is refused, such as 2027-01-31T00:00:00Z.
        #[arg(long, value_name = "TIME")]
        expires_at: Option<jiff::Timestamp>,
    },
}

/// Prints a new key and its entry.
///
/// # Errors
/// When the terminal is gone.
pub fn run(args: &Args) -> io::Result<()> {
    let Action::New { name, scopes, prefix, expires_at } = &args.action;
    let mut random = [0; KEY_BYTES];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let key = format!("ck_{}", URL_SAFE_NO_PAD.encode(random));
    let digest = hex::encode(Sha256::digest(&key));
    let mut entry = toml::Table::new();
    entry.insert("name".into(), name.clone().into());
    entry.insert("sha256".into(), digest.into());
    entry.insert("scopes".into(), scopes.clone().into());
    if !prefix.is_empty() {
        entry.insert("prefix".into(), prefix.clone().into());
    }
    if let Some(time) = expires_at {
        entry.insert("expires_at".into(), time.to_string().into());
    }
    let mut out = io::stdout();
    writeln!(out, "key:   {key}")?;
    writeln!(out, "entry: {}", toml::Value::Table(entry))
}
