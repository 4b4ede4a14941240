//! What live workers say of a limit.

use std::collections::BTreeMap;

use serde::Serialize;
use tidegate_core::reader::WorkerView;
use tidegate_core::{Limit, LimitScope, WorkerId};
use tidegate_measure::table::counted;

/// What the live workers registered that registered the limit's group.
#[derive(Debug, Serialize)]
pub(super) struct RegisteredLimits {
    registered: Vec<WorkerLimit>,
    /// Whether they do not all say the same.
    pub(super) disagree: bool,
}

#[derive(Debug, Serialize)]
struct WorkerLimit {
    worker: WorkerId,
    /// None where it brings no limit.
    capacity: Option<u32>,
}

impl RegisteredLimits {
    pub(super) fn for_limit(limit: &Limit, workers: &[WorkerView]) -> Self {
        let group = limit.name.strip_prefix(&LimitScope::Group.limit_name("")).unwrap_or_default();
        let word = |worker: &WorkerView| {
            let capacity = *worker.registered_capacities.get(group)?;
            Some(WorkerLimit { worker: worker.id.clone(), capacity })
        };
        let registered: Vec<WorkerLimit> = workers.iter().filter_map(word).collect();
        let disagree = registered.windows(2).any(|two| two[0].capacity != two[1].capacity);
        Self { registered, disagree }
    }

    /// How many say what. Nothing where nobody says anything.
    pub(super) fn describe(&self) -> String {
        if self.registered.is_empty() {
            return String::new();
        }
        let mut workers: BTreeMap<Option<u32>, u64> = BTreeMap::new();
        for word in &self.registered {
            *workers.entry(word.capacity).or_default() += 1;
        }
        let words = workers.iter().rev().map(|(capacity, workers)| {
            let capacity = capacity.map_or_else(|| "no limit".to_owned(), |n| n.to_string());
            format!("{capacity} by {}", counted(*workers, "worker"))
        });
        let words = words.collect::<Vec<_>>().join(", ");
        match self.disagree {
            true => {
                format!("  live workers disagree: {words}; the latest that brings one counts\n")
            }
            false => format!("  registered: {words}\n"),
        }
    }
}
