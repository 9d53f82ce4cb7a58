//! A test's own certificate authority, with certificates for members on loopback and for one client.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use serde_json::{Value, json};

/// The certificate and key files, all in PEM.
#[derive(Debug)]
pub(super) struct Certificates {
    folder: PathBuf,
}

impl Certificates {
    /// Generates and writes the files.
    pub(super) fn write(folder: &Path) -> Self {
        let certificates = Certificates { folder: folder.to_owned() };
        let key = || KeyPair::generate().expect("there is randomness");
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority = CertifiedIssuer::self_signed(authority, key()).expect("the parameters are fine");
        certificates.put("ca.pem", &authority.pem());

        // Members are also their own clients: etcd's JSON gateway is one.
        let both = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        for (name, usages) in [("member", both), ("client", vec![ExtendedKeyUsagePurpose::ClientAuth])] {
            let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
            let mut params = CertificateParams::new(names).expect("the names are fine");
            // etcd would treat the common name as a user's name.
            params.distinguished_name = rcgen::DistinguishedName::new();
            params.extended_key_usages = usages;
            let key = key();
            let certificate = params.signed_by(&key, &authority).expect("the parameters are fine");
            certificates.put(&format!("{name}.pem"), &certificate.pem());
            certificates.put(&format!("{name}.key"), &key.serialize_pem());
        }
        certificates
    }

    fn put(&self, name: &str, text: &str) {
        std::fs::write(self.folder.join(name), text).expect("the temporary folder can be written");
    }

    fn get(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.folder.join(name)).expect("it was written")
    }

    /// The TLS part of a member's configuration.
    pub(super) fn server(&self) -> Value {
        json!({
            "trusted-ca-file": self.folder.join("ca.pem"),
            "cert-file": self.folder.join("member.pem"),
            "key-file": self.folder.join("member.key"),
            "client-cert-auth": true,
        })
    }

    /// The options `ca=…`, `cert=…` and `key=…` of a store's URL.
    pub(super) fn url_options(&self) -> Vec<String> {
        let option = |name: &str, file: &str| format!("{name}={}", self.folder.join(file).display());
        vec![option("ca", "ca.pem"), option("cert", "client.pem"), option("key", "client.key")]
    }

    /// A client that trusts the members, and presents the client's certificate.
    pub(super) fn trusted_by(&self, builder: reqwest::ClientBuilder) -> reqwest::ClientBuilder {
        let authority = reqwest::Certificate::from_pem(&self.get("ca.pem")).expect("it was written");
        let identity = [self.get("client.pem"), self.get("client.key")].concat();
        let identity = reqwest::Identity::from_pem(&identity).expect("it was written");
        builder.tls_certs_only([authority]).identity(identity)
    }
}
