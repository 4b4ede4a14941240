//! TLS towards PostgreSQL: rustls under tokio-postgres, with the verification that libpq has.

use std::fmt;
use std::fs;
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, ring::default_provider, verify_tls12_signature,
    verify_tls13_signature,
};
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use tidegate_core::{Error, Result};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect};
use tokio_rustls::TlsConnector;

use super::channel_binding;
use super::settings::{RootCertificates, SslMode, TlsSettings, is_open_to_others};

/// What a direct handshake asks the server for.
const ALPN: &[u8] = b"postgresql";

/// Reads the certificates and the key, and returns how to make connections with them. They are read
/// for each connection, so that files can be replaced while the process runs.
pub(super) fn load_tls_config(settings: &TlsSettings) -> Result<Arc<ClientConfig>> {
    let provider = Arc::new(default_provider());
    let verifier = ServerVerifier::new(settings, &provider)?;
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder =
        builder.map_err(|error| Error::invalid(format!("TLS cannot be used: {error}")))?;
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match &settings.client {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = read_certificates("sslcert", certificate)?;
            let private = read_private_key(key)?;
            builder.with_client_auth_cert(chain, private).map_err(|error| {
                let (certificate, key) = (certificate.display(), key.display());
                Error::invalid(format!("sslcert {certificate} cannot be used with {key}: {error}"))
            })?
        }
    };
    if settings.is_direct {
        config.alpn_protocols = vec![ALPN.to_vec()];
    }
    Ok(Arc::new(config))
}

fn read_certificates(parameter: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let shown = path.display();
    let text = fs::read(path)
        .map_err(|error| Error::invalid(format!("{parameter} {shown} cannot be read: {error}")))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(Error::invalid(format!("{parameter} {shown} has no certificate in PEM form"))),
        Err(error) => Err(Error::invalid(format!(
            "{parameter} {shown} is not in PEM form: {}",
            pem_fault(&error)
        ))),
    }
}

fn read_private_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    let shown = path.display();
    let text = fs::read(path)
        .map_err(|error| Error::invalid(format!("sslkey {shown} cannot be read: {error}")))?;
    if is_open_to_others(path) {
        return Err(Error::invalid(format!(
            "sslkey {shown} is refused: its group or other users have access; run chmod 600"
        )));
    }
    let has = |mark: &[u8]| text.windows(mark.len()).any(|window| window == mark);
    if has(b"BEGIN ENCRYPTED PRIVATE KEY") || has(b"Proc-Type: 4,ENCRYPTED") {
        return Err(Error::invalid(format!(
            "sslkey {shown} is encrypted, which is not supported; decrypt it, for example with \
             `openssl pkey`"
        )));
    }
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| {
        let fault = pem_fault(&error);
        Error::invalid(format!("sslkey {shown} has no key in PEM form: {fault}"))
    })
}

/// Says in words what is wrong with a file in PEM form.
fn pem_fault(error: &pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { .. } => {
            "the file is cut off, a section has no END line; copy the whole file".to_owned()
        }
        // The line is not shown: in a file without line breaks it has the key.
        pem::Error::IllegalSectionStart { .. } => "a BEGIN line is damaged".to_owned(),
        error => error.to_string(),
    }
}

/// Returns the CAs of the operating system, read once: there are more than a hundred.
fn system_roots() -> Result<Arc<RootCertStore>> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let roots = ROOTS.get_or_init(|| {
        let mut roots = RootCertStore::empty();
        let found = rustls_native_certs::load_native_certs();
        for error in &found.errors {
            tracing::warn!("a CA certificate of the operating system cannot be read: {error}");
        }
        roots.add_parsable_certificates(found.certs);
        Arc::new(roots)
    });
    if roots.is_empty() {
        return Err(Error::invalid(
            "sslrootcert=system: the operating system has no CA certificates; install them (package \
             ca-certificates), or set sslrootcert to a file",
        ));
    }
    Ok(roots.clone())
}

