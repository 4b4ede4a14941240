//! Reads the fields of one table, and refuses what it does not know.

use super::node::{Field, Node};
use super::source::{Fault, Result, Source};

/// The fields of one table.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    source: Source<'a>,
    what: &'static str,
    at: usize,
    fields: Vec<Field<'a>>,
}

impl<'a> Fields<'a> {
    /// The fields of a table that may have only the `known` keys. `what` names the table.
    pub(crate) fn of(
        source: Source<'a>,
        what: &'static str,
        node: Node<'a>,
        known: &[&str],
    ) -> Result<Self> {
        let at = node.at(source);
        let fields = node
            .table(source)
            .ok_or_else(|| source.fault(at, format!("{what} is a table, not a {}", node.what())))?;
        for field in &fields {
            if !known.contains(&&*field.key) {
                let what = format!("key of {what}");
                return Err(source.unknown(field.at, &what, &field.key, known));
            }
        }
        Ok(Self { source, what, at, fields })
    }

    /// A fault about the table as a whole.
    pub(crate) fn fault(&self, text: impl Into<String>) -> Fault {
        self.source.fault(self.at, text)
    }

    /// A fault at the value of a key, or at the table if it has no such key.
    pub(crate) fn fault_at(&self, key: &str, text: impl Into<String>) -> Fault {
        let at = self.node(key).map_or(self.at, |node| node.at(self.source));
        self.source.fault(at, text)
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
        self.text(key)?.ok_or_else(|| self.fault(format!("{} needs `{key}`", self.what)))
    }

    /// A whole number between two bounds.
    pub(crate) fn number(&self, key: &str, low: i64, high: i64) -> Result<Option<i64>> {
        let number = self.converted(key, "a whole number", Node::integer)?;
        if let Some(number) = number
            && !(low..=high).contains(&number)
        {
            let text = format!("`{key}` is {number}; it must be between {low} and {high}");
            return Err(self.fault_at(key, text));
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
        let text = || format!("`{key}` is {wanted}, not a {}", node.what());
        convert(node).map(Some).ok_or_else(|| self.fault_at(key, text()))
    }
}
