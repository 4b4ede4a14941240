//! Certificates for servers and clients of one test.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};

/// A CA, and the certificates that it signs.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Authority {
    /// Makes a CA.
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate").pem();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    /// Returns the certificate of the CA as PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    fn sign(&self, mut params: CertificateParams, name: &str) -> (String, String) {
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }

    /// Returns the certificate of a server and its key, both as PEM.
    pub fn server(&self, host: &str) -> (String, String) {
        let mut params = CertificateParams::new(vec![host.to_owned()]).expect("parameters");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(params, host)
    }

    /// Returns the certificate of a server that expired at the start of 2020.
    pub fn expired_server(&self, host: &str) -> (String, String) {
        let mut params = CertificateParams::new(vec![host.to_owned()]).expect("parameters");
        params.not_before = date_time_ymd(2019, 1, 1);
        params.not_after = date_time_ymd(2020, 1, 1);
        self.sign(params, host)
    }

    /// Returns the certificate of a client and its key, both as PEM.
    pub fn client(&self, user: &str) -> (String, String) {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params, user)
    }

    /// Returns a self-signed certificate of a server that is marked as a CA, and its key, both as PEM.
    pub fn self_signed(host: &str) -> (String, String) {
        let mut params = CertificateParams::new(vec![host.to_owned()]).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }
}
