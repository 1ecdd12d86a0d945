//! TLS by rustls, its certificate read again on SIGHUP.

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::signal::unix::{SignalKind, signal};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Why a certificate can't be used.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file can't be read, or isn't PEM.
    #[error("{path}: {source}")]
    Pem {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: rustls::pki_types::pem::Error,
    },
    /// Certificate and key don't fit, or aren't what they should be.
    #[error("server.tls_cert and server.tls_key: {0}")]
    Rustls(#[from] rustls::Error),
    /// SIGHUP can't be listened for.
    #[error("SIGHUP: {0}")]
    Signal(std::io::Error),
}

/// Accepts TLS connections with the newest certificate that could be read.
pub struct Tls {
    config: Arc<ArcSwap<ServerConfig>>,
}

impl Tls {
    /// Reads certificate and key, and from now on again whenever SIGHUP comes.
    ///
    /// # Errors
    /// [`TlsError`]; a later reading that fails is told in the log and changes nothing.
    pub fn load(cert: &Path, key: &Path) -> Result<Tls, TlsError> {
        // Heard from before the first reading, so that none after it is missed.
        let mut hangups = signal(SignalKind::hangup()).map_err(TlsError::Signal)?;
        let config = Arc::new(ArcSwap::from(read(cert, key)?));
        let (shared, cert, key) = (config.clone(), cert.to_path_buf(), key.to_path_buf());
        tokio::spawn(async move {
            while hangups.recv().await.is_some() {
                match read(&cert, &key) {
                    Ok(config) => {
                        shared.store(config);
                        tracing::info!("the certificate was read again");
                    }
                    Err(error) => tracing::error!(%error, "the certificate stays as it was"),
                }
            }
        });
        Ok(Tls { config })
    }

    /// The handshake of a new connection; none if it fails, which is the client's affair.
    pub async fn accept<S>(&self, stream: S) -> Option<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        match TlsAcceptor::from(self.config.load_full()).accept(stream).await {
            Ok(stream) => Some(stream),
            Err(error) => {
                tracing::debug!(%error, "a TLS handshake failed");
                None
            }
        }
    }
}

fn read(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let pem = |path: &Path| {
        let path = path.to_path_buf();
        move |source| TlsError::Pem { path, source }
    };
    let chain = CertificateDer::pem_file_iter(cert).map_err(pem(cert))?;
    let chain = chain.collect::<Result<Vec<_>, _>>().map_err(pem(cert))?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(pem(key))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    Ok(Arc::new(config))
}
