//! What a setting can be: how it is read from a variable and from a file, and its bounds.

use std::collections::BTreeMap;

use serde::Serialize;
use tidegate_core::bounds::BATCH_MAX;
use tidegate_core::{LimitScope, check_capacity, name};
use tidegate_store::StoreLocation;
use tracing_subscriber::EnvFilter;

use super::profile::Profile;
use crate::kinds;
use crate::run_file::{self, Field, Node, SourceText, unknown_word_message};
use crate::worker::metrics_server;

/// A value of a setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum Value {
    Text(String),
    Number(i64),
    List(Vec<String>),
    /// Capacities by the whole name of the limit.
    Limits(BTreeMap<String, u32>),
}

/// What a setting can be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ValueType {
    /// The URL of a store.
    Store,
    /// How much is told.
    Log,
    /// The name of a profile.
    Profile,
    /// A whole number between two bounds.
    Number { low: i64, high: i64 },
    /// Names of queues.
    Queues,
    /// Names of built-in kinds.
    Kinds,
    /// Where to listen; empty is nowhere.
    Address,
    /// Words that somebody else looks into.
    Strings,
    /// Capacities by group.
    Limits,
}

/// A value, or what is wrong with it; the sentence has no subject yet.
type ReadResult<T> = Result<T, String>;

impl ValueType {
    /// Reads what a variable says. `what` names the variable.
    pub(crate) fn parse(self, what: &str, text: &str) -> ReadResult<Value> {
        match self {
            Self::Store | Self::Log | Self::Address | Self::Profile => {
                self.check_text(text)?;
                Ok(Value::Text(text.to_owned()))
            }
            Self::Number { .. } => {
                let number = text.trim().parse();
                let number = number.map_err(|_| format!("{what} is no whole number: {text:?}"))?;
                self.check_number(what, number)?;
                Ok(Value::Number(number))
            }
            Self::Queues | Self::Kinds | Self::Strings => {
                let list =
                    split_items(text).map(|item| self.check_text(item).map(|()| item.to_owned()));
                Ok(Value::List(list.collect::<ReadResult<_>>()?))
            }
            Self::Limits => {
                let mut limits = LimitsParser::default();
                split_items(text).try_for_each(|item| limits.parse(item))?;
                Ok(Value::Limits(limits.0))
            }
        }
    }

    /// Reads what a file says. `what` is the key.
    pub(crate) fn read(
        self,
        source: SourceText<'_>,
        what: &str,
        node: Node<'_>,
    ) -> run_file::Result<Value> {
        let fault = |node: Node<'_>, text: String| source.error(node.start_offset(source), text);
        let wrong = |node: Node<'_>, wanted: &str| {
            fault(node, format!("`{what}` is {wanted}, not {}", describe_found(node)))
        };
        let text = |node: Node<'_>, wanted: &str| {
            let text = node.text().ok_or_else(|| wrong(node, wanted))?.into_owned();
            self.check_text(&text).map_err(|text| fault(node, text))?;
            Ok(text)
        };
        match self {
            Self::Store | Self::Log | Self::Address | Self::Profile => {
                Ok(Value::Text(text(node, "a string")?))
            }
            Self::Number { .. } => {
                let number = node.integer().ok_or_else(|| wrong(node, "a whole number"))?;
                let checked = self.check_number(&format!("`{what}`"), number);
                checked.map_err(|text| fault(node, text))?;
                Ok(Value::Number(number))
            }
            Self::Queues | Self::Kinds | Self::Strings => {
                const WANTED: &str = "an array of strings";
                let items = node.array().ok_or_else(|| wrong(node, WANTED))?;
                let items = items.into_iter().map(|item| text(item, WANTED));
                Ok(Value::List(items.collect::<run_file::Result<_>>()?))
            }
            Self::Limits => {
                let fields = node.table(source).ok_or_else(|| wrong(node, "a table"))?;
                let mut limits = LimitsParser::default();
                fields.iter().try_for_each(|field| limits.read(source, field))?;
                Ok(Value::Limits(limits.0))
            }
        }
    }

    fn check_text(self, text: &str) -> ReadResult<()> {
        match self {
            Self::Store => {
                StoreLocation::parse(text).map(drop).map_err(|error| without_password(text, &error))
            }
            Self::Log => EnvFilter::try_new(text)
                .map(drop)
                .map_err(|error| format!("{text:?} does not say what to log: {error}")),
            Self::Address if !text.is_empty() => metrics_server::parse_address(text).map(drop),
            Self::Profile if !text.is_empty() && Profile::by_name(text).is_none() => Err(
                unknown_word_message("profile", text, &Profile::ALL.map(|profile| profile.name)),
            ),
            Self::Kinds if !kinds::NAMES.contains(&text) => {
                Err(unknown_word_message("kind", text, &kinds::NAMES))
            }
            Self::Queues => name::check("queue", text).map_err(|error| error.to_string()),
            Self::Strings if text.trim().is_empty() => {
                Err("an item is empty; remove it".to_owned())
            }
            _ => Ok(()),
        }
    }

    fn check_number(self, what: &str, number: i64) -> ReadResult<()> {
        match self {
            Self::Number { low, high } if !(low..=high).contains(&number) => {
                Err(format!("{what} is {number}; it must be between {low} and {high}"))
            }
            _ => Ok(()),
        }
    }
}

