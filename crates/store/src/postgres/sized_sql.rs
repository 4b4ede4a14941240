//! Statements with a number written into their text.

use std::sync::OnceLock;

/// The smallest number, and how often it is doubled at most: no `u32` is above the last.
const SIZE_MIN: usize = 4;
const DOUBLINGS_MAX: usize = 30;

/// What `{lanes}` stands for, for each of them.
const CLAIM_LANE_BRANCH: &str = include_str!("queries/claim_lane_branch.sql");

/// A plan is made once for all parameters. With a LIMIT as one of them the planner would expect a
/// tenth of the table and sort it; and it merges as many lanes as the text has. So there is a text for
/// each power of two.
pub(super) struct SizedSql {
    template: &'static str,
    texts: [OnceLock<String>; DOUBLINGS_MAX + 1],
}

impl SizedSql {
    /// `{page}` stands for the number, and `{lanes}` for the rows of so many lanes.
    pub(super) const fn new(template: &'static str) -> Self {
        Self { template, texts: [const { OnceLock::new() }; DOUBLINGS_MAX + 1] }
    }

    /// The text for at least this number, and for which it is.
    pub(super) fn for_size(&'static self, at_least: usize) -> (&'static str, usize) {
        let number = |doubled: usize| SIZE_MIN << doubled;
        let doubled = (0..DOUBLINGS_MAX)
            .find(|doubled| number(*doubled) >= at_least)
            .unwrap_or(DOUBLINGS_MAX);
        let text = self.texts[doubled].get_or_init(|| render(self.template, number(doubled)));
        (text, number(doubled))
    }
}

fn render(template: &str, number: usize) -> String {
    let text = template.replace("{page}", &number.to_string());
    match text.contains("{lanes}") {
        true => text.replace("{lanes}", &lane_branches(number)),
        false => text,
    }
}

/// The rows of so many lanes, one after the other.
pub(super) fn lane_branches(number: usize) -> String {
    let each = (1..=number).map(|n| CLAIM_LANE_BRANCH.replace("{n}", &n.to_string()));
    each.collect::<Vec<_>>().join("UNION ALL ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_size_is_next_power_of_two() {
        static PAGED: SizedSql = SizedSql::new("LIMIT {page}");
        assert_eq!(PAGED.for_size(0), ("LIMIT 4", 4));
        assert_eq!(PAGED.for_size(17), ("LIMIT 32", 32));
        assert_eq!(PAGED.for_size(20_064), ("LIMIT 32768", 32_768));
    }

    #[test]
    fn lane_count_is_rounded_up_to_power_of_two() {
        static PAGED: SizedSql = SizedSql::new("{lanes}");
        let (text, number) = PAGED.for_size(5);
        assert_eq!((text.matches("UNION ALL").count(), number), (7, 8));
        assert!(text.contains("lane.ids[1]") && text.contains("lane.ids[8]"));
    }
}
