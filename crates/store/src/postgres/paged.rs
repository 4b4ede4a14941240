//! Statements with a number written into their text.

use std::sync::OnceLock;

/// The smallest number, and how often it is doubled at most: no `u32` is above the last.
const MIN: usize = 4;
const DOUBLED: usize = 30;

/// What `{lanes}` stands for, for each of them.
const OF_LANE: &str = include_str!("queries/claim_lane_branch.sql");

/// A plan is made once for all parameters. With a LIMIT as one of them the planner would expect a
/// tenth of the table and sort it; and it merges as many lanes as the text has. So there is a text for
/// each power of two.
pub(super) struct Paged {
    template: &'static str,
    texts: [OnceLock<String>; DOUBLED + 1],
}

impl Paged {
    /// `{page}` stands for the number, and `{lanes}` for the rows of so many lanes.
    pub(super) const fn new(template: &'static str) -> Self {
        Self { template, texts: [const { OnceLock::new() }; DOUBLED + 1] }
    }

    /// The text for at least this number, and for which it is.
    pub(super) fn of(&'static self, at_least: usize) -> (&'static str, usize) {
        let number = |doubled: usize| MIN << doubled;
        let doubled = (0..DOUBLED).find(|doubled| number(*doubled) >= at_least).unwrap_or(DOUBLED);
        let text = self.texts[doubled].get_or_init(|| written(self.template, number(doubled)));
        (text, number(doubled))
    }
}

fn written(template: &str, number: usize) -> String {
    let text = template.replace("{page}", &number.to_string());
    match text.contains("{lanes}") {
        true => text.replace("{lanes}", &lanes(number)),
        false => text,
    }
}

/// The rows of so many lanes, one after the other.
pub(super) fn lanes(number: usize) -> String {
    let each = (1..=number).map(|n| OF_LANE.replace("{n}", &n.to_string()));
    each.collect::<Vec<_>>().join("UNION ALL ")
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

    #[test]
    fn there_are_as_many_lanes_as_are_asked_for() {
        static PAGED: Paged = Paged::new("{lanes}");
        let (text, number) = PAGED.of(5);
        assert_eq!((text.matches("UNION ALL").count(), number), (7, 8));
        assert!(text.contains("lane.ids[1]") && text.contains("lane.ids[8]"));
    }
}
