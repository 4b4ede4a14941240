//! Connection settings: the URL, then the environment, then the defaults; checked before the first
//! connection is opened.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use tidegate_core::{Error, Result};
use tokio_postgres::Config;
use tokio_postgres::config::{
    ChannelBinding, Host, LoadBalanceHosts, SslNegotiation, TargetSessionAttrs,
};

use super::environment::Environment;
use super::url::{Parameter, parse_parameters};
use crate::postgres::timeouts::Timeouts;

/// Keepalive probes without an answer after which a connection is closed.
const KEEPALIVE_RETRIES: u32 = 3;

/// The bounds of the operating system for the times of a keepalive, in whole seconds.
const KEEPALIVE_MIN: Duration = Duration::from_secs(1);
const KEEPALIVE_MAX: Duration = Duration::from_secs(32_767);

/// The bound of the operating system for the probes of a keepalive.
const KEEPALIVE_RETRIES_MAX: u32 = 127;

/// The bound of the operating system for the user timeout: milliseconds in 32 bits, with a sign.
const USER_TIMEOUT_MAX: Duration = Duration::from_millis(i32::MAX as u64);

/// The bound of libpq for `connect_timeout`, in seconds.
const CONNECT_TIMEOUT_MAX: u64 = i32::MAX as u64;

const DEFAULT_PORT: u16 = 5432;

/// How the connection is encrypted and what is verified, as in libpq.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SslMode {
    Disable,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

impl SslMode {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Disable => "disable",
            Self::Prefer => "prefer",
            Self::Require => "require",
            Self::VerifyCa => "verify-ca",
            Self::VerifyFull => "verify-full",
        }
    }
}

/// The certificates of the CAs that may sign the certificate of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RootCertificates {
    File(PathBuf),
    System,
}

impl fmt::Display for RootCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::System => f.write_str("system"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TlsSettings {
    pub(super) mode: SslMode,
    pub(super) roots: Option<RootCertificates>,
    /// The certificate of the client and its key.
    pub(super) client: Option<(PathBuf, PathBuf)>,
    /// The handshake begins without a request in clear text (PostgreSQL 17 and newer).
    pub(super) is_direct: bool,
}

impl TlsSettings {
    /// Returns what is verified of the certificate of the server. As in libpq, a CA that is given is
    /// used also where the mode does not ask for it.
    pub(super) fn verification(&self) -> Option<SslMode> {
        match self.mode {
            SslMode::VerifyFull => Some(SslMode::VerifyFull),
            _ => self.roots.is_some().then_some(SslMode::VerifyCa),
        }
    }
}

/// A server to try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) host: Host,
    /// The address to connect to instead of looking up the host name.
    pub(super) address: Option<IpAddr>,
    pub(super) port: u16,
}

impl Server {
    pub(super) fn is_socket(&self) -> bool {
        matches!(self.host, Host::Unix(_))
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Tcp(name) => write!(f, "{name}:{}", self.port),
            Host::Unix(folder) => write!(f, "{}/.s.PGSQL.{}", folder.display(), self.port),
        }
    }
}

/// A password. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Password(pub(super) String);

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("_")
    }
}

/// How to reach the database.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    /// In the order in which they are tried.
    pub(super) servers: Vec<Server>,
    pub(super) is_order_random: bool,
    pub(super) user: String,
    pub(super) database: String,
    pub(super) password: Option<Password>,
    /// Where the password comes from.
    pub(super) password_source: &'static str,
    pub(super) password_file: Option<PathBuf>,
    /// What names the password file; none for the default.
    pub(super) password_file_source: Option<&'static str>,
    pub(super) tls: TlsSettings,
    /// The time limit for all attempts together, or for one server if the URL sets it.
    pub(super) connect_timeout: Duration,
    pub(super) is_connect_timeout_per_server: bool,
    /// Everything else, without hosts and password.
    pub(super) config: Config,
}

