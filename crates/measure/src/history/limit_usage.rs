//! How much of each limit was in use over a while.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use super::attempt_end::attempt_ends;
use super::collect::History;
use super::{Error, read};

/// How much of one limit was in use.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LimitUsage {
    /// What running handlers held, by weight, averaged over the time.
    pub mean: f64,
    /// When the last handler of the whole history entered.
    pub last_enter_ns: u64,
}

/// Reads all `files` as one history; gives every limit that a handler held, by its name.
pub fn limit_usage<P: AsRef<Path>>(
    files: &[P],
    within_ns: Range<u64>,
) -> Result<BTreeMap<String, LimitUsage>, Error> {
    let mut history = History::default();
    for file in files {
        read::read(file.as_ref(), |record| history.add_record(record))?;
    }
    history.finish();
    let mut all = vec![LimitUsage::default(); history.limits.all().len()];
    for (attempt, settled) in history.attempts.iter().zip(attempt_ends(&history)) {
        let from_ns = attempt.enter_ns.max(within_ns.start);
        let ran_ns = settled.end_ns.min(within_ns.end).saturating_sub(from_ns);
        for held in history.limits_of(attempt) {
            let one = &mut all[held.limit];
            one.mean += ran_ns as f64 * f64::from(held.needed.max(held.given));
            one.last_enter_ns = one.last_enter_ns.max(attempt.enter_ns);
        }
    }
    let span_ns = within_ns.end.saturating_sub(within_ns.start).max(1) as f64;
    all.iter_mut().for_each(|one| one.mean /= span_ns);
    Ok(history.limits.all().iter().cloned().zip(all).collect())
}
