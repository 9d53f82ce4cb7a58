//! TLS with the peers: which servers are trusted, and this server's own certificate.
//!
//! CouchDB trusts every certificate unless it is configured to verify. Here certificates are verified unless that is
//! switched off. The files are read once, when a server starts, so that the administrator learns of a file that cannot
//! be used at that time.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

/// The most certificates between a server's own and a trusted one that can be checked.
pub const MAX_CERTIFICATE_DEPTH: usize = 6;
/// Largest file of certificates, in bytes. The system's own file has 200 kB.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// The TLS settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// `verify_ssl_certificates`: whether certificates are verified. CouchDB: no.
    pub verify: bool,
    /// `ssl_trusted_certificates_file`: the trusted authorities. `None`: those that the system trusts.
    pub trusted_certificates_file: Option<PathBuf>,
    /// `ssl_certificate_max_depth`: the most certificates between the server's own and a trusted one.
    pub max_depth: usize,
    /// `cert_file`: this server's certificate, for servers that request one.
    pub cert_file: Option<PathBuf>,
    /// `key_file`: its key.
    pub key_file: Option<PathBuf>,
}

impl Default for Tls {
    fn default() -> Self {
        Self { verify: true, trusted_certificates_file: None, max_depth: 3, cert_file: None, key_file: None }
    }
}

impl Tls {
    /// The configuration of `rustls`. The error names the wrong setting and the reason.
    pub(crate) fn config(&self) -> Result<ClientConfig, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let algorithms = provider.signature_verification_algorithms;
        let verifier = Arc::new(Verifier { trust: self.trust(&provider)?, algorithms });
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|cause| format!("TLS cannot be set up: {cause}"))?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        match (&self.cert_file, &self.key_file) {
            (None, None) => Ok(builder.with_no_client_auth()),
            (Some(_), None) => Err("[replicator] cert_file needs key_file, the certificate's key".to_owned()),
            (None, Some(_)) => Err("[replicator] key_file needs cert_file, the key's certificate".to_owned()),
            (Some(cert_file), Some(key_file)) => {
                let chain = certificates("cert_file", cert_file)?;
                let key = key(key_file)?;
                builder.with_client_auth_cert(chain, key).map_err(|cause| {
                    let (cert, key) = (cert_file.display(), key_file.display());
                    format!(
                        "[replicator] cert_file {cert} and key_file {key} cannot be used together: {cause}"
                    )
                })
            }
        }
    }

    fn trust(&self, provider: &Arc<CryptoProvider>) -> Result<Trust, String> {
        if !self.verify {
            tracing::warn!(
                "[replicator] verify_ssl_certificates = false: the certificates of https peers are not verified"
            );
            return Ok(Trust::Everyone);
        }
        let mut roots = RootCertStore::empty();
        if let Some(file) = &self.trusted_certificates_file {
            for certificate in certificates("ssl_trusted_certificates_file", file)? {
                roots.add(certificate).map_err(|cause| {
                    let file = file.display();
                    format!("[replicator] ssl_trusted_certificates_file {file}: a certificate of it cannot be used: {cause}")
                })?;
            }
        } else {
            let system = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(system.certs);
        }
        if roots.is_empty() {
            tracing::warn!(
                "no https peer is trusted: the system has no certificates; set [replicator] \
                 ssl_trusted_certificates_file to a file with some"
            );
            return Ok(Trust::Nobody);
        }
        let roots = Arc::new(roots);
        let any_depth = WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(provider))
            .build()
            .map_err(|cause| format!("TLS cannot be set up: {cause}"))?;
        Ok(Trust::Roots { any_depth, roots, max_depth: self.max_depth })
    }
}

/// The key of `key_file`. Its file is for the server's user only, which protects it as well as a password in the configuration would.
fn key(file: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let wrong = |problem: &str| format!("[replicator] key_file {}: {problem}", file.display());
    let pem = read("key_file", file)?;
    if String::from_utf8_lossy(&pem).contains("ENCRYPTED") {
        return Err(wrong(
            "the key is encrypted; `openssl pkey -in FILE -out NEW` writes it without a password, and `chmod 600 NEW` protects it",
        ));
    }
    PrivateKeyDer::from_pem_slice(&pem).map_err(|_| wrong("there is no private key in it (PEM)"))
}

fn read(setting: &str, file: &Path) -> Result<Vec<u8>, String> {
    let wrong = |problem: String| format!("[replicator] {setting} {}: {problem}", file.display());
    let bytes = fs::metadata(file).map_err(|cause| wrong(cause.to_string()))?.len();
    if bytes > MAX_FILE_BYTES {
        return Err(wrong(format!("it has {bytes} bytes; at most {MAX_FILE_BYTES} are read")));
    }
    fs::read(file).map_err(|cause| wrong(cause.to_string()))
}

/// The certificates of a file; at least one.
fn certificates(setting: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let wrong = |problem: &str| format!("[replicator] {setting} {}: {problem}", file.display());
    let pem = read(setting, file)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let found = found.map_err(|_| wrong("it is no file of certificates (PEM)"))?;
    if found.is_empty() { Err(wrong("there is no certificate in it (PEM)")) } else { Ok(found) }
}

/// Which servers' certificates are trusted.
#[derive(Debug)]
enum Trust {
    Everyone,
    Nobody,
    /// Servers whose certificate leads to one of the roots in few enough steps.
    Roots {
        any_depth: Arc<WebPkiServerVerifier>,
        roots: Arc<RootCertStore>,
        max_depth: usize,
    },
}

/// The check of a server's certificate and its signatures, for `rustls`.
#[derive(Debug)]
struct Verifier {
    trust: Trust,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    /// Whether one of the paths to a root is short enough. Call it only for a certificate that has been verified.
    fn is_short_enough(
        &self,
        (roots, max_depth): (&RootCertStore, usize),
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> bool {
        // Every certificate on a path comes from the server.
        if between.len() <= max_depth {
            return true;
        }
        let Ok(certificate) = webpki::EndEntityCert::try_from(certificate) else { return false };
        let short = |path: &webpki::VerifiedPath<'_>| match path.intermediate_certificates().count() {
            steps if steps <= max_depth => Ok(()),
            _ => Err(webpki::Error::UnknownIssuer),
        };
        let usage = webpki::KeyUsage::server_auth();
        certificate
            .verify_for_usage(self.algorithms.all, &roots.roots, between, now, usage, None, Some(&short))
            .is_ok()
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let (any_depth, roots, max_depth) = match &self.trust {
            Trust::Everyone => return Ok(ServerCertVerified::assertion()),
            Trust::Nobody => return Err(CertificateError::UnknownIssuer.into()),
            Trust::Roots { any_depth, roots, max_depth } => (any_depth, roots, *max_depth),
        };
        let verified = any_depth.verify_server_cert(certificate, between, name, ocsp, now)?;
        if self.is_short_enough((roots, max_depth), certificate, between, now) {
            return Ok(verified);
        }
        let problem =
            format!("it is further than ssl_certificate_max_depth = {max_depth} from a trusted one");
        let problem: Arc<dyn std::error::Error + Send + Sync> = Arc::from(Box::from(problem));
        Err(CertificateError::Other(rustls::OtherError(problem)).into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
