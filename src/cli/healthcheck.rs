//! `cuckood healthcheck`: asks whether the service is ready. For containers, whose image has no other HTTP client.

use super::client::{Client, ServiceAddress};
use super::serve;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use ureq::tls::TlsConfig;

/// Check whether a service is ready. The exit status is 0 if it is.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Configuration file of the service, for its address and TLS; the environment also applies. The certificate is not verified, because
    /// it is not issued for this machine's addresses.
    #[arg(long, value_name = "FILE", env = "CUCKOOD_CONFIG")]
    pub config: Option<PathBuf>,
    /// URL of another service; the configuration is ignored then.
    #[arg(long, value_name = "URL", env = "CUCKOOD_URL")]
    pub url: Option<String>,
    /// PEM file of certificates to trust instead of the system's or SSL_CERT_FILE; with --url.
    #[arg(long, value_name = "FILE", env = "CUCKOOD_CACERT")]
    pub cacert: Option<PathBuf>,
}

/// Requests `/readyz`.
///
/// # Errors
/// If the service is not ready, or can't be reached.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let client = match &args.url {
        Some(url) => ServiceAddress {
            url: url.clone(),
            key: None,
            cacert: args.cacert.clone(),
        }
        .client()?,
        None => {
            let config = serve::configuration(args.config.as_deref())?;
            let scheme = if config.tls() { "https" } else { "http" };
            // Other clients can't take the connections of the listener for probes.
            let listen = config.server.probe_listen.unwrap_or(config.server.listen);
            let url = format!("{scheme}://{}", reachable_address(listen));
            // The request stays on this machine and carries no secret, and any local program could fake readiness.
            Client::with_tls(
                &url,
                TlsConfig::builder().disable_verification(true).build(),
            )
        }
    };
    client.get("/readyz", Some(Duration::from_secs(3)))?;
    Ok(())
}

/// Returns the address at which this machine can reach a service that listens on `listen`.
fn reachable_address(listen: SocketAddr) -> SocketAddr {
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
    fn healthcheck_uses_configured_address() {
        for (listen, wanted) in [
            ("0.0.0.0:8080", "127.0.0.1:8080"),
            ("[::]:8443", "[::1]:8443"),
            ("127.0.0.1:1", "127.0.0.1:1"),
            ("192.0.2.7:80", "192.0.2.7:80"),
        ] {
            assert_eq!(
                reachable_address(listen.parse().unwrap()).to_string(),
                wanted
            );
        }
    }
}
