//! Aligned columns for people.

use std::fmt;

/// Rows of cells, printed with every column as wide as its widest cell.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these column heads.
    pub fn new(heads: &[&str]) -> Self {
        Self { rows: vec![heads.iter().map(|head| (*head).to_owned()).collect()] }
    }

    /// Adds a row; it has as many cells as there are heads.
    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.rows[0].len());
        self.rows.push(cells.iter().map(|cell| printable(cell)).collect());
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths = vec![0; self.rows[0].len()];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        widths
    }
}

impl fmt::Display for Table {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        for row in &self.rows {
            let mut line = String::new();
            for ((place, cell), width) in row.iter().enumerate().zip(&widths) {
                line.push_str(&aligned(place, cell, *width));
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// The first column holds names and starts at the left; numbers end at the right.
fn aligned(place: usize, cell: &str, width: usize) -> String {
    if place == 0 { format!("{cell:<width$}") } else { format!("  {cell:>width$}") }
}

/// A text that does not move the cursor, and does not turn what stands beside it around.
pub fn printable(text: &str) -> String {
    let turns = |c: char| matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut printable = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() || turns(c) {
            true => printable.extend(c.escape_default()),
            false => printable.push(c),
        }
    }
    printable
}

/// A whole number with its thousands apart.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// How many there are of something, such as `1 task` and `2 tasks`.
pub fn counted(number: u64, noun: &str) -> String {
    let end = if number == 1 { "" } else { "s" };
    format!("{} {noun}{end}", grouped(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_cell_escapes_control_characters() {
        let mut table = Table::new(&["name", "error"]);
        table.row(vec!["\u{202e}eman".into(), "a\nb\u{1b}[2J".into()]);
        let wanted = "name                  error\n\\u{202e}eman  a\\nb\\u{1b}[2J\n";
        assert_eq!(table.to_string(), wanted);
        assert_eq!(printable("Zoë, 你好, עברית"), "Zoë, 你好, עברית");
    }

    #[test]
    fn number_is_grouped_by_thousands() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_000), "1,000");
        assert_eq!(grouped(12_345_678), "12,345,678");
    }

    #[test]
    fn count_of_one_is_singular() {
        assert_eq!([0, 1, 1_000].map(|n| counted(n, "task")), ["0 tasks", "1 task", "1,000 tasks"]);
    }

    #[test]
    fn table_column_is_as_wide_as_widest_cell() {
        let mut table = Table::new(&["name", "n"]);
        table.row(vec!["a".into(), "100".into()]);
        assert_eq!(table.to_string(), "name    n\na     100\n");
    }
}
