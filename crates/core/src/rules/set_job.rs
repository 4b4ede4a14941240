use super::admission;
use super::set_limit::set_limit_without_admission;
use super::set_paused::job_not_found;
use crate::bounds::{DURATION_MS_MAX, JOB_WEIGHT_MAX, PRIORITY_MAX};
use crate::tables::Tables;
use crate::{
    CapacitySource, Error, FairShare, JobSpec, LimitScope, Result, SetJob, SetLimit,
    check_capacity, name,
};

impl JobSpec {
    /// A job with every default.
    pub fn new(name: impl Into<String>) -> Self {
        let (concurrency, min_concurrency, weight, priority, delay_ms) = (None, 0, 1, 0, 0);
        Self { name: name.into(), concurrency, min_concurrency, weight, priority, delay_ms }
    }

    /// Checks every bound.
    pub fn check(&self) -> Result<()> {
        check_set_job(&SetJob {
            job: self.name.clone(),
            concurrency: Some(self.concurrency),
            min_concurrency: Some(self.min_concurrency),
            weight: Some(self.weight),
            priority: Some(self.priority),
            delay_ms: Some(self.delay_ms),
        })
    }

    /// The share it begins with.
    pub fn fair_share(&self) -> FairShare {
        let Self { min_concurrency, priority, delay_ms, .. } = *self;
        FairShare { min_concurrency, priority, delay_ms, ..FairShare::new(self.weight) }
    }
}

/// Checks what can be checked without a store.
pub fn check_set_job(set: &SetJob) -> Result<()> {
    name::check("job", &set.job)?;
    let limit_name = LimitScope::Job.limit_name(&set.job);
    for number in [set.concurrency.flatten(), set.min_concurrency].into_iter().flatten() {
        check_capacity(&limit_name, i64::from(number))?;
    }
    let priority_max = i64::from(PRIORITY_MAX);
    let numbers = [
        ("weight", set.weight.map(i64::from), 1, i64::from(JOB_WEIGHT_MAX)),
        ("priority", set.priority.map(i64::from), -priority_max, priority_max),
        ("delay in ms", set.delay_ms, 0, DURATION_MS_MAX),
    ];
    for (what, number, low, high) in numbers {
        if let Some(number) = number.filter(|number| !(low..=high).contains(number)) {
            return Err(Error::invalid(format!(
                "the {what} of job {:?} is {number}; it must be between {low} and {high}",
                set.job
            )));
        }
    }
    if let (Some(Some(most)), Some(least)) = (set.concurrency, set.min_concurrency)
        && least > most
        && most > 0
    {
        return Err(Error::invalid(format!(
            "the min_concurrency of job {:?} is {least}, and no more than {most} may run at once; \
             lower it or raise the concurrency",
            set.job
        )));
    }
    Ok(())
}

/// Changes a job. Its capacity and its delay count at once, also for what is past its line and has not
/// begun; weight, priority and reserve are what its tasks pass its line with, so they count for all that
/// stands there.
pub fn set_job(tables: &mut dyn Tables, set: &SetJob) -> Result<()> {
    check_set_job(set)?;
    let name = LimitScope::Job.limit_name(&set.job);
    let Some(id) = tables.limit_id(&name)? else {
        return Err(job_not_found(&set.job));
    };
    if let Some(capacity) = set.concurrency {
        set_limit_without_admission(
            tables,
            &SetLimit { name, capacity, source: CapacitySource::Operator },
        )?;
    }
    let Some(mut limit) = tables.locked_limit(id)? else {
        return Ok(());
    };
    if let Some(share) = &mut limit.fair_share {
        update_fair_share(share, set);
    }
    limit.mark_dirty_if_waiting();
    limit.dirty |= limit.exceeds_start_delay(tables.now());
    tables.put_limit(&limit)?;
    let mut budget = tables.admission_budget();
    admission::admit_from_dirty_limits(tables, &mut budget).map(drop)
}

fn update_fair_share(share: &mut FairShare, set: &SetJob) {
    share.weight = set.weight.unwrap_or(share.weight);
    share.min_concurrency = set.min_concurrency.unwrap_or(share.min_concurrency);
    share.priority = set.priority.unwrap_or(share.priority);
    if let Some(delay_ms) = set.delay_ms {
        // The time to the next start was reckoned from the last one.
        share.next_start_at = (share.next_start_at - share.delay_ms + delay_ms).max(0);
        share.delay_ms = delay_ms;
    }
}
