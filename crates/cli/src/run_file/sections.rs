//! Takes a file apart into its sections.

use serde_json::value::RawValue;
use toml::de::DeTable;

use super::node::{Field, Node, toml_fields};
use super::source::{Result, SourceText};

/// The names of the sections.
pub(crate) const SECTIONS: [&str; 6] = ["server", "limit", "kind", "job", "task", "workflow"];

/// One section, such as one `[[task]]`.
#[derive(Debug)]
pub(crate) struct Section<'a> {
    pub(crate) name: &'static str,
    pub(crate) node: Node<'a>,
}

/// The sections of a TOML file.
pub(crate) fn toml<'a>(source: SourceText<'a>, table: &'a DeTable<'a>) -> Result<Vec<Section<'a>>> {
    let mut sections = Vec::new();
    for field in toml_fields(table) {
        add_section(source, field, &mut sections)?;
    }
    Ok(sections)
}

/// The sections of a file of JSON lines.
pub(crate) fn json_lines(source: SourceText<'_>) -> Result<Vec<Section<'_>>> {
    let mut sections = Vec::new();
    let mut start = 0;
    for line in source.text.split_inclusive('\n') {
        let text = line.trim();
        let at = start + (line.len() - line.trim_start().len());
        start += line.len();
        if text.is_empty() {
            continue;
        }
        let raw: &RawValue = serde_json::from_str(text).map_err(|error| {
            let column = error.column().saturating_sub(1);
            source.error(at + column, message_without_position(&error))
        })?;
        let node = Node::Json(raw);
        let fields = node.table(source).ok_or_else(|| {
            source.error(at, "each line is an object such as {\"task\": {\"kind\": \"noop\"}}")
        })?;
        for field in fields {
            add_section(source, field, &mut sections)?;
        }
    }
    Ok(sections)
}

/// serde_json ends its message with a place inside the line, which is not the place in the file.
fn message_without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or(&text).to_owned()
}

/// A section stands alone or in an array.
fn add_section<'a>(
    source: SourceText<'a>,
    field: Field<'a>,
    sections: &mut Vec<Section<'a>>,
) -> Result<()> {
    let Some(name) = SECTIONS.into_iter().find(|name| *name == field.key) else {
        return Err(source.unknown_error(field.at, "section", &field.key, &SECTIONS));
    };
    match field.value.array() {
        Some(items) => sections.extend(items.into_iter().map(|node| Section { name, node })),
        None => sections.push(Section { name, node: field.value }),
    }
    Ok(())
}
