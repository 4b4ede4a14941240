//! How long jobs stand still, from one look at the store to the next.

use std::collections::HashMap;

use tidegate_core::reader::StoreLoad;
use tidegate_core::{Limit, LimitId, Millis};

/// Since when nothing of each job has run or begun, as far as was looked.
#[derive(Debug, Default)]
pub(super) struct JobIdleTracker {
    observations: HashMap<LimitId, JobObservation>,
}

/// A job at a look.
#[derive(Debug, Clone, Copy)]
struct JobObservation {
    /// Tasks in its line.
    waiting: u32,
    /// Tasks past its line that have not begun.
    in_window: u32,
    /// The tag of the task that last passed its line.
    last_tag: i64,
    idle_since: Millis,
}

impl JobIdleTracker {
    /// Takes down how the jobs stand. Whoever is not among the limits is forgotten.
    pub(super) fn update(&mut self, limits: &[&Limit], load: &StoreLoad) {
        let seen = limits.iter().filter_map(|limit| {
            let share = limit.fair_share?;
            let (waiting, ahead, last_tag) = (limit.waiting, share.in_window, share.last_tag);
            let mut now =
                JobObservation { waiting, in_window: ahead, last_tag, idle_since: load.now };
            let runs = load.jobs.get(&limit.id).is_some_and(|job| job.running_tasks > 0);
            if let Some(before) = self.observations.get(&limit.id)
                && !runs
                && !now.has_progressed_since(before)
            {
                now.idle_since = before.idle_since;
            }
            Some((limit.id, now))
        });
        self.observations = seen.collect();
    }

    /// How long a job has stood still at the last look; none of what is no job.
    pub(super) fn idle_seconds(&self, limit: LimitId, now: Millis) -> Option<f64> {
        let seen = self.observations.get(&limit)?;
        Some((now - seen.idle_since).max(0) as f64 / 1000.0)
    }
}

impl JobObservation {
    /// Whether a task has begun between two looks, however short it was. It left those that are past the
    /// line; if they are as many as before, another has passed. Where there are more, tasks came, and
    /// whether one left is seen at a later look: they cannot become more for long.
    fn has_progressed_since(&self, before: &Self) -> bool {
        self.waiting < before.waiting
            || self.in_window < before.in_window
            || self.in_window == before.in_window && self.last_tag != before.last_tag
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::reader::JobLoad;
    use tidegate_core::{CapacitySource, FairShare};

    use super::*;

    const JOB: LimitId = LimitId(1);

    fn job_limit(waiting: u32, in_window: u32, last_tag: i64) -> Limit {
        let share = FairShare { in_window, last_tag, ..FairShare::new(1) };
        Limit { waiting, ..Limit::new(JOB, "job:j", None, CapacitySource::Unset, 0, Some(share)) }
    }

    fn idle_seconds_after_update(
        idle: &mut JobIdleTracker,
        job_limit: &Limit,
        now: Millis,
        running: u64,
    ) -> Option<f64> {
        let jobs = [(JOB, JobLoad { first_ready_at: None, running_tasks: running })].into();
        idle.update(&[job_limit], &StoreLoad { now, jobs, ..StoreLoad::default() });
        idle.idle_seconds(JOB, now)
    }

    #[test]
    fn job_is_idle_until_a_task_starts_or_runs() {
        let mut idle = JobIdleTracker::default();
        let mut look =
            |job: Limit, now, running| idle_seconds_after_update(&mut idle, &job, now, running);
        assert_eq!(look(job_limit(0, 3, 3), 1000, 0), Some(0.0), "nothing is known of before");
        assert_eq!(look(job_limit(0, 3, 3), 6000, 0), Some(5.0));
        assert_eq!(look(job_limit(0, 4, 4), 7000, 0), Some(6.0), "another has come");
        assert_eq!(look(job_limit(9, 4, 4), 8000, 0), Some(7.0), "and more, behind it");
        assert_eq!(look(job_limit(9, 4, 4), 9000, 1), Some(0.0), "one runs");
        assert_eq!(look(job_limit(9, 4, 4), 10_000, 0), Some(1.0));
        assert_eq!(look(job_limit(9, 3, 4), 11_000, 0), Some(0.0), "one has begun");
        assert_eq!(
            look(job_limit(9, 3, 5), 12_000, 0),
            Some(0.0),
            "and another, and the next has passed"
        );
        assert_eq!(look(job_limit(8, 3, 5), 13_000, 0), Some(0.0), "one has left the line");
        assert_eq!(look(job_limit(8, 3, 5), 14_000, 0), Some(1.0));
    }

    #[test]
    fn removed_job_is_forgotten() {
        let mut idle = JobIdleTracker::default();
        assert_eq!(idle_seconds_after_update(&mut idle, &job_limit(0, 3, 3), 1000, 0), Some(0.0));
        idle.update(&[], &StoreLoad { now: 2000, ..StoreLoad::default() });
        assert_eq!(idle.idle_seconds(JOB, 2000), None);
        assert_eq!(idle_seconds_after_update(&mut idle, &job_limit(0, 3, 3), 3000, 0), Some(0.0));
    }
}
