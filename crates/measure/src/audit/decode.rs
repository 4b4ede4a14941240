//! Reads the messages of `pgoutput`, the server's own plugin for logical decoding, version 1.

use std::collections::HashMap;

use anyhow::{Context as _, bail};

/// What a message says, as far as the audit needs it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change<'a> {
    /// A row of a table is there now, or is different.
    Put { table: &'a str, key: Option<Row<'a>>, row: Row<'a> },
    /// A row is gone; only the columns of its key are known.
    Removed { table: &'a str, key: Row<'a> },
    /// Everything since the last commit is committed, at this place of the log.
    Commit { lsn: u64 },
}

/// The columns of a row, by their names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Row<'a> {
    columns: &'a [String],
    cells: Vec<Cell<'a>>,
}

/// A value as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cell<'a> {
    Null,
    /// It was stored apart and stays as it was.
    Unchanged,
    Text(&'a str),
}

impl<'a> Row<'a> {
    pub(super) fn cell(&self, column: &str) -> anyhow::Result<Cell<'a>> {
        let place = self.columns.iter().position(|name| name == column);
        let cell = place.and_then(|place| self.cells.get(place).copied());
        cell.with_context(|| format!("the server's log has no column {column}"))
    }

    pub(super) fn number(&self, column: &str) -> anyhow::Result<i64> {
        self.cell(column)?.number()?.with_context(|| format!("column {column} is empty"))
    }
}

impl Cell<'_> {
    pub(super) fn number(&self) -> anyhow::Result<Option<i64>> {
        match self {
            Cell::Text(text) => Ok(Some(text.parse().with_context(|| format!("read {text:?}"))?)),
            Cell::Null | Cell::Unchanged => Ok(None),
        }
    }

    /// An array of numbers, such as `{1,2}`; none where it stays as it was.
    pub(super) fn numbers(&self) -> anyhow::Result<Option<Vec<i64>>> {
        let Cell::Text(text) = self else {
            return Ok(None);
        };
        let inside = text.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
        let inside = inside.with_context(|| format!("{text:?} is no array"))?;
        let numbers = inside.split(',').filter(|number| !number.is_empty());
        let numbers: Result<Vec<i64>, _> = numbers.map(str::parse).collect();
        Ok(Some(numbers.with_context(|| format!("read {text:?}"))?))
    }
}

/// Remembers which tables there are.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    tables: HashMap<u32, Table>,
}

#[derive(Debug)]
struct Table {
    name: String,
    columns: Vec<String>,
}

impl Decoder {
    /// Reads one message; none if it says nothing of rows.
    pub(super) fn decode<'a>(
        &'a mut self,
        message: &'a [u8],
    ) -> anyhow::Result<Option<Change<'a>>> {
        let mut bytes = Bytes(message);
        match bytes.byte()? {
            b'R' => {
                self.add_table(&mut bytes)?;
                Ok(None)
            }
            b'I' => {
                let table = self.table(bytes.u32()?)?;
                bytes.expect(b'N')?;
                let row = bytes.row(&table.columns)?;
                Ok(Some(Change::Put { table: &table.name, key: None, row }))
            }
            b'U' => {
                let table = self.table(bytes.u32()?)?;
                let mut key = None;
                let mut sort = bytes.byte()?;
                if matches!(sort, b'K' | b'O') {
                    key = Some(bytes.row(&table.columns)?);
                    sort = bytes.byte()?;
                }
                anyhow::ensure!(sort == b'N', "an update without its row");
                let row = bytes.row(&table.columns)?;
                Ok(Some(Change::Put { table: &table.name, key, row }))
            }
            b'D' => {
                let table = self.table(bytes.u32()?)?;
                // Whether it is the key or the whole row.
                bytes.byte()?;
                let key = bytes.row(&table.columns)?;
                Ok(Some(Change::Removed { table: &table.name, key }))
            }
            b'C' => {
                // Flags, which are not used.
                bytes.byte()?;
                Ok(Some(Change::Commit { lsn: bytes.u64()? }))
            }
            b'T' => bail!("a table was truncated under the audit"),
            // A beginning, an origin, a type.
            _ => Ok(None),
        }
    }

    fn add_table(&mut self, bytes: &mut Bytes<'_>) -> anyhow::Result<()> {
        let id = bytes.u32()?;
        let _schema = bytes.text_to_zero()?;
        let name = bytes.text_to_zero()?.to_owned();
        let _identity = bytes.byte()?;
        let mut columns = Vec::new();
        for _ in 0..bytes.u16()? {
            let _flags = bytes.byte()?;
            columns.push(bytes.text_to_zero()?.to_owned());
            let (_type, _modifier) = (bytes.u32()?, bytes.u32()?);
        }
        self.tables.insert(id, Table { name, columns });
        Ok(())
    }

    fn table(&self, id: u32) -> anyhow::Result<&Table> {
        self.tables.get(&id).context("the server's log has a row of an unknown table")
    }
}