impl Settings {
    pub(super) fn parse(
        text: &str,
        environment: &Environment,
        timeouts: &Timeouts,
    ) -> Result<Self> {
        if environment.get("PGSERVICE").is_some() {
            return Err(Error::invalid(
                "PGSERVICE is set, but connection service files are not supported; unset it and write \
                 the parameters into the URL",
            ));
        }
        let given = UrlParameters::from_known(parse_parameters(text)?)?;
        let user = match given.text("user") {
            Some(user) => user.to_owned(),
            None => whoami::username().map_err(|error| {
                Error::invalid(format!("the URL has no user, and the system knows none: {error}"))
            })?,
        };
        let database = given.text("dbname").unwrap_or(&user).to_owned();
        let of_url = given.text("password").map(|password| ("the URL", password));
        let of_environment = environment.get("PGPASSWORD").map(|password| ("PGPASSWORD", password));
        let (password_source, password) = of_url.or(of_environment).unzip();
        let of_url = given.text("passfile").map(|file| ("passfile", file));
        let of_environment = environment.get("PGPASSFILE").map(|file| ("PGPASSFILE", file));
        let (password_file_source, password_file) = of_url.or(of_environment).unzip();
        let connect_timeout = bounded_number(&given, "connect_timeout", CONNECT_TIMEOUT_MAX)?;
        let is_random =
            given.choice("load_balance_hosts", &[("disable", false), ("random", true)])?;
        let servers = parse_servers(&given)?;
        let config = build_config(&given, servers.len(), &user, &database, timeouts)?;
        Ok(Self {
            servers,
            is_order_random: is_random.unwrap_or(false),
            password: password.map(|password| Password(password.to_owned())),
            password_source: password_source.unwrap_or_default(),
            password_file_source,
            password_file: password_file
                .map(PathBuf::from)
                .or_else(|| environment.home_file(".pgpass")),
            tls: parse_tls_settings(&given, environment)?,
            is_connect_timeout_per_server: connect_timeout.is_some(),
            connect_timeout: connect_timeout.map_or(timeouts.connect, Duration::from_secs),
            config,
            user,
            database,
        })
    }

    /// Returns the time limit for one address of a server that has `addresses`. As in libpq, a limit of
    /// the URL applies to each address. The limit of the settings is divided, so that an address that does
    /// not answer leaves time for the others.
    pub(super) fn address_limit(&self, addresses: usize) -> Duration {
        if self.is_connect_timeout_per_server {
            return self.connect_timeout;
        }
        let count = self.servers.len() * addresses.max(1);
        self.connect_timeout / u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Returns the statements by which the server notices a client that is gone, with the same times as the
    /// client: a network that is silent leaves sessions on the server, and their locks. The server
    /// ignores them on a Unix socket.
    pub(super) fn server_tcp_settings_sql(&self) -> String {
        let config = &self.config;
        let mut text = String::new();
        let mut set = |name: &str, value: u128| {
            if !self.sets_parameter(name) {
                text.push_str(&format!("SET {name} = {value};"));
            }
        };
        if config.get_keepalives() {
            set("tcp_keepalives_idle", config.get_keepalives_idle().as_secs().into());
            let interval = config.get_keepalives_interval().unwrap_or(KEEPALIVE_MIN);
            set("tcp_keepalives_interval", interval.as_secs().into());
            let retries = config.get_keepalives_retries().unwrap_or(KEEPALIVE_RETRIES);
            set("tcp_keepalives_count", retries.into());
        }
        if let Some(timeout) = config.get_tcp_user_timeout() {
            set("tcp_user_timeout", timeout.as_millis());
        }
        text
    }

    /// Returns whether the URL itself sets a parameter of the server.
    pub(super) fn sets_parameter(&self, parameter: &str) -> bool {
        self.config.get_options().is_some_and(|options| options.contains(parameter))
    }
}

/// The parameters of a URL, all of them known. A parameter has precedence over the same part of the URL, such
/// as a host.
struct UrlParameters(Vec<Parameter>);

const KNOWN_PARAMETERS: [&str; 25] = [
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "passfile",
    "options",
    "application_name",
    "connect_timeout",
    "target_session_attrs",
    "load_balance_hosts",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "sslnegotiation",
    "channel_binding",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    // The name that tokio-postgres gives to `keepalives_count`.
    "keepalives_retries",
    "tcp_user_timeout",
    "service",
];

impl UrlParameters {
    fn from_known(parameters: Vec<Parameter>) -> Result<Self> {
        for (key, _) in &parameters {
            if key == "service" {
                return Err(Error::invalid(
                    "the parameter service of the PostgreSQL URL is not supported; write the \
                     parameters of the service into the URL",
                ));
            }
            if key == "sslpassword" {
                return Err(Error::invalid(
                    "the parameter sslpassword of the PostgreSQL URL is not supported: encrypted \
                     keys are not supported; decrypt the file of sslkey",
                ));
            }
            if !KNOWN_PARAMETERS.contains(&&**key) {
                return Err(Error::invalid(format!(
                    "the PostgreSQL URL has the unknown parameter {key:?}; known are {}",
                    KNOWN_PARAMETERS[..KNOWN_PARAMETERS.len() - 1].join(", ")
                )));
            }
        }
        Ok(Self(parameters))
    }

