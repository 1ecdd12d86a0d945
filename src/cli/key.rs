//! `cuckood key new`: creates a key, and its entry for the configuration.

use crate::access::{self, InvalidKey, KeyOptions};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cuckood_log::journal::random;
use sha2::{Digest, Sha256};
use std::io::{self, Write};

/// Random bytes of a key.
const KEY_BYTES: usize = 32;

/// Create API keys.
#[derive(clap::Subcommand, Debug)]
pub enum Args {
    /// Print a new key and its entry for `auth.keys`. The key is not stored anywhere.
    New {
        /// Name of the key in the service's messages.
        #[arg(long, value_parser = valid_name)]
        name: String,
        /// Scopes of the key: read, write, redeem, admin.
        #[arg(long, value_delimiter = ',', default_value = "read", value_parser = ["read", "write", "redeem", "admin"])]
        scopes: Vec<String>,
        /// Prefix of the names of all campaigns and coupons that the key may use.
        #[arg(long, default_value = "", value_parser = valid_prefix)]
        prefix: String,
        /// Time from which the key is rejected, such as 2027-01-31T00:00:00Z.
        #[arg(long, value_name = "TIME")]
        expires_at: Option<jiff::Timestamp>,
    },
}

/// Takes the names of keys that the service takes.
fn valid_name(name: &str) -> Result<String, InvalidKey> {
    let key = KeyOptions {
        name: name.to_owned(),
        sha256: "0".repeat(64),
        ..KeyOptions::default()
    };
    access::digest(&key)?;
    Ok(name.to_owned())
}

/// Accepts the same prefixes as the service.
fn valid_prefix(prefix: &str) -> Result<String, InvalidKey> {
    let name = "the key".to_owned();
    let sha256 = "0".repeat(64);
    let prefix = prefix.to_owned();
    access::digest(&KeyOptions {
        name,
        sha256,
        prefix: prefix.clone(),
        ..KeyOptions::default()
    })?;
    Ok(prefix)
}

/// Prints a new key and its entry.
///
/// # Errors
/// If standard output can't be written to.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let Args::New {
        name,
        scopes,
        prefix,
        expires_at,
    } = args;
    let key = format!("ck_{}", URL_SAFE_NO_PAD.encode(random::<KEY_BYTES>()));
    let digest = hex::encode(Sha256::digest(&key));
    let entry: [(&str, Option<toml::Value>); 5] = [
        ("name", Some(name.clone().into())),
        ("sha256", Some(digest.into())),
        ("scopes", Some(scopes.clone().into())),
        (
            "prefix",
            Some(prefix.clone())
                .filter(|prefix| !prefix.is_empty())
                .map(Into::into),
        ),
        (
            "expires_at",
            expires_at.map(|time| format!("{time:.3}").into()),
        ),
    ];
    let entry: toml::Table = entry
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect();
    let mut out = io::stdout();
    writeln!(out, "key:   {key}")?;
    Ok(writeln!(out, "entry: {}", toml::Value::Table(entry))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser, Debug)]
    struct Program {
        #[command(subcommand)]
        args: Args,
    }

    #[test]
    fn invalid_key_name_is_rejected() {
        let parsed = |name: &str| Program::try_parse_from(["key", "new", "--name", name]);
        assert!(parsed("shop").is_ok());
        for bad in ["", &"x".repeat(129)] {
            assert!(parsed(bad).is_err(), "{bad:?}");
        }
        let prefixed = |prefix: &str| {
            Program::try_parse_from(["key", "new", "--name", "n", "--prefix", prefix])
        };
        assert!(prefixed("shop-").is_ok() && prefixed("Shop/").is_err());
    }
}
