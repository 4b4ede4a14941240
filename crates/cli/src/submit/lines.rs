//! The lines of standard input, one after another.

use std::io::{BufRead as _, BufReader, Read};

use anyhow::{Context as _, anyhow, bail};
use tidegate_core::bounds::PAYLOAD_BYTES_MAX;

/// Bytes that are read ahead.
const READ_BUFFER_BYTES: usize = 64 << 10;

/// A line that is not blank.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// Its number, from 1; blank lines count too.
    pub(crate) number: u64,
    pub(crate) text: String,
}

/// Reads lines and keeps none.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    reader: BufReader<R>,
    number: u64,
}

impl<R: Read> Lines<R> {
    pub(crate) fn new(input: R) -> Self {
        Self { reader: BufReader::with_capacity(READ_BUFFER_BYTES, input), number: 0 }
    }

    /// The next line that is not blank.
    pub(crate) fn next(&mut self) -> anyhow::Result<Option<Line>> {
        loop {
            let Some(text) = self.read_line()? else { return Ok(None) };
            if !text.trim().is_empty() {
                return Ok(Some(Line { number: self.number, text }));
            }
        }
    }

    /// Whether there was any line so far, a blank one included.
    pub(crate) fn has_lines(&self) -> bool {
        // The end counts as one that is not there.
        self.number > 1
    }

    /// Whether something was read ahead. Without it the next line may take any time.
    pub(crate) fn has_buffered(&self) -> bool {
        !self.reader.buffer().is_empty()
    }

    fn read_line(&mut self) -> anyhow::Result<Option<String>> {
        self.number += 1;
        let number = self.number;
        let mut bytes = Vec::new();
        let most = PAYLOAD_BYTES_MAX as u64 + 2;
        (&mut self.reader).take(most).read_until(b'\n', &mut bytes).context("read stdin")?;
        if bytes.is_empty() {
            return Ok(None);
        }
        for end in [b'\n', b'\r'] {
            if bytes.last() == Some(&end) {
                bytes.pop();
            }
        }
        if bytes.len() > PAYLOAD_BYTES_MAX {
            bail!(
                "line {number}: it has more than {PAYLOAD_BYTES_MAX} bytes, the most there may be"
            );
        }
        let text = String::from_utf8(bytes).map_err(|bad| {
            let at = bad.utf8_error().valid_up_to() + 1;
            anyhow!("line {number}: it is not UTF-8 from byte {at} on")
        })?;
        Ok(Some(text))
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    /// The lines, and the error that ended them.
    fn all(input: &[u8]) -> (Vec<(u64, String)>, String) {
        let mut lines = Lines::new(input);
        let mut good = Vec::new();
        loop {
            match lines.next() {
                Ok(Some(line)) => good.push((line.number, line.text)),
                Ok(None) => return (good, String::new()),
                Err(error) => return (good, error.to_string()),
            }
        }
    }

    #[test]
    fn blank_lines_are_skipped_but_numbered() {
        let (lines, error) = all(b"a\r\n\n  \nb c\n\n\xc3\xbc");
        let expected = [(1, "a"), (4, "b c"), (6, "\u{fc}")];
        assert_eq!(lines, expected.map(|(number, text)| (number, text.to_owned())));
        assert_eq!(error, "");
        assert_eq!(all(b""), (Vec::new(), String::new()));
    }

    #[test]
    fn input_line_length_is_bounded() {
        let full = "x".repeat(PAYLOAD_BYTES_MAX);
        assert_eq!(all(format!("{full}\n").as_bytes()).0.len(), 1);
        let (lines, error) = all(format!("a\n{full}x\nb\n").as_bytes());
        assert_eq!(lines.len(), 1);
        assert!(error.starts_with("line 2: ") && error.contains("1048576"), "{error}");
        assert_snapshot!(error, @"line 2: it has more than 1048576 bytes, the most there may be");
        let endless = std::io::repeat(b'x');
        Lines::new(endless).next().unwrap_err();
    }

    #[test]
    fn input_that_is_not_utf8_is_rejected() {
        let (lines, error) = all(b"a\nb\xff\n");
        assert_eq!(lines.len(), 1);
        assert!(error.starts_with("line 2: ") && error.contains("byte 2"), "{error}");
        assert_snapshot!(error, @"line 2: it is not UTF-8 from byte 2 on");
    }
}