/// Verifies the certificate of the server as far as the mode asks for it.
#[derive(Debug)]
struct ServerVerifier {
    /// None: the connection is encrypted, and no certificate is verified.
    roots: Option<Arc<RootCertStore>>,
    verifies_host_name: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerVerifier {
    fn new(settings: &TlsSettings, provider: &CryptoProvider) -> Result<Self> {
        let roots = match &settings.roots {
            None => None,
            Some(RootCertificates::System) => Some(system_roots()?),
            Some(RootCertificates::File(path)) => {
                let mut roots = RootCertStore::empty();
                for certificate in read_certificates("sslrootcert", path)? {
                    roots.add(certificate).map_err(|error| {
                        let path = path.display();
                        Error::invalid(format!("sslrootcert {path} cannot be used: {error}"))
                    })?;
                }
                Some(Arc::new(roots))
            }
        };
        Ok(Self {
            roots,
            verifies_host_name: settings.verification() == Some(SslMode::VerifyFull),
            algorithms: provider.signature_verification_algorithms,
        })
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(roots) = &self.roots {
            let certificate = ParsedCertificate::try_from(end_entity)?;
            let algorithms = self.algorithms.all;
            verify_server_cert_signed_by_trust_anchor(
                &certificate,
                roots,
                intermediates,
                now,
                algorithms,
            )?;
            if self.verifies_host_name {
                verify_server_name(&certificate, server_name)?;
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        if self.roots.is_none() {
            return Ok(HandshakeSignatureValid::assertion());
        }
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        if self.roots.is_none() {
            return Ok(HandshakeSignatureValid::assertion());
        }
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Why a handshake failed.
#[derive(Debug)]
pub(super) struct HandshakeError(String);

impl HandshakeError {
    fn new(host: &str, settings: &TlsSettings, error: &io::Error) -> Self {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        let Some(rustls::Error::InvalidCertificate(cause)) = inner else {
            let hint = match settings.is_direct {
                true => {
                    "; sslnegotiation=direct needs PostgreSQL 17 or newer: remove it if the server is \
                     older"
                }
                false => "",
            };
            return Self(format!("the TLS handshake with {host} failed: {error}{hint}"));
        };
        let certificate = format!("the certificate of the server {host}");
        Self(match cause {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                let roots = settings.roots.as_ref().map(ToString::to_string).unwrap_or_default();
                format!("{certificate} is not signed by a CA of sslrootcert {roots}")
            }
            CertificateError::ExpiredContext { not_after, .. } => {
                format!("{certificate} has expired: it was valid until {}", utc(*not_after))
            }
            CertificateError::NotValidYetContext { not_before, .. } => format!(
                "{certificate} is not valid yet: it is valid from {}; check the clock of this machine",
                utc(*not_before)
            ),
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                format!(
                    "the certificate of the server is not valid for the host name {host} \
                 (sslmode=verify-full): {cause}"
                )
            }
            CertificateError::Other(other) => {
                format!("{certificate} is invalid: {}", certificate_fault(&other.to_string()))
            }
            cause => format!("{certificate} is invalid: {cause}"),
        })
    }
}

/// Says in words what is wrong with a certificate, and what to do. The library has names only.
fn certificate_fault(name: &str) -> String {
    match name {
        "CaUsedAsEndEntity" => {
            "it is marked as a CA, and a CA is no certificate of a server; let the CA sign a certificate \
             for the server"
                .to_owned()
        }
        "UnsupportedCertVersion" => {
            "its X.509 version is not 3; create it again with a subjectAltName, which makes it version 3"
                .to_owned()
        }
        name => name.to_owned(),
    }
}

/// Formats a time as a date and a time of day in UTC.
fn utc(time: UnixTime) -> String {
    let (days, second) = (time.as_secs() / 86_400, time.as_secs() % 86_400);
    // Civil date of a day number: years begin in March, so that a leap day is the last day of its year.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for HandshakeError {}

/// What a handshake agreed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NegotiatedTls {
    pub(super) protocol: String,
    pub(super) cipher: String,
}

/// Makes the TLS session of one connection.
#[derive(Debug, Clone)]
pub(super) struct TlsMaker {
    /// None if the connection is not encrypted.
    config: Option<Arc<ClientConfig>>,
    settings: TlsSettings,
    negotiated: Arc<OnceLock<NegotiatedTls>>,
}

impl TlsMaker {
    pub(super) fn new(config: Option<Arc<ClientConfig>>, settings: &TlsSettings) -> Self {
        Self { config, settings: settings.clone(), negotiated: Arc::default() }
    }

    /// Returns what the handshake agreed on, or none if the connection is not encrypted.
    pub(super) fn agreed(&self) -> Option<NegotiatedTls> {
        self.negotiated.get().cloned()
    }
}

impl MakeTlsConnect<Socket> for TlsMaker {
    type Stream = EncryptedStream;
    type TlsConnect = TlsHandshake;
    type Error = HandshakeError;

    fn make_tls_connect(&mut self, host: &str) -> Result<TlsHandshake, HandshakeError> {
        Ok(TlsHandshake { maker: self.clone(), host: host.to_owned() })
    }
}

#[derive(Debug)]
pub(super) struct TlsHandshake {
    maker: TlsMaker,
    host: String,
}

impl TlsConnect<Socket> for TlsHandshake {
    type Stream = EncryptedStream;
    type Error = HandshakeError;
    type Future = Pin<Box<dyn Future<Output = Result<EncryptedStream, HandshakeError>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        let Self { maker: TlsMaker { config, settings, negotiated: agreed }, host } = self;
        Box::pin(async move {
            let config = config.ok_or_else(|| HandshakeError("TLS is disabled".to_owned()))?;
            let name = ServerName::try_from(host.clone()).map_err(|error| {
                HandshakeError(format!("the host name {host} cannot be used for TLS: {error}"))
            })?;
            let connected = TlsConnector::from(config).connect(name, socket).await;
            let stream =
                connected.map_err(|error| HandshakeError::new(&host, &settings, &error))?;
            let session = stream.get_ref().1;
            let protocol = session.protocol_version().and_then(|version| version.as_str());
            let cipher = session.negotiated_cipher_suite().and_then(|suite| suite.suite().as_str());
            let text = |text: Option<&str>| text.unwrap_or("unknown").to_owned();
            // As PostgreSQL writes it: TLSv1.3.
            let protocol = text(protocol).replace('_', ".");
            let _ = agreed.set(NegotiatedTls { protocol, cipher: text(cipher) });
            Ok(EncryptedStream(Box::new(stream)))
        })
    }
}

/// A connection under TLS. In a box: the state of a session is large.
#[derive(Debug)]
pub(super) struct EncryptedStream(Box<tokio_rustls::client::TlsStream<Socket>>);

impl AsyncRead for EncryptedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for EncryptedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_shutdown(cx)
    }
}

