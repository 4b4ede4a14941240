//! What there is to see, read in one go.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use tidegate_core::inspect::{Holder, Inspect, JobView, QueueView, WaiterView, WorkerView};
use tidegate_core::{Limit, LimitId, Millis, Result, State};

/// Shorter than this and the rate would tell of chance.
const RATE_MS_MIN: i64 = 400;

/// Whose holders and line to read, and how many of them can be shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) limit: Option<LimitId>,
    pub(super) rows: u32,
}

/// One look at the store.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) now: Millis,
    pub(super) counts: BTreeMap<State, u64>,
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
    pub(super) holders: Vec<Holder>,
    pub(super) line: Vec<WaiterView>,
}

/// Looks at all of it.
pub(super) async fn look(inspect: &dyn Inspect, ask: Ask) -> Result<View> {
    let mut limits = inspect.limits().await?;
    limits.sort_by_key(|limit| Reverse((limit.waiting > 0, limit.held > 0)));
    let mut jobs = inspect.jobs().await?;
    jobs.sort_by_key(|job| finished(&job.tasks) == job.tasks.values().sum::<u64>());
    let asked = limits.iter().find(|limit| Some(limit.id) == ask.limit).or(limits.first());
    let detail = match asked {
        Some(limit) => Some(look_closer(inspect, limit.id, ask.rows).await?),
        None => None,
    };
    Ok(View {
        now: inspect.now().await?,
        counts: inspect.counts().await?,
        detail,
        limits,
        queues: inspect.queues().await?,
        jobs,
        workers: inspect.workers().await?,
    })
}

/// Looks at one limit.
pub(super) async fn look_closer(
    inspect: &dyn Inspect,
    limit: LimitId,
    rows: u32,
) -> Result<Detail> {
    // All holders: they are read at once, and how many are left out is told.
    let holders = inspect.holders(limit).await?;
    Ok(Detail { limit, holders, line: inspect.waiters(limit, rows).await? })
}

/// How many of these tasks have ended.
pub(super) fn finished(tasks: &BTreeMap<State, u64>) -> u64 {
    tasks.iter().filter(|(state, _)| state.is_final()).map(|(_, count)| count).sum()
}

/// Tasks that end in a second, from one look to the next.
#[derive(Debug, Default)]
pub(super) struct Rate {
    last: Option<(Millis, u64)>,
    pub(super) per_second: Option<f64>,
}

impl Rate {
    pub(super) fn note(&mut self, view: &View) {
        let ended = finished(&view.counts);
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
        let counts = BTreeMap::from([(State::Pending, 7), (State::Completed, completed)]);
        View { now, counts, ..View::default() }
    }

    #[test]
    fn the_rate_is_of_what_ended_between_two_looks() {
        let mut rate = Rate::default();
        let mut rates = Vec::new();
        for (now, completed) in [(0, 10), (100, 20), (2000, 30), (3000, 5), (1000, 5), (3000, 6)] {
            rate.note(&view(now, completed));
            rates.push(rate.per_second);
        }
        assert_eq!(rates, [None, None, Some(10.0), Some(0.0), None, Some(0.5)]);
    }
}
