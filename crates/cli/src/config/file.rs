//! Reads `tidegate.toml`.

use std::path::Path;

use super::settings::{Key, SETTINGS, Setting, section_names};
use super::value_type::Value;
use crate::run_file::{self, Field, SourceText, read_text, toml_fields, toml_table};
use crate::suggest::suggest;

/// A configuration may have so many bytes.
const BYTES_MAX: u64 = 1 << 20;

/// What the file says about one setting, and in which line.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) key: Key,
    pub(crate) value: Value,
    pub(crate) line: usize,
}

/// Reads and checks the file.
pub(crate) fn read(path: &Path) -> anyhow::Result<Vec<Entry>> {
    let text = read_text(path, "a configuration", BYTES_MAX)?;
    Ok(parse(SourceText { name: &path.display().to_string(), text: &text })?)
}

fn parse(source: SourceText<'_>) -> run_file::Result<Vec<Entry>> {
    let table = toml_table(source)?;
    let mut entries = Vec::new();
    collect_entries(source, "", toml_fields(table.get_ref()), &mut entries)?;
    Ok(entries)
}

/// Takes the settings of one section and of those below it.
fn collect_entries(
    source: SourceText<'_>,
    section: &str,
    fields: Vec<Field<'_>>,
    entries: &mut Vec<Entry>,
) -> run_file::Result<()> {
    for field in fields {
        let name = full_key(section, &field.key);
        if let Some(Setting { key, value_type: shape, .. }) = Setting::by_name(&name) {
            let value = shape.read(source, &name, field.value)?;
            entries.push(Entry { key: *key, value, line: source.line(field.at) });
        } else if section_names().contains(&&*name) {
            let inside = field.value.table(source).ok_or_else(|| {
                let text = format!("`{name}` is a table; write [{name}] above its keys");
                source.error(field.value.start_offset(source), text)
            })?;
            collect_entries(source, &name, inside, entries)?;
        } else {
            return Err(source.error(field.at, unknown_key_message(section, &field.key)));
        }
    }
    Ok(())
}

fn full_key(section: &str, key: &str) -> String {
    if section.is_empty() { key.to_owned() } else { format!("{section}.{key}") }
}

/// Says that a key is not known, which one may be meant, and which are known there. A key that
/// belongs into another section is found too.
fn unknown_key_message(section: &str, key: &str) -> String {
    let known = keys_in(section);
    let everywhere: Vec<&str> =
        SETTINGS.iter().map(|setting| setting.section_and_key().1).collect();
    let meant = match suggest(key, &known) {
        Some(meant) => Some(full_key(section, meant)),
        None => suggest(key, &everywhere)
            .and_then(|meant| SETTINGS.iter().find(|setting| setting.section_and_key().1 == meant))
            .map(|setting| setting.name.to_owned()),
    };
    let name = full_key(section, key);
    let list = known.iter().map(|key| format!("`{}`", full_key(section, key)));
    let list = list.collect::<Vec<_>>().join(", ");
    match meant {
        Some(meant) => format!("unknown key `{name}`; did you mean `{meant}`? Known: {list}"),
        None => format!("unknown key `{name}`; known: {list}"),
    }
}

/// The keys of a section; those of the whole file are its sections too.
fn keys_in(section: &str) -> Vec<&'static str> {
    let places = SETTINGS.iter().map(Setting::section_and_key);
    let mut known: Vec<&str> =
        places.filter(|(place, _)| *place == section).map(|(_, key)| key).collect();
    if section.is_empty() {
        known.extend(section_names());
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_table_samples_parse() {
        for setting in &SETTINGS {
            let text = setting.example_file();
            let entries = parse(SourceText { name: "f", text: &text }).expect(setting.name);
            assert_eq!(entries.len(), 1, "{text}");
            assert_eq!(entries[0].key, setting.key);
        }
    }
}
