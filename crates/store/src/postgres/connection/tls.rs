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
use rustls::pki_types::pem::PemObject as _;
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
use super::settings::{Roots, SslMode, TlsSettings, is_open_to_others};

/// What a direct handshake asks the server for.
const ALPN: &[u8] = b"postgresql";

/// Reads the certificates and the key, and returns how to make connections with them. They are read
/// for each connection, so that files can be replaced while the process runs.
pub(super) fn load(settings: &TlsSettings) -> Result<Arc<ClientConfig>> {
    let provider = Arc::new(default_provider());
    let verifier = Verifier::new(settings, &provider)?;
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder =
        builder.map_err(|error| Error::invalid(format!("TLS cannot be used: {error}")))?;
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match &settings.client {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = certificates("sslcert", certificate)?;
            let private = private_key(key)?;
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

fn certificates(parameter: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let shown = path.display();
    let text = fs::read(path)
        .map_err(|error| Error::invalid(format!("{parameter} {shown} cannot be read: {error}")))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(Error::invalid(format!("{parameter} {shown} has no certificate in PEM form"))),
        Err(error) => {
            Err(Error::invalid(format!("{parameter} {shown} is not in PEM form: {error}")))
        }
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
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
    PrivateKeyDer::from_pem_slice(&text)
        .map_err(|error| Error::invalid(format!("sslkey {shown} has no key in PEM form: {error}")))
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
struct Verifier {
    /// None: the connection is encrypted, and no certificate is verified.
    roots: Option<Arc<RootCertStore>>,
    has_to_match_host: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    fn new(settings: &TlsSettings, provider: &CryptoProvider) -> Result<Self> {
        let roots = match &settings.roots {
            None => None,
            Some(Roots::System) => Some(system_roots()?),
            Some(Roots::File(path)) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates("sslrootcert", path)? {
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
            has_to_match_host: settings.verification() == Some(SslMode::VerifyFull),
            algorithms: provider.signature_verification_algorithms,
        })
    }
}

impl ServerCertVerifier for Verifier {
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
            if self.has_to_match_host {
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
    fn new(host: &str, error: &io::Error) -> Self {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        let Some(rustls::Error::InvalidCertificate(cause)) = inner else {
            return Self(format!("the TLS handshake with {host} failed: {error}"));
        };
        Self(match cause {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                format!("the certificate of the server {host} is not signed by a CA of sslrootcert")
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                format!("the certificate of the server {host} has expired: {cause}")
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                format!(
                    "the certificate of the server is not valid for the host name {host} \
                 (sslmode=verify-full): {cause}"
                )
            }
            cause => format!("the certificate of the server {host} is invalid: {cause}"),
        })
    }
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for HandshakeError {}

/// What a handshake agreed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Agreed {
    pub(super) protocol: String,
    pub(super) cipher: String,
}

/// Makes the TLS session of one connection.
#[derive(Debug, Clone)]
pub(super) struct Tls {
    /// None if the connection is not encrypted.
    config: Option<Arc<ClientConfig>>,
    agreed: Arc<OnceLock<Agreed>>,
}

impl Tls {
    pub(super) fn new(config: Option<Arc<ClientConfig>>) -> Self {
        Self { config, agreed: Arc::default() }
    }

    /// Returns what the handshake agreed on, or none if the connection is not encrypted.
    pub(super) fn agreed(&self) -> Option<Agreed> {
        self.agreed.get().cloned()
    }
}

impl MakeTlsConnect<Socket> for Tls {
    type Stream = Stream;
    type TlsConnect = Handshake;
    type Error = HandshakeError;

    fn make_tls_connect(&mut self, host: &str) -> Result<Handshake, HandshakeError> {
        Ok(Handshake { tls: self.clone(), host: host.to_owned() })
    }
}

#[derive(Debug)]
pub(super) struct Handshake {
    tls: Tls,
    host: String,
}

impl TlsConnect<Socket> for Handshake {
    type Stream = Stream;
    type Error = HandshakeError;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, HandshakeError>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        let Self { tls: Tls { config, agreed }, host } = self;
        Box::pin(async move {
            let config = config.ok_or_else(|| HandshakeError("TLS is disabled".to_owned()))?;
            let name = ServerName::try_from(host.clone()).map_err(|error| {
                HandshakeError(format!("the host name {host} cannot be used for TLS: {error}"))
            })?;
            let connected = TlsConnector::from(config).connect(name, socket).await;
            let stream = connected.map_err(|error| HandshakeError::new(&host, &error))?;
            let session = stream.get_ref().1;
            let protocol = session.protocol_version().and_then(|version| version.as_str());
            let cipher = session.negotiated_cipher_suite().and_then(|suite| suite.suite().as_str());
            let text = |text: Option<&str>| text.unwrap_or("unknown").to_owned();
            // As PostgreSQL writes it: TLSv1.3.
            let protocol = text(protocol).replace('_', ".");
            let _ = agreed.set(Agreed { protocol, cipher: text(cipher) });
            Ok(Stream(Box::new(stream)))
        })
    }
}

/// A connection under TLS. In a box: the state of a session is large.
#[derive(Debug)]
pub(super) struct Stream(Box<tokio_rustls::client::TlsStream<Socket>>);

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Stream {
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

impl tokio_postgres::tls::TlsStream for Stream {
    fn channel_binding(&self) -> ChannelBinding {
        let certificates = self.0.get_ref().1.peer_certificates().unwrap_or_default();
        match certificates.first().and_then(|first| channel_binding::end_point(first)) {
            Some(hash) => ChannelBinding::tls_server_end_point(hash),
            None => ChannelBinding::none(),
        }
    }
}
