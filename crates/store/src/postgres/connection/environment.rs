//! The environment variables that connection settings are read from.

use std::path::PathBuf;

/// The part of the process's environment that connections depend on.
#[derive(Default)]
pub(super) struct Environment {
    pub(super) variables: Vec<(&'static str, String)>,
    pub(super) home: Option<PathBuf>,
}

const VARIABLES: [&str; 7] = [
    "PGSSLMODE",
    "PGSSLROOTCERT",
    "PGSSLCERT",
    "PGSSLKEY",
    "PGPASSWORD",
    "PGPASSFILE",
    "PGSERVICE",
];

impl Environment {
    pub(super) fn of_process() -> Self {
        let read = |name| std::env::var(name).ok().map(|value| (name, value));
        let variables = VARIABLES.into_iter().filter_map(read).collect();
        Self { variables, home: std::env::home_dir() }
    }

    /// Returns the value of a variable. As in libpq, an empty one counts as not set.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let found = self.variables.iter().find(|(variable, _)| *variable == name);
        found.map(|(_, value)| &**value).filter(|value| !value.is_empty())
    }

    pub(super) fn is_empty(&self, name: &str) -> bool {
        self.variables.iter().any(|(variable, value)| *variable == name && value.is_empty())
    }

    /// Returns a file of the home folder.
    pub(super) fn home_file(&self, path: &str) -> Option<PathBuf> {
        self.home.as_ref().map(|home| home.join(path))
    }
}
