//! Certificates that a test creates.

use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tempfile::TempDir;

/// A root authority, and a chain of authorities below it, of which the last one issues certificates.
pub struct Authority {
    chain: Vec<CertifiedIssuer<'static, KeyPair>>,
    folder: TempDir,
}

fn key() -> KeyPair {
    KeyPair::generate().unwrap()
}

impl Authority {
    /// A root with this many authorities between it and the certificates.
    pub fn new(between: usize) -> Self {
        let params = |n: usize| {
            let mut params = CertificateParams::default();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
            params.distinguished_name.push(rcgen::DnType::CommonName, format!("authority {n}"));
            params
        };
        let mut chain = vec![CertifiedIssuer::self_signed(params(0), key()).unwrap()];
        for n in 1..=between {
            let next = CertifiedIssuer::signed_by(params(n), key(), chain.last().unwrap()).unwrap();
            chain.push(next);
        }
        let authority = Self { chain, folder: TempDir::new().unwrap() };
        authority.put("ca.pem", &authority.chain[0].pem());
        authority
    }

    /// Writes a file beside the others.
    pub fn put(&self, name: &str, text: &str) -> PathBuf {
        let path = self.file(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// The path of `ca.pem`, or of a file from [`put`](Self::put).
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A certificate for `name`, with those between it and the root, and its key.
    pub fn certify(&self, name: &str) -> (Vec<CertificateDer<'static>>, KeyPair) {
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let key = key();
        let own = params.signed_by(&key, self.chain.last().unwrap()).unwrap();
        let mut certificates = vec![own.der().clone()];
        certificates.extend(self.chain.iter().skip(1).rev().map(|issuer| issuer.der().clone()));
        (certificates, key)
    }

    /// Writes `client.pem`, and returns its key, which is not written.
    pub fn client(&self) -> KeyPair {
        let params = CertificateParams::new(vec!["client".to_owned()]).unwrap();
        let key = key();
        let own = params.signed_by(&key, self.chain.last().unwrap()).unwrap();
        self.put("client.pem", &own.pem());
        key
    }

    /// The configuration of a server with a certificate for `name`. If `demands_certificate`, it requires one of each client.
    pub fn server(&self, name: &str, demands_certificate: bool) -> Arc<ServerConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = if demands_certificate {
            let mut roots = RootCertStore::empty();
            roots.add(self.chain[0].der().clone()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        } else {
            builder.with_no_client_auth()
        };
        let (certificates, key) = self.certify(name);
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        Arc::new(builder.with_single_cert(certificates, key).unwrap())
    }
}
