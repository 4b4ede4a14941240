//! The configuration: what the flags, the variables, `tidegate.toml` and the defaults say
//! together. A flag is stronger than a variable, a variable than the file, the file than the
//! default. What can be set is in [`settings`].

mod file;
mod limits;
mod profile;
mod settings;
mod value_type;
mod variables;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) use limits::{
    apply_job_limits, apply_limits, print_overridden_limits, print_replaced_limits,
};
use profile::Profile;
pub(crate) use settings::{FILE_VARIABLE, Key, SETTINGS, Setting, section_names};
use tidegate_store::postgres::Timeouts;
pub(crate) use value_type::{Value, ValueType};

use crate::worker::metrics_server;

/// The file that is read where none is named, if it is there.
pub(crate) const DEFAULT_FILE: &str = "tidegate.toml";

/// What holds.
#[derive(Debug)]
pub(crate) struct Config {
    /// The file that was read.
    file: Option<PathBuf>,
    values: BTreeMap<Key, (Value, Origin)>,
}

/// Who said it, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    Default,
    Profile,
    /// The file, in this line.
    File(usize),
    /// The variable of this name.
    Variable(&'static str),
    Flag,
}

impl Origin {
    /// Whether it was said for this command, and not for all of them.
    pub(crate) fn is_command_specific(self) -> bool {
        matches!(self, Self::Variable(_) | Self::Flag)
    }
}

/// What was typed.
#[derive(Debug)]
pub(crate) struct ConfigFlags<'a> {
    pub(crate) file: Option<&'a Path>,
    pub(crate) store: Option<&'a str>,
    pub(crate) profile: Option<&'a str>,
}

impl Default for Config {
    fn default() -> Self {
        let value = |setting: &Setting| {
            let value = setting.value_type.parse(setting.name, setting.default);
            (setting.key, (value.expect("the table has good defaults"), Origin::Default))
        };
        Self { file: None, values: SETTINGS.iter().map(value).collect() }
    }
}

impl Config {
    /// Reads everything there is.
    pub(crate) fn load(
        flags: &ConfigFlags<'_>,
        variables: &[(OsString, OsString)],
    ) -> anyhow::Result<Self> {
        let mut config = Self::default();
        if let Some(path) = config_file_path(flags.file, variables) {
            for file::Entry { key, value, line } in file::read(&path)? {
                config.set(key, value, Origin::File(line));
            }
            config.file = Some(path);
        }
        for (key, value, variable) in variables::read(variables)? {
            config.set(key, value, Origin::Variable(variable));
        }
        let typed = [
            (Key::Store, ValueType::Store, "--store", flags.store),
            (Key::Profile, ValueType::Profile, "--profile", flags.profile),
        ];
        for (key, shape, flag, text) in typed {
            if let Some(text) = text {
                let value = shape.parse(flag, text).map_err(anyhow::Error::msg)?;
                config.set(key, value, Origin::Flag);
            }
        }
        config.apply_profile();
        Ok(config)
    }

    /// A profile sets what nobody else does.
    fn apply_profile(&mut self) {
        let Some(profile) = Profile::by_name(self.text(Key::Profile)) else { return };
        for (key, number) in
            [(Key::WorkerWorkers, profile.workers), (Key::WorkerConcurrency, profile.concurrency)]
        {
            if self.origin(key) == Origin::Default {
                self.set(key, Value::Number(number), Origin::Profile);
            }
        }
    }

    fn set(&mut self, key: Key, value: Value, origin: Origin) {
        self.values.insert(key, (value, origin));
    }

    /// Who said it.
    pub(crate) fn origin(&self, key: Key) -> Origin {
        self.values[&key].1
    }

    /// The value of a setting.
    pub(crate) fn value(&self, key: Key) -> &Value {
        &self.values[&key].0
    }

    /// The value of a setting that is a text.
    pub(crate) fn text(&self, key: Key) -> &str {
        match self.value(key) {
            Value::Text(text) => text,
            other => unreachable!("{key:?} is no text but {other:?}"),
        }
    }

    /// The value of a setting that is a number. Its bounds keep it within 32 bits.
    pub(crate) fn number(&self, key: Key) -> u32 {
        match self.value(key) {
            Value::Number(number) => u32::try_from(*number).unwrap_or(u32::MAX),
            other => unreachable!("{key:?} is no number but {other:?}"),
        }
    }

    /// The value of a setting that is a list.
    pub(crate) fn list(&self, key: Key) -> &[String] {
        match self.value(key) {
            Value::List(list) => list,
            other => unreachable!("{key:?} is no list but {other:?}"),
        }
    }

    /// The value of a setting that is an address, if there is one.
    pub(crate) fn address(&self, key: Key) -> Option<SocketAddr> {
        metrics_server::parse_address(self.text(key)).ok()
    }

    /// Returns how long the store waits for PostgreSQL.
    pub(crate) fn postgres_timeouts(&self) -> Timeouts {
        let timeout = |key| Duration::from_millis(self.number(key).into());
        Timeouts {
            connect: timeout(Key::PostgresConnect),
            pool_wait: timeout(Key::PostgresPoolWait),
            request: timeout(Key::PostgresRequest),
            heartbeat: timeout(Key::PostgresHeartbeat),
            read: timeout(Key::PostgresRead),
            maintenance: timeout(Key::PostgresMaintenance),
            tcp_keepalive: timeout(Key::PostgresTcpKeepalive),
            tcp_user: timeout(Key::PostgresTcpUser),
        }
    }

