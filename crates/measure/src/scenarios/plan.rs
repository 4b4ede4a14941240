//! A plan as the server shows it, and what of it may differ between two runs.

/// What a statement did, and how.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plan {
    pub(super) statement: String,
    pub(super) tasks: u64,
    pub(super) text: String,
}

/// Lines that tell of one run only.
const VOLATILE_LINES: [&str; 11] = [
    "Buffers:",
    "I/O Timings:",
    "Planning",
    "Execution Time:",
    "Sort Method:",
    "Heap Fetches:",
    "Rows Removed by",
    "WAL:",
    "Cache Mode:",
    "Hits:",
    "Batches:",
];

/// It begins a plan in a record.
const PLAN_HEADING: &str = "\n== ";

impl Plan {
    /// Pages that the whole statement asked for, found in memory or not: those of its first node, and of
    /// the parts that nobody reads from, which run when that node has ended.
    fn pages(&self) -> u64 {
        let lines: Vec<&str> = self.text.lines().map(str::trim_start).collect();
        let scanned = |part: &str| {
            lines.iter().any(|line| {
                let name = line.split("CTE Scan on ").nth(1).unwrap_or_default();
                name.split(' ').next() == Some(part)
            })
        };
        let unread = lines.iter().enumerate().filter_map(|(at, line)| {
            let part = line.strip_prefix("CTE ").filter(|part| !part.starts_with("Scan "))?;
            (!scanned(part)).then_some(at + 1)
        });
        std::iter::once(0).chain(unread).map(|node| pages_of(&lines[node..])).sum()
    }

    pub(super) fn pages_per_task(&self) -> f64 {
        let pages = self.pages() as f64 / self.tasks.max(1) as f64;
        (10.0 * pages).round() / 10.0
    }

    /// The nodes and their conditions, without what they met. The server numbers parts of plans, and
    /// not always in the same way.
    fn shape(&self) -> Vec<String> {
        let lines = self.text.lines().filter(|line| {
            let line = line.trim_start();
            !line.is_empty() && !VOLATILE_LINES.iter().any(|start| line.starts_with(start))
        });
        let plain = |line: &str| {
            let line = line.split(" (actual").next().unwrap_or(line).trim_end();
            let line = line.strip_suffix(" (never executed)").unwrap_or(line);
            line.chars().filter(|c| !c.is_ascii_digit()).collect()
        };
        lines.map(plain).collect()
    }

    /// Whether the server goes the same way.
    pub(super) fn has_same_shape(&self, other: &Self) -> bool {
        self.shape() == other.shape()
    }

    /// As it stands in a record.
    pub(super) fn record(&self) -> String {
        let Self { statement, tasks, text } = self;
        let (pages, each) = (self.pages(), self.pages_per_task());
        format!(
            "{PLAN_HEADING}{statement}: {tasks} tasks, {pages} pages, {each} per task\n\n{text}\n"
        )
    }
}

/// The pages of the first node of these lines, with all below it.
fn pages_of(lines: &[&str]) -> u64 {
    let begins_another =
        |line: &&&str| ["->", "CTE ", "InitPlan", "SubPlan"].iter().any(|it| line.starts_with(it));
    let mut own = lines.iter().skip(1).take_while(|line| !begins_another(line));
    let buffers = own.find(|line| line.starts_with("Buffers:")).copied().unwrap_or_default();
    let number = |word: &str| {
        let (name, number) = word.split_once('=')?;
        ["hit", "read"].contains(&name).then(|| number.parse::<u64>().ok())?
    };
    buffers.split_whitespace().filter_map(number).sum()
}

/// The plans of a record.
pub(super) fn parse_plans(record: &str) -> Vec<Plan> {
    let parts = record.split(PLAN_HEADING).skip(1);
    let plan = |part: &str| {
        let (head, text) = part.split_once('\n')?;
        let (statement, rest) = head.split_once(": ")?;
        let tasks = rest.split(' ').next()?.parse().ok()?;
        let text = text.trim_matches('\n').to_owned();
        Some(Plan { statement: statement.to_owned(), tasks, text })
    };
    parts.filter_map(plan).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
Limit (actual time=0.1..0.2 rows=3 loops=1)
  Buffers: shared hit=90 read=10 dirtied=7
  ->  Index Scan using a on b (actual time=0.1..0.2 rows=3 loops=1)
        Index Cond: (c = $1)
        Buffers: shared hit=4
Execution Time: 0.2 ms";

    fn plan(text: &str) -> Plan {
        Plan { statement: "claim".to_owned(), tasks: 8, text: text.to_owned() }
    }

    #[test]
    fn plan_record_round_trips() {
        let plans = vec![plan(TEXT), Plan { statement: "finish".to_owned(), ..plan(TEXT) }];
        let record: Vec<String> = plans.iter().map(Plan::record).collect();
        assert_eq!(parse_plans(&format!("About it.\n{}", record.concat())), plans);
    }

    #[test]
    fn plan_pages_are_of_whole_statement() {
        assert_eq!(plan(TEXT).pages_per_task(), 12.5);
    }

    #[test]
    fn plan_pages_include_unread_parts() {
        let text = "\
Result (actual rows=1 loops=1)
  CTE gone
    ->  Delete on b (actual rows=0 loops=1)
          Buffers: shared hit=50
  CTE taken
    ->  Delete on a (actual rows=3 loops=1)
          Buffers: shared hit=30
  InitPlan 1
    ->  CTE Scan on taken taken_1 (actual rows=3 loops=1)
          Buffers: shared hit=30";
        assert_eq!(plan(text).pages(), 50);
        assert_eq!(plan(&text.replacen('\n', "\n  Buffers: shared hit=30\n", 1)).pages(), 80);
    }

    #[test]
    fn plan_comparison_ignores_counts_and_detects_changed_nodes() {
        let same = TEXT.replace("hit=4", "hit=400").replace("rows=3", "rows=9");
        assert!(plan(TEXT).has_same_shape(&plan(&same)));
        let never = TEXT.replace("b (actual time=0.1..0.2 rows=3 loops=1)", "b (never executed)");
        assert!(plan(TEXT).has_same_shape(&plan(&never)));
        for (old, new) in [("Index Scan using a", "Seq Scan"), ("c = $1", "c > $1")] {
            assert!(!plan(TEXT).has_same_shape(&plan(&TEXT.replace(old, new))));
        }
    }
}
