//! The pages of the reference that are made from the code.

mod commands;
mod configuration;
mod metrics;

use clap::ValueEnum;

/// Which page.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Page {
    /// Every command, from what can be typed.
    Commands,
    /// Every setting, from the table of settings.
    Configuration,
    /// Every metric, from the table of metrics.
    Metrics,
}

impl Page {
    /// The page as Markdown.
    pub(crate) fn to_markdown(self) -> String {
        let page = match self {
            Self::Commands => commands::page(),
            Self::Configuration => configuration::page(),
            Self::Metrics => metrics::page(),
        };
        format!("{GENERATED_NOTE}\n\n{page}")
    }
}

/// Who edits the page should edit the code.
const GENERATED_NOTE: &str = "<!-- Made from the code. `TIDEGATE_BLESS=1 cargo test -p tidegate-cli --test docs \
                    reference` writes it again. -->";

/// A row of a table. What Markdown would take for its own is escaped, except inside of code.
fn table_row(cells: &[&str]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| escaped(cell)).collect();
    format!("| {} |\n", cells.join(" | "))
}

/// A text in which only what stands between backticks is not for reading.
fn escaped(text: &str) -> String {
    let part = |(place, part): (usize, &str)| match place % 2 {
        0 => part.replace('|', "\\|").replace('*', "\\*").replace('<', "\\<"),
        _ => part.replace('|', "\\|"),
    };
    text.split('`').enumerate().map(part).collect::<Vec<_>>().join("`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_cell_escapes_markdown() {
        assert_eq!(table_row(&["a|b", "* `*`", ""]), "| a\\|b | \\* `*` |  |\n");
    }
}
