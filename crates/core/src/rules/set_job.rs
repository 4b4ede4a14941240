use super::gate;
use super::pause::no_job;
use super::set_limit::set_without_settling;
use crate::bounds::{DURATION_MS_MAX, PRIORITY_MAX, SHARE_WEIGHT_MAX};
use crate::tables::Tables;
use crate::{Error, JobSpec, Result, Scope, SetJob, SetLimit, Share, Source, check_capacity, name};

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
    pub fn share(&self) -> Share {
        let Self { min_concurrency, priority, delay_ms, .. } = *self;
        Share { min_concurrency, priority, delay_ms, ..Share::new(self.weight) }
    }
}

/// Checks what can be checked without a store.
pub fn check_set_job(set: &SetJob) -> Result<()> {
    name::check("job", &set.job)?;
    let limit_name = Scope::Job.name(&set.job);
    for number in [set.concurrency.flatten(), set.min_concurrency].into_iter().flatten() {
        check_capacity(&limit_name, i64::from(number))?;
    }
    let priority_max = i64::from(PRIORITY_MAX);
    let numbers = [
        ("weight", set.weight.map(i64::from), 1, i64::from(SHARE_WEIGHT_MAX)),
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
    let name = Scope::Job.name(&set.job);
    let Some(id) = tables.limit_named(&name)? else {
        return Err(no_job(&set.job));
    };
    if let Some(capacity) = set.concurrency {
        set_without_settling(tables, &SetLimit { name, capacity, source: Source::Operator })?;
    }
    let Some(mut limit) = tables.limit(id)? else {
        return Ok(());
    };
    if let Some(share) = &mut limit.share {
        change(share, set);
    }
    limit.disturb();
    limit.dirty |= limit.is_hasty(tables.now());
    tables.put_limit(&limit)?;
    let mut budget = tables.gate_budget();
    gate::settle(tables, &mut budget).map(drop)
}

fn change(share: &mut Share, set: &SetJob) {
    share.weight = set.weight.unwrap_or(share.weight);
    share.min_concurrency = set.min_concurrency.unwrap_or(share.min_concurrency);
    share.priority = set.priority.unwrap_or(share.priority);
    if let Some(delay_ms) = set.delay_ms {
        // The time to the next start was reckoned from the last one.
        share.next_at = (share.next_at - share.delay_ms + delay_ms).max(0);
        share.delay_ms = delay_ms;
    }
}
