//! TLS of the listener: the certificate, its key, and the authority of client certificates, from files.
//!
//! The files are read again every few seconds, and on SIGHUP. Connections that are open keep the certificate that they have,
//! and new ones get the new one. Files that cannot be used are reported once, and the last usable ones stay in use.
//!
//! A client may prove who it is by a certificate of `client_ca`: it is the user with one of the certificate's DNS names.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use turnwise_config::TlsFiles;
use turnwise_config::small_file::{check_secret, read};

/// The time between two reads of the files.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// The most DNS names of a client certificate that are compared with users.
const MAX_NAMES: usize = 20;

/// TLS for new connections. Cheap to clone.
#[derive(Clone)]
pub struct Tls(Arc<Inner>);

struct Inner {
    files: TlsFiles,
    current: RwLock<Arc<ServerConfig>>,
    /// The content of the files that were read last, usable or not.
    seen: Mutex<Content>,
}

/// The content of the files.
#[derive(Clone, PartialEq, Eq)]
struct Content {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl Content {
    fn read(files: &TlsFiles) -> Result<Content, String> {
        let Some((certificate, key)) = files.pair()? else {
            return Err("[listener] has no certificate".to_owned());
        };
        check_secret(key)?;
        Ok(Content {
            certificate: read(certificate)?,
            key: read(key)?,
            client_ca: files.client_ca.as_deref().map(read).transpose()?,
        })
    }
}

impl Tls {
    /// TLS with these files; `None` if there are none.
    ///
    /// # Errors
    /// A file is missing or cannot be used, in one line.
    pub fn new(files: TlsFiles) -> Result<Option<Tls>, String> {
        if files.pair()?.is_none() {
            return Ok(None);
        }
        let seen = Content::read(&files)?;
        let current = RwLock::new(Arc::new(config(&files, &seen)?));
        Ok(Some(Tls(Arc::new(Inner { files, current, seen: Mutex::new(seen) }))))
    }

    /// For a new connection.
    pub fn acceptor(&self) -> TlsAcceptor {
        self.0.current.read().unwrap_or_else(PoisonError::into_inner).clone().into()
    }

    /// Uses the files as they are now, if they have changed.
    pub fn reload(&self) {
        let Inner { files, current, seen } = &*self.0;
        let content = match Content::read(files) {
            Ok(content) => content,
            // A file is being replaced: the next look finds it.
            Err(problem) => return tracing::warn!("the certificate stays as it was: {problem}"),
        };
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        if *seen == content {
            return;
        }
        match config(files, &content) {
            Ok(config) => {
                *current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
                tracing::info!("the certificate was replaced");
            }
            Err(problem) => tracing::error!("the certificate stays as it was: {problem}"),
        }
        *seen = content;
    }

    /// Looks at the files until `stop` is cancelled.
    #[boxed]
    pub async fn follow(self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LOOK_AGAIN) => {}
            }
            let tls = self.clone();
            // Files may be on a slow disk.
            let _ = tokio::task::spawn_blocking(move || tls.reload()).await;
        }
    }
}

fn config(files: &TlsFiles, content: &Content) -> Result<ServerConfig, String> {
    let wrong = |file: &Option<PathBuf>, problem: &str| {
        format!("{}: {problem}", file.as_deref().unwrap_or(Path::new("")).display())
    };
    let chain = certificates(&content.certificate);
    let chain = chain.ok_or_else(|| wrong(&files.certificate, "there is no certificate in it (PEM)"))?;
    let key = PrivateKeyDer::from_pem_slice(&content.key)
        .map_err(|_| wrong(&files.key, "there is no private key in it (PEM, not encrypted)"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(|error| error.to_string())?;
    let builder = match &content.client_ca {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let unusable = |problem: &str| wrong(&files.client_ca, problem);
            let mut roots = RootCertStore::empty();
            let found = certificates(ca).ok_or_else(|| unusable("there is no certificate in it (PEM)"))?;
            for certificate in found {
                roots.add(certificate).map_err(|error| unusable(&error.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .allow_unauthenticated()
                .build();
            builder.with_client_cert_verifier(verifier.map_err(|error| unusable(&error.to_string()))?)
        }
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|error| wrong(&files.certificate, &format!("cannot be used with its key: {error}")))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().ok()?;
    (!found.is_empty()).then_some(found)
}

/// The DNS names of a client certificate.
pub fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    match webpki::EndEntityCert::try_from(certificate) {
        Ok(certificate) => certificate.valid_dns_names().take(MAX_NAMES).map(str::to_owned).collect(),
        Err(_) => Vec::new(),
    }
}
