//! Which verb met which fault, and how often.

use std::fmt;

use super::message::Verb;

/// What can happen to a request or to the process that sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The request never came to the store.
    RequestLost,
    /// The store wrote and its reply was lost.
    ReplyLost,
    /// The request was held up in flight, and others sent later came first.
    Delayed,
    /// A second copy came later, possibly much later.
    Duplicated,
    /// The sender was dead when the request came to the store.
    Killed,
    /// The sender was stopped when the request came to the store.
    Paused,
    /// The sender was cut off: the request or its reply was dropped.
    Partitioned,
    /// The sender's wall clock was wrong.
    Skewed,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Self; 8] = [
        Self::RequestLost,
        Self::ReplyLost,
        Self::Delayed,
        Self::Duplicated,
        Self::Killed,
        Self::Paused,
        Self::Partitioned,
        Self::Skewed,
    ];
}

/// How often each verb met each fault. Every process uses every verb, so every pair applies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Coverage {
    counts: [[u64; Fault::ALL.len()]; Verb::ALL.len()],
}

impl Coverage {
    pub(super) fn record(&mut self, verb: Verb, fault: Fault) {
        self.counts[verb as usize][fault as usize] += 1;
    }

    /// Adds another run's counts.
    pub fn add(&mut self, other: &Self) {
        for (row, others) in self.counts.iter_mut().zip(&other.counts) {
            row.iter_mut().zip(others).for_each(|(count, more)| *count += more);
        }
    }

    /// How often the verb met the fault.
    pub fn count(&self, verb: Verb, fault: Fault) -> u64 {
        self.counts[verb as usize][fault as usize]
    }

    /// All faults of all verbs.
    pub fn total(&self) -> u64 {
        self.counts.iter().flatten().sum()
    }

    /// Pairs that were met less than `times`.
    pub fn below(&self, times: u64) -> Vec<(Verb, Fault, u64)> {
        let pairs = Verb::ALL.into_iter().flat_map(|verb| Fault::ALL.map(|fault| (verb, fault)));
        pairs
            .map(|(verb, fault)| (verb, fault, self.count(verb, fault)))
            .filter(|(_, _, count)| *count < times)
            .collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<9}", "")?;
        Fault::ALL.iter().try_for_each(|fault| write!(f, "{:>12}", format!("{fault:?}")))?;
        for verb in Verb::ALL {
            write!(f, "\n{:<9}", format!("{verb:?}"))?;
            let counts = Fault::ALL.iter().map(|fault| self.count(verb, *fault));
            counts.into_iter().try_for_each(|count| write!(f, "{count:>12}"))?;
        }
        Ok(())
    }
}
