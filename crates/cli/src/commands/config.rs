use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use tidegate_measure::table::Table;

use crate::cli::{Global, ProfileArg};
use crate::config::{Config, Key, SETTINGS, Setting, Value};
use crate::output::{print, print_json};

/// Shows every setting, its value, and where it comes from
///
/// A flag is stronger than a variable, a variable than the file, the file than a profile, a profile than the default. The
/// password of a store is not shown.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  TIDEGATE_LOG=info tidegate config")]
pub(crate) struct Arguments {
    /// One JSON object per setting
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(crate) profile_arg: ProfileArg,
}

/// A setting as it holds.
#[derive(Debug, Serialize)]
struct EffectiveSetting {
    setting: &'static str,
    value: Value,
    from: String,
}

pub(crate) fn run(global: &Global, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let held: Vec<EffectiveSetting> =
        SETTINGS.iter().map(|setting| effective_setting(global, setting)).collect();
    if arguments.json {
        print_json(&held)?;
    } else {
        print(&table(&held).to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn effective_setting(global: &Global, setting: &Setting) -> EffectiveSetting {
    let config: &Config = &global.config;
    let value = match setting.key {
        Key::Store => Value::Text(global.display_url()),
        key => config.value(key).clone(),
    };
    EffectiveSetting {
        setting: setting.name,
        value,
        from: config.describe_origin(setting).to_string(),
    }
}

fn table(held: &[EffectiveSetting]) -> Table {
    let mut table = Table::new(&["setting", "value", "from"]);
    for EffectiveSetting { setting, value, from } in held {
        table.row(vec![(*setting).to_owned(), format_value(value), from.clone()]);
    }
    table
}

fn format_value(value: &Value) -> String {
    match value {
        Value::Text(text) if text.is_empty() => "-".to_owned(),
        Value::Text(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::List(list) if list.is_empty() => "-".to_owned(),
        Value::List(list) => list.join(","),
        Value::Limits(limits) if limits.is_empty() => "-".to_owned(),
        Value::Limits(limits) => {
            let words: Vec<String> = limits.iter().map(|(name, n)| format!("{name}={n}")).collect();
            words.join(",")
        }
    }
}
