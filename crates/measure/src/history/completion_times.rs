//! When tasks were completed, and by whom.

use std::collections::HashMap;
use std::path::Path;

use super::{Error, Outcome, Process, Record, read};

/// The times of all completions of each process, in order.
#[derive(Debug, Default)]
pub struct CompletionTimes {
    by_process: HashMap<Process, Vec<u64>>,
}

impl CompletionTimes {
    /// Reads all `files` as one history.
    pub fn read<P: AsRef<Path>>(files: &[P]) -> Result<Self, Error> {
        let mut completions = Self::default();
        for file in files {
            read::read(file.as_ref(), |record| completions.add_record(record))?;
        }
        completions.by_process.values_mut().for_each(|times| times.sort_unstable());
        Ok(completions)
    }

    fn add_record(&mut self, record: Record) {
        if let Record::Exit(exit) = record
            && exit.outcome == Outcome::Completed
        {
            self.by_process.entry(exit.process).or_default().push(exit.t_ns);
        }
    }

    /// The first completion from `since_ns` on, and the first one of the process whose first is the
    /// last; none where a process completed nothing any more.
    pub fn first_completions_after(&self, since_ns: u64) -> (Option<u64>, Option<u64>) {
        let firsts: Vec<Option<u64>> = self
            .by_process
            .values()
            .map(|times| times.get(times.partition_point(|at| *at < since_ns)).copied())
            .collect();
        let last = firsts.iter().copied().collect::<Option<Vec<u64>>>();
        (firsts.iter().flatten().min().copied(), last.and_then(|last| last.into_iter().max()))
    }
}
