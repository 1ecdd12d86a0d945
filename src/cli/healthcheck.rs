//! `cuckood healthcheck`: is the service ready? For containers, whose image has no other client.

use super::client::{self, ClientError, Connection};
use super::serve;
use crate::config::ConfigError;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;
use ureq::Agent;
use ureq::tls::TlsConfig;

/// Ask the service of this configuration, or another one, whether it is ready; the exit status tells.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The configuration file that the service goes by; the environment counts, too. It tells where to ask, and whether by TLS.
    /// What is shown there as a certificate is not verified: it bears other names than this machine's own addresses.
    #[arg(long, value_name = "FILE", env = "CUCKOOD_CONFIG")]
    pub config: Option<PathBuf>,
    /// Where another service is; then the configuration does not matter.
    #[arg(long, value_name = "URL", env = "CUCKOOD_URL")]
    pub url: Option<String>,
    /// PEM file of the certificates to trust instead of the system's, or of those that SSL_CERT_FILE names; with --url.
    #[arg(long, value_name = "FILE", env = "CUCKOOD_CACERT")]
    pub cacert: Option<PathBuf>,
}

/// Why it is not known to be ready.
#[derive(Debug, Error)]
pub enum HealthError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// It is not ready, or not there.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// Asks `/readyz`.
///
/// # Errors
/// When it is not ready, or not there.
pub fn run(args: &Args) -> Result<(), HealthError> {
    let (connection, agent) = service(args)?;
    let path = "/readyz";
    let request = agent.get(connection.address(path));
    let answer = request.config().timeout_global(Some(Duration::from_secs(3))).build().call();
    Ok(connection.accept(path, answer).map(drop)?)
}

fn service(args: &Args) -> Result<(Connection, Agent), HealthError> {
    if let Some(url) = &args.url {
        let connection = Connection { url: url.clone(), key: None, cacert: args.cacert.clone() };
        let agent = connection.agent()?;
        return Ok((connection, agent));
    }
    let config = serve::configuration(args.config.as_deref())?;
    let scheme = if config.tls() { "https" } else { "http" };
    let url = format!("{scheme}://{}", own(config.server.listen));
    // It is this machine that is asked, nothing secret is told, and a readiness that anybody could claim.
    let tls = TlsConfig::builder().disable_verification(true).build();
    Ok((Connection { url, key: None, cacert: None }, client::agent(tls)))
}

/// Where a service that listens here can be reached from this machine.
fn own(listen: SocketAddr) -> SocketAddr {
    let address = match listen.ip() {
        IpAddr::V4(address) if address.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(address) if address.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        address => address,
    };
    SocketAddr::new(address, listen.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_asked_where_it_listens() {
        for (listen, wanted) in [
            ("0.0.0.0:8080", "127.0.0.1:8080"),
            ("[::]:8443", "[::1]:8443"),
            ("127.0.0.1:1", "127.0.0.1:1"),
            ("192.0.2.7:80", "192.0.2.7:80"),
        ] {
            assert_eq!(own(listen.parse().unwrap()).to_string(), wanted);
        }
    }
}
