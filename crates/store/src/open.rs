//! Opens a store by its URL. The one place that knows every room.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use tidegate_core::{Error, ErrorKind, Result, Store, StoreReader};

use crate::memory::Memory;
use crate::postgres::{self, Postgres};
use crate::sqlite::{self, Sqlite, Synchronous};

/// How to open a store.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// When a commit is safe, on SQLite, where the URL does not say it. Default: at once, also
    /// against the loss of power.
    pub synchronous: Synchronous,
    /// Whether to refuse where there is no store, instead of making one. Default: make it.
    pub must_exist: bool,
    /// How long to wait for PostgreSQL.
    pub postgres_timeouts: postgres::Timeouts,
}

/// An open store.
#[derive(Debug, Clone)]
pub struct StoreHandle {
    /// The verbs that write.
    pub store: Arc<dyn Store>,
    /// The reads.
    pub reader: Arc<dyn StoreReader>,
}

impl StoreHandle {
    fn new<S: Store + StoreReader + Clone + 'static>(store: S) -> Self {
        Self { store: Arc::new(store.clone()), reader: Arc::new(store) }
    }
}

/// What a URL names.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreLocation {
    /// `memory:`
    Memory,
    /// `sqlite:PATH`, `sqlite:PATH?synchronous=normal`, or a bare path.
    Sqlite {
        /// The file.
        path: PathBuf,
        /// When a commit is safe, if the URL says so.
        synchronous: Option<Synchronous>,
    },
    /// `postgres://...`
    Postgres(String),
}

/// Opens the store a URL names. Its schema is brought up to date by
/// [`migrate`](Store::migrate), not here.
pub async fn open(url: &str, options: OpenOptions) -> Result<StoreHandle> {
    match StoreLocation::parse(url)? {
        StoreLocation::Memory => Ok(StoreHandle::new(Memory::new())),
        StoreLocation::Sqlite { path, synchronous } => {
            let synchronous = synchronous.unwrap_or(options.synchronous);
            open_sqlite(path, OpenOptions { synchronous, ..options }).await
        }
        StoreLocation::Postgres(url) => {
            let timeouts = options.postgres_timeouts;
            let options = postgres::Options { timeouts, ..postgres::Options::default() };
            Postgres::connect(&url, options).await.map(StoreHandle::new)
        }
    }
}

impl StoreLocation {
    /// Returns the URL for another command on the same store: without the password, with everything else.
    pub fn url_without_password(&self) -> String {
        match self {
            Self::Postgres(url) => {
                postgres::without_password(url).unwrap_or_else(|| self.to_string())
            }
            _ => self.to_string(),
        }
    }

    /// Reads a URL.
    pub fn parse(url: &str) -> Result<Self> {
        if url == "memory:" {
            return Ok(Self::Memory);
        }
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            return Ok(Self::Postgres(url.to_owned()));
        }
        let (path, settings) = match url.split_once(':') {
            Some(("sqlite", rest)) => {
                let rest = rest.strip_prefix("//").unwrap_or(rest);
                rest.split_once('?').map_or((rest, None), |(path, settings)| (path, Some(settings)))
            }
            Some((scheme, _)) if is_url_scheme(scheme) => {
                return Err(Error::invalid(format!(
                    "{:?} has the scheme {scheme:?}, which is no store; known are \
                     sqlite:PATH, postgres://... and memory:",
                    without_credentials(url)
                )));
            }
            _ if url.contains("password=") => {
                return Err(Error::invalid(
                    "a connection string of key=value pairs is not accepted; write it as \
                     postgres://USER@HOST/DATABASE",
                ));
            }
            // The text is not shown: it can contain a password.
            _ if url.contains("://") || url.contains("//") && url.contains('@') => {
                return Err(Error::invalid(
                    "the store looks like a URL and is none; write postgres://USER@HOST/DATABASE or \
                     sqlite:PATH, without quotes or spaces around it",
                ));
            }
            // A bare path has no settings: a question mark is a part of it.
            _ => (url, None),
        };
        if path.is_empty() {
            return Err(Error::invalid(format!("{url:?} names no file; write sqlite:PATH")));
        }
        let synchronous = settings.map(|text| parse_synchronous(url, text)).transpose()?;
        Ok(Self::Sqlite { path: path.into(), synchronous })
    }
}

/// Reads what stands behind the question mark of a file's URL.
fn parse_synchronous(url: &str, settings: &str) -> Result<Synchronous> {
    match settings {
        "synchronous=full" => Ok(Synchronous::Full),
        "synchronous=normal" => Ok(Synchronous::Normal),
        _ => Err(Error::invalid(format!(
            "{url:?} has the unknown setting {settings:?}; known are synchronous=full and \
             synchronous=normal"
        ))),
    }
}