    fn text(&self, key: &str) -> Option<&str> {
        let found = self.0.iter().rev().find(|(name, _)| name == key);
        found.map(|(_, value)| &**value).filter(|value| !value.is_empty())
    }

    fn is_set_but_empty(&self, key: &str) -> bool {
        self.0.iter().any(|(name, value)| name == key && value.is_empty())
    }

    fn list(&self, key: &str) -> Vec<&str> {
        self.text(key).map(|text| text.split(',').collect()).unwrap_or_default()
    }

    fn number<T: FromStr>(&self, key: &'static str) -> Result<Option<T>> {
        let read =
            |text: &str| text.parse().map_err(|_| invalid_value_error(key, text, "a number"));
        self.text(key).map(read).transpose()
    }

    fn choice<T: Copy>(&self, key: &'static str, choices: &[(&str, T)]) -> Result<Option<T>> {
        self.text(key).map(|text| parse_choice(key, text, choices)).transpose()
    }
}

fn parse_choice<T: Copy>(key: &str, text: &str, choices: &[(&str, T)]) -> Result<T> {
    let found = choices.iter().find(|(name, _)| *name == text);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        invalid_value_error(key, text, &names.join(", "))
    })
}

fn invalid_value_error(key: &str, value: &str, wanted: &str) -> Error {
    Error::invalid(format!("{key}={value:?} of the PostgreSQL connection is invalid; use {wanted}"))
}

fn parse_servers(given: &UrlParameters) -> Result<Vec<Server>> {
    let (hosts, addresses, ports) =
        (given.list("host"), given.list("hostaddr"), given.list("port"));
    let count = hosts.len().max(addresses.len());
    if count == 0 {
        return Err(Error::invalid("the PostgreSQL URL names no host"));
    }
    for (key, list) in [("host", &hosts), ("hostaddr", &addresses)] {
        if !list.is_empty() && list.len() != count {
            return Err(Error::invalid(format!(
                "the PostgreSQL URL has {} values of {key} for {count} servers",
                list.len()
            )));
        }
    }
    if ports.len() > 1 && ports.len() != count {
        return Err(Error::invalid(format!(
            "the PostgreSQL URL has {} ports for {count} servers; give one, or one for each",
            ports.len()
        )));
    }
    (0..count)
        .map(|index| {
            let address = addresses.get(index).filter(|text| !text.is_empty());
            let address: Option<IpAddr> = address
                .map(|text| {
                    text.parse().map_err(|_| invalid_value_error("hostaddr", text, "an IP address"))
                })
                .transpose()?;
            // Without a name the certificate has to be valid for the address.
            let name = hosts.get(index).copied().unwrap_or_default();
            let host = match (name, address) {
                ("", None) => return Err(Error::invalid("a host of the PostgreSQL URL is empty")),
                ("", Some(address)) => Host::Tcp(address.to_string()),
                (folder, _) if folder.starts_with('/') => Host::Unix(folder.into()),
                (name, _) => Host::Tcp(name.to_owned()),
            };
            let port = ports.get(index).or(ports.first()).copied().unwrap_or_default();
            // A port can be a part of a password that is not encoded, so it is not shown.
            let port = match port {
                "" => DEFAULT_PORT,
                port => port.parse().ok().filter(|port| *port > 0).ok_or_else(|| {
                    Error::invalid(
                        "the port of the PostgreSQL URL is not a number from 1 to 65535; \
                         percent-encode special characters in a user name or a password",
                    )
                })?,
            };
            Ok(Server { host, address, port })
        })
        .collect()
}

