//! Texts with places for the line.

use anyhow::{Context as _, anyhow};

/// Stands for the line.
pub(crate) const LINE_PLACEHOLDER: &str = "{}";

/// What makes a payload of a line.
#[derive(Debug)]
pub(crate) enum PayloadTemplate {
    /// The line is the payload.
    Line,
    /// The line goes between the parts of a JSON text. Every gap is inside of a string, so an
    /// empty object stays one, and whatever the line is, the whole stays JSON.
    Parts(Vec<String>),
}

impl PayloadTemplate {
    /// Finds the places in the strings of a JSON text.
    pub(crate) fn parse(json: &str) -> anyhow::Result<Self> {
        serde_json::from_str::<serde::de::IgnoredAny>(json).context("the payload is not JSON")?;
        let mut parts = vec![String::new()];
        let (mut is_string, mut rest) = (false, json);
        while let Some(next) = rest.chars().next() {
            let mut length = next.len_utf8();
            if is_string && rest.starts_with(LINE_PLACEHOLDER) {
                parts.push(String::new());
                rest = &rest[LINE_PLACEHOLDER.len()..];
                continue;
            }
            match next {
                '"' => is_string = !is_string,
                // What is escaped is one sign with its backslash.
                '\\' => length += 1,
                _ => {}
            }
            let (taken, left) = rest.split_at(length);
            if let Some(part) = parts.last_mut() {
                part.push_str(taken);
            }
            rest = left;
        }
        Ok(Self::Parts(parts))
    }

    /// Whether two lines make two payloads.
    pub(crate) fn has_placeholder(&self) -> bool {
        match self {
            Self::Line => true,
            Self::Parts(parts) => parts.len() > 1,
        }
    }

    /// The payload of a line.
    pub(crate) fn fill(&self, line: &str) -> String {
        match self {
            Self::Line => line.to_owned(),
            Self::Parts(parts) => {
                let quoted = serde_json::Value::from(line).to_string();
                parts.join(&quoted[1..quoted.len() - 1])
            }
        }
    }

    /// What is wrong with the payload of a line, and what to do about it.
    pub(crate) fn explain(&self, error: &anyhow::Error) -> anyhow::Error {
        let error = format!("{error:#}");
        match self {
            // The payload has no other line than the one that is told already.
            Self::Line => anyhow!(
                "{}; without --payload the line is the payload, as JSON: --payload \
                 '{{\"row\": \"{LINE_PLACEHOLDER}\"}}' puts it into one as text",
                error.replace(" at line 1 column ", " at column ")
            ),
            Self::Parts(_) => anyhow!(
                "{error}; {LINE_PLACEHOLDER} puts the line in as text: where it is to be a number or an object, make \
                 it the whole payload and leave --payload out"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(json: &str, line: &str) -> String {
        PayloadTemplate::parse(json).unwrap().fill(line)
    }

    #[test]
    fn template_inserts_text_only_inside_strings() {
        assert_eq!(filled(r#"{"a":["echo","{}"],"b":{}}"#, "x"), r#"{"a":["echo","x"],"b":{}}"#);
        assert_eq!(filled(r#""{}-{}""#, "7"), r#""7-7""#);
        assert_eq!(filled(r#""{}""#, "a\"b\\\u{1}\u{fc}"), "\"a\\\"b\\\\\\u0001\u{fc}\"");
        assert_eq!(filled(r#""{}""#, "\",\"x\":{}"), r#""\",\"x\":{}""#);
        assert_eq!(filled(r#"["\"{}","\\",{}]"#, "x"), r#"["\"x","\\",{}]"#);
        assert_eq!(filled("12345678901234567890.50", "x"), "12345678901234567890.50");
        assert!(!PayloadTemplate::parse("[{}]").unwrap().has_placeholder());
        PayloadTemplate::parse("{}}").unwrap_err();
    }

    /// Whatever the line, the payload is JSON with the line in it.
    #[test]
    fn template_accepts_any_text() {
        for line in ["", "{}", "\\", "\"", "\u{0}", "\u{2028}", "a\tb", "🦀"] {
            let filled: Vec<String> = serde_json::from_str(&filled(r#"["{}"]"#, line)).unwrap();
            assert_eq!(filled, [line]);
        }
    }
}
