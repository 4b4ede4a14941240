//! Statements whose LIMIT is written into their text.

use std::sync::OnceLock;

/// The smallest LIMIT, and how often it is doubled at most: no `u32` is above the last.
const ROWS_MIN: usize = 4;
const DOUBLED: usize = 30;

/// A plan is made once for all parameters. With the LIMIT as one of them the planner would
/// expect a tenth of the table and sort it; so there is a text for each power of two.
pub(super) struct Paged {
    template: &'static str,
    texts: OnceLock<Vec<String>>,
}

impl Paged {
    /// `{page}` stands for the number.
    pub(super) const fn new(template: &'static str) -> Self {
        Self { template, texts: OnceLock::new() }
    }

    /// The text for at least so many rows, and for how many it is.
    pub(super) fn of(&'static self, rows: usize) -> (&'static str, usize) {
        let limit = |doubled: usize| ROWS_MIN << doubled;
        let texts = self.texts.get_or_init(|| {
            let text = |doubled| self.template.replace("{page}", &format!("{}", limit(doubled)));
            (0..=DOUBLED).map(text).collect()
        });
        let doubled = (0..DOUBLED).find(|doubled| limit(*doubled) >= rows).unwrap_or(DOUBLED);
        (&texts[doubled], limit(doubled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_power_of_two_is_taken() {
        static PAGED: Paged = Paged::new("LIMIT {page}");
        assert_eq!(PAGED.of(0), ("LIMIT 4", 4));
        assert_eq!(PAGED.of(17), ("LIMIT 32", 32));
        assert_eq!(PAGED.of(20_064), ("LIMIT 32768", 32_768));
    }
}