/// What is left of a message.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, length: usize) -> anyhow::Result<&'a [u8]> {
        let (taken, rest) =
            self.0.split_at_checked(length).context("a message of the server's log is cut off")?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> anyhow::Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn expect(&mut self, byte: u8) -> anyhow::Result<()> {
        anyhow::ensure!(self.byte()? == byte, "a message of the server's log is not understood");
        Ok(())
    }

    fn u16(&mut self) -> anyhow::Result<u16> {
        Ok(u16::from_be_bytes(self.take(2)?.try_into()?))
    }

    fn u32(&mut self) -> anyhow::Result<u32> {
        Ok(u32::from_be_bytes(self.take(4)?.try_into()?))
    }

    fn u64(&mut self) -> anyhow::Result<u64> {
        Ok(u64::from_be_bytes(self.take(8)?.try_into()?))
    }

    fn text_to_zero(&mut self) -> anyhow::Result<&'a str> {
        let length = self.0.iter().position(|byte| *byte == 0).context("a name without an end")?;
        let text = std::str::from_utf8(self.take(length)?)?;
        self.byte()?;
        Ok(text)
    }

    fn row(&mut self, columns: &'a [String]) -> anyhow::Result<Row<'a>> {
        let mut cells = Vec::with_capacity(columns.len());
        for _ in 0..self.u16()? {
            cells.push(match self.byte()? {
                b'n' => Cell::Null,
                b'u' => Cell::Unchanged,
                b't' => {
                    let length = self.u32()? as usize;
                    Cell::Text(std::str::from_utf8(self.take(length)?)?)
                }
                _ => bail!("a value of the server's log is not text"),
            });
        }
        Ok(Row { columns, cells })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Table 7, `slots`, with two columns.
    fn decoder() -> Decoder {
        let mut message = b"R\0\0\0\x07tidegate\0slots\0d\0\x02".to_vec();
        message.extend(b"\x01limit_id\0\0\0\0\x14\xff\xff\xff\xff");
        message.extend(b"\0tasks\0\0\0\0\x14\xff\xff\xff\xff");
        let mut decoder = Decoder::default();
        assert_eq!(decoder.decode(&message).unwrap(), None);
        decoder
    }

    #[test]
    fn insert_is_decoded_by_column_names() {
        let mut decoder = decoder();
        let insert = b"I\0\0\0\x07N\0\x02t\0\0\0\x0212t\0\0\0\x05{3,4}";
        let Some(Change::Put { table, key: None, row }) = decoder.decode(insert).unwrap() else {
            panic!("an insert puts a row");
        };
        assert_eq!(table, "slots");
        assert_eq!(row.number("limit_id").unwrap(), 12);
        assert_eq!(row.cell("tasks").unwrap().numbers().unwrap(), Some(vec![3, 4]));
        assert!(row.cell("other").is_err());
    }

    #[test]
    fn unchanged_column_is_distinguished_from_null() {
        let mut decoder = decoder();
        let update = b"U\0\0\0\x07N\0\x02nu";
        let Some(Change::Put { row, .. }) = decoder.decode(update).unwrap() else {
            panic!("an update puts a row");
        };
        assert_eq!(row.cell("limit_id").unwrap(), Cell::Null);
        assert_eq!(row.cell("tasks").unwrap(), Cell::Unchanged);
    }

    #[test]
    fn update_of_key_has_old_key_and_new_row() {
        let mut decoder = decoder();
        let update = b"U\0\0\0\x07K\0\x02t\0\0\0\x011nN\0\x02t\0\0\0\x012n";
        let Some(Change::Put { key: Some(key), row, .. }) = decoder.decode(update).unwrap() else {
            panic!("an update of the key has both");
        };
        assert_eq!((key.number("limit_id").unwrap(), row.number("limit_id").unwrap()), (1, 2));
    }

    #[test]
    fn commit_is_decoded_with_its_lsn() {
        let mut decoder = Decoder::default();
        let commit = b"C\0\0\0\0\0\0\0\x01\x02\0\0\0\0\0\0\x01\x03\0\0\0\0\0\0\0\0";
        assert_eq!(decoder.decode(commit).unwrap(), Some(Change::Commit { lsn: 0x102 }));
        assert!(decoder.decode(b"C\0").is_err());
    }
}
