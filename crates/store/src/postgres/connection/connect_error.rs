//! Errors of connection attempts: which setting is concerned, and what to do.

use std::error::Error as _;
use std::io;
use std::path::Path;

use rustls::AlertDescription;
use tidegate_core::{Error, ErrorKind};
use tokio_postgres::config::{Host, TargetSessionAttrs};
use tokio_postgres::error::SqlState;

use super::settings::{Password, Server, Settings, SslMode};
use super::tls::HandshakeError;
use super::{Connector, Secrets, passfile};
use crate::postgres::error::to_store_error;

impl Connector {
    /// Returns the cause of a failed connection attempt, and what to do.
    pub(super) fn explain(
        &self,
        error: &tokio_postgres::Error,
        server: &Server,
        mode: SslMode,
        secrets: &Secrets,
    ) -> Error {
        self.settings.explain(error, server, mode, &secrets.password_source)
    }
}

impl Settings {
    /// Returns the password of the password file, and where it is from or why there is none.
    pub(super) fn stored_password(&self, server: &Server) -> (Option<Password>, String) {
        let Some(path) = &self.password_file else {
            return (None, String::new());
        };
        let host = match &server.host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(folder) => folder.display().to_string(),
        };
        let (database, user) = (&*self.database, &*self.user);
        let key = passfile::PasswordKey { host: &host, port: server.port, database, user };
        let file = self.password_file_text(path);
        match passfile::find_password(path, key) {
            Ok(password) => (Some(Password(password)), file),
            Err(cause) => (None, format!("{file} {cause}")),
        }
    }

    fn password_file_text(&self, path: &Path) -> String {
        let source = self.password_file_source.map(|source| format!(" of {source}"));
        format!("the password file {}{}", path.display(), source.unwrap_or_default())
    }

    fn explain(
        &self,
        error: &tokio_postgres::Error,
        server: &Server,
        mode: SslMode,
        password_source: &str,
    ) -> Error {
        if let Some(handshake) = handshake_error(error) {
            return Error::new(ErrorKind::Unavailable, handshake.to_string());
        }
        let cause = error.source().map(ToString::to_string).unwrap_or_default();
        if let Some(failure) = self.explain_cause(&cause, mode, password_source) {
            return failure;
        }
        let answer = to_store_error(error);
        let hint = match alert(error) {
            Some(alert) => self.explain_alert(alert),
            None => self.explain_code(error, server, mode, password_source),
        };
        hint.map_or_else(
            || answer.clone(),
            |hint| Error::new(answer.kind(), format!("{answer}; {hint}")),
        )
    }

    /// Explains a failure that tokio-postgres itself has found.
    fn explain_cause(&self, cause: &str, mode: SslMode, password_source: &str) -> Option<Error> {
        let (kind, text) = match cause {
            "server does not support TLS" => (
                ErrorKind::Refused,
                format!("the server does not support TLS, which sslmode={} requires", mode.name()),
            ),
            "password missing" => (ErrorKind::Refused, missing_password(password_source)),
            "server did not use channel binding" => (
                ErrorKind::Refused,
                "the server did not use channel binding, which channel_binding=require demands: it \
                 needs TLS and a password by SCRAM (scram-sha-256), and PgBouncer does not support \
                 it; use channel_binding=prefer, or connect to PostgreSQL directly"
                    .to_owned(),
            ),
            "database does not allow writes" | "database is not read only" => {
                let is_for_writes =
                    self.config.get_target_session_attrs() == TargetSessionAttrs::ReadWrite;
                let text = match is_for_writes {
                    true => {
                        "the server accepts no writes, and target_session_attrs=read-write demands \
                         it: it is a standby or set to read-only; add the primary to the hosts of \
                         the URL, or promote the server"
                    }
                    false => {
                        "the server accepts writes, and target_session_attrs=read-only demands a \
                         server that does not: remove the parameter, tidegate writes"
                    }
                };
                (ErrorKind::Unavailable, text.to_owned())
            }
            _ => return None,
        };
        Some(Error::new(kind, text))
    }

    /// Returns what to do about an alert of the server, which concerns the certificate of the client.
    fn explain_alert(&self, alert: AlertDescription) -> Option<String> {
        let (certificate, _) = self.tls.client.as_ref()?;
        let certificate = certificate.display();
        match alert {
            AlertDescription::UnknownCA => Some(format!(
                "the server does not trust the certificate of sslcert {certificate}: add the CA that \
                 signed it to the file of ssl_ca_file on the server, or use another certificate"
            )),
            AlertDescription::CertificateExpired => Some(format!(
                "the certificate of sslcert {certificate} has expired: create a new one"
            )),
            _ => None,
        }
    }

    /// Returns what to do about an error that the server has reported.
    fn explain_code(
        &self,
        error: &tokio_postgres::Error,
        server: &Server,
        mode: SslMode,
        password_source: &str,
    ) -> Option<String> {
        let answer = error.as_db_error()?;
        let is_password = *answer.code() == SqlState::INVALID_PASSWORD
            || answer.message().contains("password authentication failed");
        if is_password && !password_source.is_empty() {
            return Some(format!("the password came from {password_source}"));
        }
        let is_refused = *answer.code() == SqlState::INVALID_AUTHORIZATION_SPECIFICATION;
        (is_refused && mode == SslMode::Disable && !server.is_socket()).then(|| {
            "sslmode=disable: if the server requires TLS, use sslmode=require or stronger"
                .to_owned()
        })
    }
}

/// Says that the server asks for a password and there is none, with the cause.
fn missing_password(cause: &str) -> String {
    match cause {
        "" => {
            "the server asks for a password: set it in the URL, in PGPASSWORD or in the password \
               file"
                .to_owned()
        }
        cause => format!(
            "the server asks for a password, and {cause}; set the password in the URL, in PGPASSWORD or \
             in the password file"
        ),
    }
}

pub(super) fn handshake_error(error: &tokio_postgres::Error) -> Option<&HandshakeError> {
    error.source()?.downcast_ref()
}

/// Returns the TLS alert by which the server has ended the connection.
fn alert(error: &tokio_postgres::Error) -> Option<AlertDescription> {
    let cause: &io::Error = error.source()?.downcast_ref()?;
    match cause.get_ref()?.downcast_ref()? {
        rustls::Error::AlertReceived(alert) => Some(*alert),
        _ => None,
    }
}
