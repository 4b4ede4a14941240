//! How long jobs stand still, from one look at the store to the next.

use std::collections::HashMap;

use tidegate_core::inspect::Load;
use tidegate_core::{Limit, LimitId, Millis};

/// Since when nothing of each job has run or begun, as far as was looked.
#[derive(Debug, Default)]
pub(super) struct Idle {
    jobs: HashMap<LimitId, Seen>,
}

/// A job at a look.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// Tasks in its line.
    waiting: u32,
    /// Tasks past its line that have not begun.
    ahead: u32,
    /// The tag of the task that last passed its line.
    last_tag: i64,
    idle_since: Millis,
}

impl Idle {
    /// Takes down how the jobs stand. Whoever is not among the limits is forgotten.
    pub(super) fn look(&mut self, limits: &[&Limit], load: &Load) {
        let seen = limits.iter().filter_map(|limit| {
            let share = limit.share?;
            let (waiting, ahead, last_tag) = (limit.waiting, share.ahead, share.last_tag);
            let mut now = Seen { waiting, ahead, last_tag, idle_since: load.now };
            let runs = load.jobs.get(&limit.id).is_some_and(|job| job.running > 0);
            if let Some(before) = self.jobs.get(&limit.id)
                && !runs
                && !now.has_moved(before)
            {
                now.idle_since = before.idle_since;
            }
            Some((limit.id, now))
        });
        self.jobs = seen.collect();
    }

    /// How long a job has stood still at the last look; none of what is no job.
    pub(super) fn seconds(&self, limit: LimitId, now: Millis) -> Option<f64> {
        let seen = self.jobs.get(&limit)?;
        Some((now - seen.idle_since).max(0) as f64 / 1000.0)
    }
}

impl Seen {
    /// Whether a task has begun between two looks, however short it was. It left those that are past the
    /// line; if they are as many as before, another has passed. Where there are more, tasks came, and
    /// whether one left is seen at a later look: they cannot become more for long.
    fn has_moved(&self, before: &Self) -> bool {
        self.waiting < before.waiting
            || self.ahead < before.ahead
            || self.ahead == before.ahead && self.last_tag != before.last_tag
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::inspect::JobLoad;
    use tidegate_core::{Share, Source};

    use super::*;

    const JOB: LimitId = LimitId(1);

    fn job(waiting: u32, ahead: u32, last_tag: i64) -> Limit {
        let share = Share { ahead, last_tag, ..Share::new(1) };
        Limit { waiting, ..Limit::new(JOB, "job:j", None, Source::Unset, 0, Some(share)) }
    }

    fn looked(idle: &mut Idle, job: &Limit, now: Millis, running: u64) -> Option<f64> {
        let jobs = [(JOB, JobLoad { ready_since: None, running })].into();
        idle.look(&[job], &Load { now, jobs, ..Load::default() });
        idle.seconds(JOB, now)
    }

    #[test]
    fn a_job_stands_still_until_something_runs_or_begins() {
        let mut idle = Idle::default();
        let mut look = |job: Limit, now, running| looked(&mut idle, &job, now, running);
        assert_eq!(look(job(0, 3, 3), 1000, 0), Some(0.0), "nothing is known of before");
        assert_eq!(look(job(0, 3, 3), 6000, 0), Some(5.0));
        assert_eq!(look(job(0, 4, 4), 7000, 0), Some(6.0), "another has come");
        assert_eq!(look(job(9, 4, 4), 8000, 0), Some(7.0), "and more, behind it");
        assert_eq!(look(job(9, 4, 4), 9000, 1), Some(0.0), "one runs");
        assert_eq!(look(job(9, 4, 4), 10_000, 0), Some(1.0));
        assert_eq!(look(job(9, 3, 4), 11_000, 0), Some(0.0), "one has begun");
        assert_eq!(
            look(job(9, 3, 5), 12_000, 0),
            Some(0.0),
            "and another, and the next has passed"
        );
        assert_eq!(look(job(8, 3, 5), 13_000, 0), Some(0.0), "one has left the line");
        assert_eq!(look(job(8, 3, 5), 14_000, 0), Some(1.0));
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let mut idle = Idle::default();
        assert_eq!(looked(&mut idle, &job(0, 3, 3), 1000, 0), Some(0.0));
        idle.look(&[], &Load { now: 2000, ..Load::default() });
        assert_eq!(idle.seconds(JOB, 2000), None);
        assert_eq!(looked(&mut idle, &job(0, 3, 3), 3000, 0), Some(0.0));
    }
}