    /// Capacities by the whole name of the limit.
    pub(crate) fn limits(&self) -> &BTreeMap<String, u32> {
        match self.value(Key::Limits) {
            Value::Limits(limits) => limits,
            other => unreachable!("the limits are no limits but {other:?}"),
        }
    }

    /// Where the value of a setting comes from, in words.
    pub(crate) fn describe_origin(&self, setting: &Setting) -> impl fmt::Display + use<> {
        match self.origin(setting.key) {
            Origin::Default => "default".to_owned(),
            Origin::File(line) => {
                let file = self.file.as_deref().unwrap_or(Path::new(DEFAULT_FILE));
                format!("{}:{line}", file.display())
            }
            Origin::Profile => format!("profile {}", self.text(Key::Profile)),
            Origin::Variable(name) => name.to_owned(),
            Origin::Flag => {
                let flag = setting.flag.unwrap_or_default();
                flag[flag.find("--").unwrap_or(0)..].to_owned()
            }
        }
    }
}

/// The variables of this process.
pub(crate) fn environment_variables() -> Vec<(OsString, OsString)> {
    let is_alias = |name: &str| SETTINGS.iter().any(|setting| setting.aliases.contains(&name));
    let is_ours = |name: &str| name.starts_with("TIDEGATE_") || is_alias(name);
    std::env::vars_os().filter(|(name, _)| is_ours(&name.to_string_lossy())).collect()
}

/// Says which variables look like a mistyped one.
pub(crate) fn warn_mistyped_variables(variables: &[(OsString, OsString)]) {
    variables::mistyped_notes(variables)
        .iter()
        .for_each(|note| crate::stderr::print_message!("note: {note}"));
}

/// The file that is to be read. A file that is named must be there; an empty name is that of none.
fn config_file_path(flag: Option<&Path>, variables: &[(OsString, OsString)]) -> Option<PathBuf> {
    let variable = || variables.iter().find(|(name, _)| name == FILE_VARIABLE);
    let named = flag.map(PathBuf::from).or_else(|| variable().map(|(_, path)| path.into()));
    match named {
        Some(path) => Some(path).filter(|path| !path.as_os_str().is_empty()),
        None => Some(PathBuf::from(DEFAULT_FILE)).filter(|path| path.exists()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_settings_have_expected_types() {
        let config = Config::default();
        assert_eq!(config.text(Key::Store), "sqlite:tidegate.db");
        assert_eq!(config.text(Key::Log), "warn");
        let numbers =
            [Key::RunConcurrency, Key::WorkerConcurrency, Key::WorkerClaimBatch, Key::LeaseSeconds];
        assert_eq!(numbers.map(|key| config.number(key)), [64, 16, 100, 30]);
        assert_eq!(config.postgres_timeouts(), Timeouts::default());
        let lists = [Key::WorkerQueues, Key::WorkerKinds, Key::HttpAllow, Key::ExecAllow];
        assert!(lists.iter().all(|key| config.list(*key).is_empty()));
        assert!(config.limits().is_empty());
    }

    #[test]
    fn flag_takes_precedence_over_variable() {
        let variables = [("TIDEGATE_STORE".into(), "memory:".into())];
        let load = |store| {
            let flags = ConfigFlags { file: Some(Path::new("")), store, profile: None };
            Config::load(&flags, &variables)
        };
        let by_variable = load(None).unwrap();
        assert_eq!(by_variable.text(Key::Store), "memory:");
        assert_eq!(by_variable.origin(Key::Store), Origin::Variable("TIDEGATE_STORE"));
        let by_flag = load(Some("a.db")).unwrap();
        assert_eq!(by_flag.text(Key::Store), "a.db");
        assert_eq!(by_flag.origin(Key::Store), Origin::Flag);
    }

    #[test]
    fn profile_applies_only_where_nothing_else_is_set() {
        let load = |variables: &[(&str, &str)], profile| {
            let variables: Vec<(OsString, OsString)> =
                variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
            Config::load(
                &ConfigFlags { file: Some(Path::new("")), store: None, profile },
                &variables,
            )
        };
        let held = |config: &Config| {
            [Key::WorkerWorkers, Key::WorkerConcurrency]
                .map(|key| (config.number(key), config.origin(key)))
        };
        let by_variable = load(&[("TIDEGATE_ENV", "staging"), ("WORKERS", "7")], None).unwrap();
        assert_eq!(held(&by_variable), [(7, Origin::Variable("WORKERS")), (3, Origin::Profile)]);
        let by_flag = load(&[("TIDEGATE_ENV", "staging")], Some("production")).unwrap();
        assert_eq!(held(&by_flag), [(100, Origin::Profile), (5, Origin::Profile)]);
        assert_eq!(held(&load(&[], None).unwrap()), [(1, Origin::Default), (16, Origin::Default)]);
        let wrong = load(&[("TIDEGATE_ENV", "prodction")], None).unwrap_err().to_string();
        assert!(wrong.contains("production"), "{wrong}");
    }
}
