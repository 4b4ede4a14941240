//! Shows how far a run has come: bars on a terminal, a line now and then elsewhere.

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use tidegate_engine::time;

use crate::stderr::print_message;

/// Between two lines where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// The progress of a run.
pub(crate) struct Progress {
    totals: BTreeMap<String, u64>,
    show: ProgressDisplay,
}

enum ProgressDisplay {
    Bars { all: MultiProgress, bars: BTreeMap<String, ProgressBar> },
    Lines { next: Instant },
}

impl Progress {
    /// Begins with how many tasks stand under each heading.
    pub(crate) fn new(totals: BTreeMap<String, u64>) -> Self {
        let show = if std::io::stderr().is_terminal() {
            let all = MultiProgress::new();
            let bar = |(heading, total): (&String, &u64)| {
                let bar =
                    ProgressBar::new(*total).with_style(bar_style()).with_prefix(heading.clone());
                (heading.clone(), all.add(bar))
            };
            let bars = totals.iter().map(bar).collect();
            ProgressDisplay::Bars { all, bars }
        } else {
            ProgressDisplay::Lines { next: time::now() + LINE_INTERVAL }
        };
        Self { totals, show }
    }

    /// Shows how many tasks are left under each heading.
    pub(crate) fn show(&mut self, left: &BTreeMap<String, u64>) {
        let done = |heading: &String, total: u64| {
            total.saturating_sub(left.get(heading).copied().unwrap_or_default())
        };
        match &mut self.show {
            ProgressDisplay::Bars { bars, .. } => {
                for (heading, bar) in bars {
                    bar.set_position(done(heading, self.totals[heading]));
                }
            }
            ProgressDisplay::Lines { next } => {
                if time::now() >= *next {
                    *next = time::now() + LINE_INTERVAL;
                    let total: u64 = self.totals.values().sum();
                    print_message!(
                        "{} of {total} tasks done",
                        total - left.values().sum::<u64>().min(total)
                    );
                }
            }
        }
    }

    /// Says something without breaking the bars.
    pub(crate) fn print_message(&self, text: &str) {
        match &self.show {
            ProgressDisplay::Bars { all, .. } => drop(all.println(text)),
            ProgressDisplay::Lines { .. } => print_message!("{text}"),
        }
    }

    /// Leaves the bars as they were last drawn. A terminal has written `^C` behind them, on a line
    /// of its own: drawn again they would begin a line too low, and leave their first line twice.
    pub(crate) fn freeze(self) {
        if let ProgressDisplay::Bars { all, .. } = &self.show {
            all.set_draw_target(ProgressDrawTarget::hidden());
            print_message!("");
        }
    }

    /// Leaves the bars as they are.
    pub(crate) fn finish(self) {
        if let ProgressDisplay::Bars { bars, .. } = self.show {
            bars.values().for_each(ProgressBar::abandon);
        }
    }
}

fn bar_style() -> ProgressStyle {
    // The template is a constant; a wrong one shows in the first run.
    ProgressStyle::with_template("{prefix:<20} {bar:40} {pos:>6}/{len}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}
