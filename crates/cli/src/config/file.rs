//! Reads `tidegate.toml`.

use std::path::Path;

use super::settings::{Key, SETTINGS, Setting, sections};
use super::shape::Value;
use crate::file::{self, Field, Source, read_text, toml_fields, toml_table};
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
    Ok(parse(Source { name: &path.display().to_string(), text: &text })?)
}

fn parse(source: Source<'_>) -> file::Result<Vec<Entry>> {
    let table = toml_table(source)?;
    let mut entries = Vec::new();
    walk(source, "", toml_fields(table.get_ref()), &mut entries)?;
    Ok(entries)
}

/// Takes the settings of one section and of those below it.
fn walk(
    source: Source<'_>,
    section: &str,
    fields: Vec<Field<'_>>,
    entries: &mut Vec<Entry>,
) -> file::Result<()> {
    for field in fields {
        let name = joined(section, &field.key);
        if let Some(Setting { key, shape, .. }) = Setting::named(&name) {
            let value = shape.read(source, &name, field.value)?;
            entries.push(Entry { key: *key, value, line: source.line(field.at) });
        } else if sections().contains(&&*name) {
            let inside = field.value.table(source).ok_or_else(|| {
                let text = format!("`{name}` is a table; write [{name}] above its keys");
                source.fault(field.value.at(source), text)
            })?;
            walk(source, &name, inside, entries)?;
        } else {
            return Err(source.fault(field.at, unknown(section, &field.key)));
        }
    }
    Ok(())
}

fn joined(section: &str, key: &str) -> String {
    if section.is_empty() { key.to_owned() } else { format!("{section}.{key}") }
}

/// Says that a key is not known, which one may be meant, and which are known there. A key that
/// belongs into another section is found too.
fn unknown(section: &str, key: &str) -> String {
    let known = known_in(section);
    let everywhere: Vec<&str> = SETTINGS.iter().map(|setting| setting.place().1).collect();
    let meant = match suggest(key, &known) {
        Some(meant) => Some(joined(section, meant)),
        None => suggest(key, &everywhere)
            .and_then(|meant| SETTINGS.iter().find(|setting| setting.place().1 == meant))
            .map(|setting| setting.name.to_owned()),
    };
    let name = joined(section, key);
    let list = known.iter().map(|key| format!("`{}`", joined(section, key)));
    let list = list.collect::<Vec<_>>().join(", ");
    match meant {
        Some(meant) => format!("unknown key `{name}`; did you mean `{meant}`? Known: {list}"),
        None => format!("unknown key `{name}`; known: {list}"),
    }
}

/// The keys of a section; those of the whole file are its sections too.
fn known_in(section: &str) -> Vec<&'static str> {
    let places = SETTINGS.iter().map(Setting::place);
    let mut known: Vec<&str> =
        places.filter(|(place, _)| *place == section).map(|(_, key)| key).collect();
    if section.is_empty() {
        known.extend(sections());
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_table_are_good() {
        for setting in &SETTINGS {
            let text = setting.sample();
            let entries = parse(Source { name: "f", text: &text }).expect(setting.name);
            assert_eq!(entries.len(), 1, "{text}");
            assert_eq!(entries[0].key, setting.key);
        }
    }
}
