//! The text of a run file, and faults that point into it.

use std::fmt;

use crate::suggest::suggest;

/// A file that was read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SourceText<'a> {
    /// Its name, as it was typed.
    pub(crate) name: &'a str,
    /// What is in it.
    pub(crate) text: &'a str,
}

/// Something wrong in a file, and where.
#[derive(Debug)]
pub(crate) struct ParseError {
    name: String,
    line: usize,
    column: usize,
    text: String,
}

/// What reading a part of a file gives.
pub(crate) type Result<T> = std::result::Result<T, ParseError>;

impl SourceText<'_> {
    /// A fault at a byte of the text.
    pub(crate) fn error(&self, at: usize, text: impl Into<String>) -> ParseError {
        let (line, column) = self.line_and_column(at);
        ParseError { name: self.name.to_owned(), line, column, text: text.into() }
    }

    /// A fault about a word that is none of the known ones.
    pub(crate) fn unknown_error(
        &self,
        at: usize,
        what: &str,
        word: &str,
        known: &[&str],
    ) -> ParseError {
        self.error(at, unknown_word_message(what, word, known))
    }

    /// The line of a byte, from 1.
    pub(crate) fn line(&self, at: usize) -> usize {
        self.line_and_column(at).0
    }

    /// Line and column of a byte, both from 1; columns count characters.
    fn line_and_column(&self, at: usize) -> (usize, usize) {
        let at = self.text.floor_char_boundary(at.min(self.text.len()));
        let before = &self.text[..at];
        let line_start = before.rfind('\n').map_or(0, |end| end + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }
}

/// Says that a word is not known, which one may be meant, and which are known.
pub(crate) fn unknown_word_message(what: &str, word: &str, known: &[&str]) -> String {
    let list = known.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
    match suggest(word, known) {
        Some(meant) => format!("unknown {what} `{word}`; did you mean `{meant}`? Known: {list}"),
        None => format!("unknown {what} `{word}`; known: {list}"),
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}:{}: {}", self.name, self.line, self.column, self.text)
    }
}

impl std::error::Error for ParseError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_position_counts_lines_and_characters_from_one() {
        let source = SourceText { name: "f", text: "ä=1\nüb = x\n" };
        assert_eq!(source.error(0, "a").to_string(), "f:1:1: a");
        assert_eq!(source.error(source.text.find('x').unwrap(), "b").to_string(), "f:2:6: b");
        assert_eq!(source.error(1, "inside a character").to_string(), "f:1:1: inside a character");
        assert_eq!(source.error(999, "past the end").to_string(), "f:3:1: past the end");
    }
}
