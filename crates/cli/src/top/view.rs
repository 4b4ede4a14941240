//! What there is to see, read in one go.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use tidegate_core::reader::{JobView, QueueView, SlotHolder, StoreReader, WaiterView, WorkerView};
use tidegate_core::{Limit, LimitId, Millis, Result, TaskState};

/// Shorter than this and the rate would tell of chance.
const RATE_MS_MIN: i64 = 400;

/// Whose holders and line to read, and how many of them can be shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ViewRequest {
    pub(super) limit: Option<LimitId>,
    pub(super) rows: u32,
}

/// One look at the store.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) now: Millis,
    pub(super) counts: BTreeMap<TaskState, u64>,
    /// Those with a line first, then those that are held.
    pub(super) limits: Vec<Limit>,
    pub(super) detail: Option<Detail>,
    pub(super) queues: Vec<QueueView>,
    /// Those with unfinished tasks first.
    pub(super) jobs: Vec<JobView>,
    pub(super) workers: Vec<WorkerView>,
}

/// Who holds the slots of a limit, and the head of its line.
#[derive(Debug)]
pub(super) struct Detail {
    pub(super) limit: LimitId,
    pub(super) holders: Vec<SlotHolder>,
    pub(super) waiters: Vec<WaiterView>,
}

/// Looks at all of it.
pub(super) async fn read_view(reader: &dyn StoreReader, ask: ViewRequest) -> Result<View> {
    let mut limits = reader.limits().await?;
    limits.sort_by_key(|limit| Reverse((limit.waiting > 0, limit.held > 0)));
    let mut jobs = reader.jobs().await?;
    jobs.sort_by_key(|job| finished_tasks(&job.tasks) == job.tasks.values().sum::<u64>());
    let asked = limits.iter().find(|limit| Some(limit.id) == ask.limit).or(limits.first());
    let detail = match asked {
        Some(limit) => Some(read_detail(reader, limit.id, ask.rows).await?),
        None => None,
    };
    Ok(View {
        now: reader.now().await?,
        counts: reader.task_counts().await?,
        detail,
        limits,
        queues: reader.queues().await?,
        jobs,
        workers: reader.workers().await?,
    })
}

/// Looks at one limit.
pub(super) async fn read_detail(
    inspect: &dyn StoreReader,
    limit: LimitId,
    rows: u32,
) -> Result<Detail> {
    // All holders: they are read at once, and how many are left out is told.
    let holders = inspect.slot_holders(limit).await?;
    Ok(Detail { limit, holders, waiters: inspect.waiters(limit, rows).await? })
}

/// How many of these tasks have ended.
pub(super) fn finished_tasks(tasks: &BTreeMap<TaskState, u64>) -> u64 {
    tasks.iter().filter(|(state, _)| state.is_final()).map(|(_, count)| count).sum()
}

/// Tasks that end in a second, from one look to the next.
#[derive(Debug, Default)]
pub(super) struct Rate {
    last: Option<(Millis, u64)>,
    pub(super) per_second: Option<f64>,
}

impl Rate {
    pub(super) fn update(&mut self, view: &View) {
        let ended = finished_tasks(&view.counts);
        if let Some((at, before)) = self.last {
            let elapsed_ms = view.now - at;
            // A clock that was set back begins anew.
            if (0..RATE_MS_MIN).contains(&elapsed_ms) {
                return;
            }
            // A prune takes finished tasks away: they did not end less.
            let more = ended.saturating_sub(before) as f64;
            self.per_second = (elapsed_ms > 0).then(|| more * 1000.0 / elapsed_ms as f64);
        }
        self.last = Some((view.now, ended));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(now: Millis, completed: u64) -> View {
        let counts = BTreeMap::from([(TaskState::Pending, 7), (TaskState::Completed, completed)]);
        View { now, counts, ..View::default() }
    }

    #[test]
    fn rate_counts_completions_between_two_reads() {
        let mut rate = Rate::default();
        let mut rates = Vec::new();
        for (now, completed) in [(0, 10), (100, 20), (2000, 30), (3000, 5), (1000, 5), (3000, 6)] {
            rate.update(&view(now, completed));
            rates.push(rate.per_second);
        }
        assert_eq!(rates, [None, None, Some(10.0), Some(0.0), None, Some(0.5)]);
    }
}