fn parse_tls_settings(given: &UrlParameters, environment: &Environment) -> Result<TlsSettings> {
    const MODES: [(&str, SslMode); 5] = [
        ("disable", SslMode::Disable),
        ("prefer", SslMode::Prefer),
        ("require", SslMode::Require),
        ("verify-ca", SslMode::VerifyCa),
        ("verify-full", SslMode::VerifyFull),
    ];
    let text = |key, variable| given.text(key).or_else(|| environment.get(variable));
    let existing = |file: Option<PathBuf>| file.filter(|file| file.exists());
    // As in libpq, an empty mode is an error: a template whose variable is not set must not turn encryption off.
    let empty = |is_empty: bool| is_empty.then_some("");
    let of_url = given.text("sslmode").or(empty(given.is_set_but_empty("sslmode")));
    let of_environment = environment.get("PGSSLMODE").or(empty(environment.is_empty("PGSSLMODE")));
    let of_environment = of_environment.map(|mode| ("PGSSLMODE", mode));
    let mode = match of_url.map(|mode| ("sslmode", mode)).or(of_environment) {
        Some((name, mode)) => Some(parse_choice(name, mode, &MODES)?),
        None => None,
    };
    let roots = match text("sslrootcert", "PGSSLROOTCERT") {
        Some("system") => Some(RootCertificates::System),
        Some(file) => Some(RootCertificates::File(file.into())),
        None => existing(environment.home_file(".postgresql/root.crt")).map(RootCertificates::File),
    };
    let default =
        if roots == Some(RootCertificates::System) { SslMode::VerifyFull } else { SslMode::Prefer };
    let mode = mode.unwrap_or(default);
    if roots == Some(RootCertificates::System) && mode != SslMode::VerifyFull {
        return Err(Error::invalid(format!(
            "sslmode={} is too weak for sslrootcert=system, because everyone can get a certificate \
             from a public CA; use sslmode=verify-full",
            mode.name()
        )));
    }
    if mode >= SslMode::VerifyCa && roots.is_none() {
        return Err(Error::invalid(format!(
            "sslmode={} needs the certificate of the CA: set sslrootcert to its file, or to \
             \"system\" for the CAs of the operating system",
            mode.name()
        )));
    }
    let is_direct = given.choice("sslnegotiation", &[("postgres", false), ("direct", true)])?;
    if is_direct == Some(true) && mode < SslMode::Require {
        return Err(Error::invalid(format!(
            "sslmode={} is too weak for sslnegotiation=direct; use sslmode=require or stronger",
            mode.name()
        )));
    }
    Ok(TlsSettings {
        mode,
        roots,
        client: client_certificate_files(&text, environment)?,
        is_direct: is_direct.unwrap_or(false),
    })
}

fn client_certificate_files<'a>(
    text: &impl Fn(&'static str, &'static str) -> Option<&'a str>,
    environment: &Environment,
) -> Result<Option<(PathBuf, PathBuf)>> {
    let home_file = |name| environment.home_file(name);
    let certificate = text("sslcert", "PGSSLCERT").map(PathBuf::from);
    let key = text("sslkey", "PGSSLKEY").map(PathBuf::from);
    let certificate = certificate
        .or_else(|| home_file(".postgresql/postgresql.crt").filter(|file: &PathBuf| file.exists()));
    let key_or_default = || key.clone().or_else(|| home_file(".postgresql/postgresql.key"));
    match certificate {
        Some(certificate) => match key_or_default() {
            Some(key) => Ok(Some((certificate, key))),
            None => Err(Error::invalid("sslcert is set without sslkey: set the file of the key")),
        },
        None if key.is_some() => {
            Err(Error::invalid("sslkey is set without sslcert: set the file of the certificate"))
        }
        None => Ok(None),
    }
}