/// The items between commas.
fn split_items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

/// What stands there instead of what is wanted. An integer is that only if it has too many digits.
fn describe_found(node: Node<'_>) -> String {
    match node.type_name() {
        "integer" if node.integer().is_none() => "a number of so many digits".to_owned(),
        word if word.starts_with(['a', 'e', 'i', 'o', 'u']) => format!("an {word}"),
        word => format!("a {word}"),
    }
}

/// What is wrong with a URL, without the password that may stand in it.
fn without_password(url: &str, error: &tidegate_core::Error) -> String {
    let text = error.to_string();
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => {
            text.replace(&format!("{url:?}"), &format!("{:?}", format!("{scheme}://{rest}")))
        }
        _ => text,
    }
}

/// Limits as they are read.
#[derive(Default)]
struct LimitsParser(BTreeMap<String, u32>);

impl LimitsParser {
    /// Adds one in the form `NAME=N`.
    fn parse(&mut self, text: &str) -> ReadResult<()> {
        let parts = text.rsplit_once('=').map(|(name, number)| (name.trim(), number.trim()));
        let parts = parts.and_then(|(name, number)| Some((name, number.parse().ok()?)));
        let (name, number) = parts.ok_or_else(|| format!("the limit {text:?} is not NAME=N"))?;
        self.add(name, number)
    }

    /// Adds one as it stands in a file.
    fn read(&mut self, source: SourceText<'_>, field: &Field<'_>) -> run_file::Result<()> {
        let number = field.value.integer().ok_or_else(|| {
            let (key, found) = (&field.key, describe_found(field.value));
            let text = format!("the limit {key:?} is a whole number, not {found}");
            source.error(field.value.start_offset(source), text)
        })?;
        self.add(&field.key, number).map_err(|text| source.error(field.at, text))
    }

    fn add(&mut self, name: &str, number: i64) -> ReadResult<()> {
        let whole = full_limit_name(name)?;
        let capacity = check_capacity(&whole, number).map_err(|error| error.to_string())?;
        if self.0.insert(whole.clone(), capacity).is_some() {
            return Err(format!("the limit {whole:?} is there twice"));
        }
        if self.0.len() > BATCH_MAX {
            return Err(format!("there are more than {BATCH_MAX} limits, the most that may be"));
        }
        Ok(())
    }
}

/// A bare name is that of a group.
fn full_limit_name(name: &str) -> ReadResult<String> {
    let whole = match LimitScope::from_limit_name(name) {
        Some(LimitScope::Group | LimitScope::Job) => name.to_owned(),
        None if !name.starts_with("queue:") => LimitScope::Group.limit_name(name),
        _ => {
            let text = "has a capacity of its own; name a group or job:NAME";
            return Err(format!("the limit {name:?} {text}"));
        }
    };
    let (_, of) = whole.split_once(':').unwrap_or_default();
    name::check("name of the limit", of).map_err(|error| error.to_string())?;
    Ok(whole)
}
