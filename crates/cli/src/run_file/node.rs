//! One value of a run file, whichever format it is in. Nothing is converted before it is asked
//! for, so a payload stays as it was written and its depth costs nothing here.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::source::{Result, SourceText};

/// A value and where it stands.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Node<'a> {
    /// In TOML.
    Toml(&'a Spanned<DeValue<'a>>),
    /// In JSON; a slice of the file's own text.
    Json(&'a RawValue),
}

/// A key of a table, where the key stands, and its value.
#[derive(Debug)]
pub(crate) struct Field<'a> {
    pub(crate) key: Cow<'a, str>,
    pub(crate) at: usize,
    pub(crate) value: Node<'a>,
}

impl<'a> Node<'a> {
    /// The byte where it begins.
    pub(crate) fn start_offset(self, source: SourceText<'_>) -> usize {
        match self {
            Self::Toml(value) => value.span().start,
            Self::Json(raw) => offset(source, raw.get()),
        }
    }

    /// What it is, in words.
    pub(crate) fn type_name(self) -> &'static str {
        match self {
            Self::Toml(value) => value.get_ref().type_str(),
            Self::Json(raw) => match raw.get().as_bytes().first() {
                Some(b'{') => "table",
                Some(b'[') => "array",
                Some(b'"') => "string",
                Some(b't' | b'f') => "boolean",
                Some(b'n') => "null",
                _ => "number",
            },
        }
    }

    /// Its text, if it is one.
    pub(crate) fn text(self) -> Option<Cow<'a, str>> {
        match self {
            Self::Toml(value) => value.get_ref().as_str().map(Cow::Borrowed),
            Self::Json(raw) => serde_json::from_str::<String>(raw.get()).ok().map(Cow::Owned),
        }
    }

    /// Its number, if it is a whole one.
    pub(crate) fn integer(self) -> Option<i64> {
        match self {
            Self::Toml(value) => {
                let number = value.get_ref().as_integer()?;
                i64::from_str_radix(number.as_str(), number.radix()).ok()
            }
            Self::Json(raw) => serde_json::from_str(raw.get()).ok(),
        }
    }

    /// Its items, if it is an array.
    pub(crate) fn array(self) -> Option<Vec<Node<'a>>> {
        match self {
            Self::Toml(value) => Some(value.get_ref().as_array()?.iter().map(Node::Toml).collect()),
            Self::Json(raw) => {
                let items: Vec<&'a RawValue> = serde_json::from_str(raw.get()).ok()?;
                Some(items.into_iter().map(Node::Json).collect())
            }
        }
    }

    /// Its fields, if it is a table.
    pub(crate) fn table(self, source: SourceText<'_>) -> Option<Vec<Field<'a>>> {
        match self {
            Self::Toml(value) => Some(toml_fields(value.get_ref().as_table()?)),
            Self::Json(raw) => {
                let JsonMembers(members) = serde_json::from_str(raw.get()).ok()?;
                let field = |(key, value): (String, &'a RawValue)| Field {
                    at: key_offset(source, offset(source, value.get())),
                    key: Cow::Owned(key),
                    value: Node::Json(value),
                };
                Some(members.into_iter().map(field).collect())
            }
        }
    }

    /// It as JSON.
    pub(crate) fn json(self, source: SourceText<'_>) -> Result<String> {
        match self {
            Self::Toml(value) => Ok(toml_json(value, source)?.to_string()),
            Self::Json(raw) => Ok(raw.get().to_owned()),
        }
    }
}

/// The fields of a TOML table, in the order of the file.
pub(crate) fn toml_fields<'a>(table: &'a DeTable<'a>) -> Vec<Field<'a>> {
    let field = |(key, value): (&'a Spanned<Cow<'a, str>>, &'a Spanned<DeValue<'a>>)| Field {
        key: Cow::Borrowed(key.get_ref().as_ref()),
        at: key.span().start,
        value: Node::Toml(value),
    };
    let mut fields: Vec<Field<'a>> = table.iter().map(field).collect();
    fields.sort_by_key(|field| field.at);
    fields
}

/// Every part of the JSON text is a slice of the file's text, so its place is the distance.
fn offset(source: SourceText<'_>, part: &str) -> usize {
    (part.as_ptr() as usize).saturating_sub(source.text.as_ptr() as usize)
}

/// The key stands before the colon before its value.
fn key_offset(source: SourceText<'_>, value: usize) -> usize {
    let before = &source.text[..value.min(source.text.len())];
    let key = before.trim_end().trim_end_matches(':').trim_end();
    let inside = &key[..key.len().saturating_sub(1)];
    inside.rfind('"').unwrap_or(value)
}

fn toml_json(value: &Spanned<DeValue<'_>>, source: SourceText<'_>) -> Result<serde_json::Value> {
    use serde_json::Value;
    let node = Node::Toml(value);
    let bad = |what: &str| source.error(value.span().start, format!("{what} cannot be JSON"));
    Ok(match value.get_ref() {
        DeValue::String(text) => Value::from(text.as_ref()),
        DeValue::Integer(_) => Value::from(node.integer().ok_or_else(|| bad("this number"))?),
        DeValue::Float(number) => {
            let number: f64 = number.as_str().parse().map_err(|_| bad("this number"))?;
            serde_json::Number::from_f64(number).ok_or_else(|| bad("this number"))?.into()
        }
        DeValue::Boolean(truth) => Value::from(*truth),
        DeValue::Datetime(time) => Value::from(time.to_string()),
        DeValue::Array(items) => {
            items.iter().map(|item| toml_json(item, source)).collect::<Result<Vec<_>>>()?.into()
        }
        DeValue::Table(table) => {
            let member = |(key, value): (&Spanned<Cow<'_, str>>, &Spanned<DeValue<'_>>)| {
                Ok((key.get_ref().to_string(), toml_json(value, source)?))
            };
            Value::Object(table.iter().map(member).collect::<Result<_>>()?)
        }
    })
}

/// The members of a JSON object, in order; a repeated key is an error.
struct JsonMembers<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for JsonMembers<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(
                self,
                mut map: M,
            ) -> std::result::Result<Self::Value, M::Error> {
                let mut seen = BTreeMap::new();
                let mut members = Vec::new();
                while let Some((key, value)) = map.next_entry::<String, &'de RawValue>()? {
                    if seen.insert(key.clone(), ()).is_some() {
                        return Err(serde::de::Error::custom(format!("the key {key:?} twice")));
                    }
                    members.push((key, value));
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(Reader).map(JsonMembers)
    }
}