fn build_config(
    given: &UrlParameters,
    servers: usize,
    user: &str,
    database: &str,
    timeouts: &Timeouts,
) -> Result<Config> {
    let mut config = Config::new();
    config.user(user).dbname(database);
    config.application_name(given.text("application_name").unwrap_or("tidegate"));
    if let Some(options) = given.text("options") {
        config.options(options);
    }
    let attributes = given.choice(
        "target_session_attrs",
        &[
            ("any", TargetSessionAttrs::Any),
            ("read-write", TargetSessionAttrs::ReadWrite),
            ("read-only", TargetSessionAttrs::ReadOnly),
        ],
    )?;
    // libpq accepts any server by default. The store writes, so among several servers it needs the primary.
    let default = if servers > 1 { TargetSessionAttrs::ReadWrite } else { TargetSessionAttrs::Any };
    config.target_session_attrs(attributes.unwrap_or(default));
    let binding = given.choice(
        "channel_binding",
        &[
            ("disable", ChannelBinding::Disable),
            ("prefer", ChannelBinding::Prefer),
            ("require", ChannelBinding::Require),
        ],
    )?;
    config.channel_binding(binding.unwrap_or(ChannelBinding::Prefer));
    let balance = [("disable", LoadBalanceHosts::Disable), ("random", LoadBalanceHosts::Random)];
    let balance = given.choice("load_balance_hosts", &balance)?;
    config.load_balance_hosts(balance.unwrap_or(LoadBalanceHosts::Disable));
    if given.text("sslnegotiation") == Some("direct") {
        config.ssl_negotiation(SslNegotiation::Direct);
    }
    set_tcp_options(&mut config, given, timeouts)?;
    Ok(config)
}

/// Sets when the kernel closes a TCP connection whose other end does not answer. Values of the settings are
/// brought within the bounds of the kernel, which would refuse every connection otherwise; values of the
/// URL that are out of bounds are errors.
fn set_tcp_options(config: &mut Config, given: &UrlParameters, timeouts: &Timeouts) -> Result<()> {
    let seconds = |key| bounded_number(given, key, KEEPALIVE_MAX.as_secs());
    let is_on: Option<u32> = given.number("keepalives")?;
    let idle = seconds("keepalives_idle")?.map(Duration::from_secs);
    let interval = seconds("keepalives_interval")?.map(Duration::from_secs);
    let retries = match bounded_number(given, "keepalives_count", KEEPALIVE_RETRIES_MAX.into())? {
        None => bounded_number(given, "keepalives_retries", KEEPALIVE_RETRIES_MAX.into())?,
        count => count,
    };
    let retries = retries.and_then(|retries| u32::try_from(retries).ok());
    let in_bounds = |time: Duration| time.clamp(KEEPALIVE_MIN, KEEPALIVE_MAX);
    config
        .keepalives(is_on != Some(0))
        .keepalives_idle(idle.unwrap_or(in_bounds(timeouts.tcp_keepalive)))
        .keepalives_interval(
            interval.unwrap_or(in_bounds(timeouts.tcp_keepalive / KEEPALIVE_RETRIES)),
        )
        .keepalives_retries(retries.unwrap_or(KEEPALIVE_RETRIES));
    let user_max = u64::try_from(USER_TIMEOUT_MAX.as_millis()).unwrap_or(u64::MAX);
    let user = match given.text("tcp_user_timeout") {
        // The default of the operating system.
        Some("0") => None,
        _ => match bounded_number(given, "tcp_user_timeout", user_max)? {
            Some(timeout) => Some(Duration::from_millis(timeout)),
            // Zero would be the default of the operating system.
            None => Some(timeouts.tcp_user.clamp(Duration::from_millis(1), USER_TIMEOUT_MAX)),
        },
    };
    if let Some(timeout) = user {
        config.tcp_user_timeout(timeout);
    }
    Ok(())
}

/// Reads a number from 0 to `max`; 0 means the default.
fn bounded_number(given: &UrlParameters, key: &'static str, max: u64) -> Result<Option<u64>> {
    match given.number::<u64>(key)? {
        Some(value) if value > max => {
            Err(invalid_value_error(key, &value.to_string(), &format!("a number from 0 to {max}")))
        }
        value => Ok(value.filter(|value| *value > 0)),
    }
}

/// Returns whether a path is a file whose group or other users have access to it.
pub(super) fn is_open_to_others(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let allowed = |metadata: &std::fs::Metadata| if metadata.uid() == 0 { 0o037 } else { 0o077 };
    std::fs::metadata(path).is_ok_and(|metadata| metadata.mode() & allowed(&metadata) != 0)
}

#[cfg(test)]
mod tests;