/// For people: without the user's name and password, and without settings.
impl fmt::Display for StoreLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Sqlite { path, .. } => write!(f, "sqlite:{}", path.display()),
            Self::Postgres(url) => f.write_str(&postgres::display_address(url)),
        }
    }
}

/// Without the password, also where it contains an `@` that is not encoded.
impl fmt::Debug for StoreLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Place({self})")
    }
}

/// Returns a URL of an unknown scheme without user, password and parameters.
fn without_credentials(url: &str) -> String {
    let (scheme, rest) = url.split_once(':').unwrap_or(("", url));
    let rest = rest.rsplit('@').next().unwrap_or_default();
    let rest = rest.split('?').next().unwrap_or_default();
    let slashes = if url.contains("://") && !rest.starts_with("//") { "//" } else { "" };
    format!("{scheme}:{slashes}{rest}")
}

/// Whether the part before a colon is a scheme, and not a part of a path.
fn is_url_scheme(text: &str) -> bool {
    text.len() > 1
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

async fn open_sqlite(path: PathBuf, options: OpenOptions) -> Result<StoreHandle> {
    if options.must_exist && !path.exists() {
        return Err(Error::new(
            ErrorKind::NotFound,
            format!(
                "there is no store at {}; name another with --store, or make this one with \
                 `tidegate migrate`",
                path.display()
            ),
        ));
    }
    let synchronous = options.synchronous;
    let open = move || Sqlite::open(path, sqlite::Options { synchronous, ..Default::default() });
    // Another process may hold the file's lock for a while.
    let opened = tokio::task::spawn_blocking(open).await;
    let store = opened.map_err(|error| {
        Error::new(ErrorKind::Unavailable, format!("opening the file was cut off: {error}"))
    })??;
    Ok(StoreHandle::new(store))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_url_selects_store() {
        let sqlite = |path: &str| StoreLocation::Sqlite { path: path.into(), synchronous: None };
        let set = |synchronous| StoreLocation::Sqlite { path: "a.db".into(), synchronous };
        for (url, place) in [
            ("memory:", StoreLocation::Memory),
            ("sqlite:a/b.db", sqlite("a/b.db")),
            ("sqlite:///a/b.db", sqlite("/a/b.db")),
            ("tidegate.db", sqlite("tidegate.db")),
            ("what?.db", sqlite("what?.db")),
            ("sqlite:a.db?synchronous=normal", set(Some(Synchronous::Normal))),
            ("sqlite:a.db?synchronous=full", set(Some(Synchronous::Full))),
            ("./with:colon.db", sqlite("./with:colon.db")),
            ("postgres://host/db", StoreLocation::Postgres("postgres://host/db".to_owned())),
        ] {
            assert_eq!(StoreLocation::parse(url).unwrap(), place, "{url}");
        }
        for url in [
            "mysql://host/db",
            "redis:",
            "sqlite:",
            "",
            "s3://bucket",
            "sqlite:a.db?",
            "sqlite:a.db?synchronous=off",
            "sqlite:a.db?cache=shared",
            "sqlite:?synchronous=normal",
        ] {
            assert_eq!(StoreLocation::parse(url).unwrap_err().kind(), ErrorKind::Invalid, "{url}");
        }
    }

    #[test]
    fn store_address_omits_password() {
        let shown = |url: &str| StoreLocation::parse(url).unwrap().to_string();
        assert_eq!(shown("postgres://me:secret@host:1/db?password=x"), "postgres://host:1/db");
        assert_eq!(shown("postgresql://host/db"), "postgres://host/db");
        let with_at = "postgres://db:5432/app?user=me&password=p@ss";
        assert_eq!(shown(with_at), "postgres://db:5432/app");
        assert_eq!(shown("a.db"), "sqlite:a.db");
    }

    #[test]
    fn password_is_not_in_errors_or_debug_output() {
        for url in [
            "mysql://me:secret@host/db",
            "postgress://me:se@secret@host/db?password=secret",
            "host=a password=secret",
            "postgres//me:secret@host/db",
            " postgres://me:secret@host/db",
            "\"postgres://me:secret@host/db\"",
        ] {
            let error = StoreLocation::parse(url).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
        let place = StoreLocation::parse("postgres://me:secret@host/db?password=secret").unwrap();
        assert!(!format!("{place:?}").contains("secret"), "{place:?}");
    }

    #[tokio::test]
    async fn open_with_must_exist_does_not_create_store() {
        let options = OpenOptions { must_exist: true, ..OpenOptions::default() };
        let error = open("sqlite:no/such/file.db", options).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
}
