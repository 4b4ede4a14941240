//! Reads the fields of one table, and refuses what it does not know.

use super::node::{Field, Node};
use super::source::{ParseError, Result, SourceText};

/// The fields of one table.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    source: SourceText<'a>,
    what: &'static str,
    at: usize,
    fields: Vec<Field<'a>>,
}

impl<'a> Fields<'a> {
    /// The fields of a table that may have only the `known` keys. `what` names the table.
    pub(crate) fn from_node(
        source: SourceText<'a>,
        what: &'static str,
        node: Node<'a>,
        known: &[&str],
    ) -> Result<Self> {
        let at = node.start_offset(source);
        let fields = node.table(source).ok_or_else(|| {
            source.error(at, format!("{what} is a table, not a {}", node.type_name()))
        })?;
        for field in &fields {
            if !known.contains(&&*field.key) {
                let what = format!("key of {what}");
                return Err(source.unknown_error(field.at, &what, &field.key, known));
            }
        }
        Ok(Self { source, what, at, fields })
    }

    /// A fault about the table as a whole.
    pub(crate) fn error(&self, text: impl Into<String>) -> ParseError {
        self.source.error(self.at, text)
    }

    /// A fault at the value of a key, or at the table if it has no such key.
    pub(crate) fn error_at(&self, key: &str, text: impl Into<String>) -> ParseError {
        let at = self.node(key).map_or(self.at, |node| node.start_offset(self.source));
        self.source.error(at, text)
    }

    /// The value of a key.
    pub(crate) fn node(&self, key: &str) -> Option<Node<'a>> {
        self.fields.iter().find(|field| field.key == key).map(|field| field.value)
    }

    /// A text.
    pub(crate) fn text(&self, key: &str) -> Result<Option<String>> {
        self.converted(key, "a string", |node| node.text().map(|text| text.into_owned()))
    }

    /// A text that must be there.
    pub(crate) fn required_text(&self, key: &str) -> Result<String> {
        self.text(key)?.ok_or_else(|| self.error(format!("{} needs `{key}`", self.what)))
    }

    /// A whole number between two bounds.
    pub(crate) fn number(&self, key: &str, low: i64, high: i64) -> Result<Option<i64>> {
        let number = self.converted(key, "a whole number", Node::integer)?;
        if let Some(number) = number
            && !(low..=high).contains(&number)
        {
            let text = format!("`{key}` is {number}; it must be between {low} and {high}");
            return Err(self.error_at(key, text));
        }
        Ok(number)
    }

    /// An array.
    pub(crate) fn array(&self, key: &str) -> Result<Option<Vec<Node<'a>>>> {
        self.converted(key, "an array", Node::array)
    }

    fn converted<T>(
        &self,
        key: &str,
        wanted: &str,
        convert: impl Fn(Node<'a>) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(node) = self.node(key) else {
            return Ok(None);
        };
        let text = || format!("`{key}` is {wanted}, not a {}", node.type_name());
        convert(node).map(Some).ok_or_else(|| self.error_at(key, text()))
    }
}