impl tokio_postgres::tls::TlsStream for EncryptedStream {
    fn channel_binding(&self) -> ChannelBinding {
        let certificates = self.0.get_ref().1.peer_certificates().unwrap_or_default();
        match certificates.first().and_then(|first| channel_binding::server_end_point_hash(first)) {
            Some(hash) => ChannelBinding::tls_server_end_point(hash),
            None => ChannelBinding::none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_dates_in_utc() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (951_868_800, "2000-03-01 00:00:00 UTC"),
            (1_577_836_800, "2020-01-01 00:00:00 UTC"),
            (4_107_542_399, "2100-02-28 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(utc(UnixTime::since_unix_epoch(Duration::from_secs(seconds))), text);
        }
    }

    #[test]
    fn file_that_is_cut_off_is_an_error_in_words() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "-----BEGIN CERTIFICATE-----\nMIIB\n").unwrap();
        let error = read_certificates("sslrootcert", file.path()).unwrap_err().to_string();
        assert!(error.contains("sslrootcert /") && error.contains("cut off"), "{error}");
        assert!(!error.contains('['), "{error}");
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(file.path(), "-----BEGIN PRIVATE KEY-----\nMIIB\n").unwrap();
        let error = read_private_key(file.path()).unwrap_err().to_string();
        assert!(error.contains("sslkey /") && error.contains("cut off"), "{error}");
    }

    #[test]
    fn failed_handshake_is_explained() {
        let settings = |is_direct| TlsSettings {
            mode: SslMode::Require,
            roots: Some(RootCertificates::System),
            client: None,
            is_direct,
        };
        let eof = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let text = |is_direct, error: &io::Error| {
            HandshakeError::new("db", &settings(is_direct), error).to_string()
        };
        assert!(text(true, &eof()).contains("sslnegotiation=direct needs PostgreSQL 17"));
        assert!(!text(false, &eof()).contains("sslnegotiation"));
        let unknown = rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let unknown = text(false, &io::Error::other(unknown));
        assert!(unknown.ends_with("not signed by a CA of sslrootcert system"), "{unknown}");
    }
}
