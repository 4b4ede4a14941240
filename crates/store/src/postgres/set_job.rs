//! Changes jobs.

use tidegate_core::tables::Tables as _;
use tidegate_core::{LimitScope, Result, SetJob, rules};

use super::admission::run_follow_ups;
use super::set_limit::run_limit_rule;
use super::working_set::WorkingSet;
use super::{PostgresInner, in_transaction};

pub(super) async fn set_job(store: &PostgresInner, request: SetJob) -> Result<()> {
    rules::check_set_job(&request)?;
    let names = [LimitScope::Job.limit_name(&request.job)];
    let rule = |working_set: &mut WorkingSet| {
        rules::set_job(working_set, &request)?;
        mark_limit_dirty(working_set, &names[0])
    };
    let ((), follow_up) =
        in_transaction!(store, tx => run_limit_rule(store, &tx, &names, &[], rule));
    run_follow_ups(store, follow_up).await
}

/// Who is ready and is to get a slot of a reserve is loaded where there is a reserve: by whoever follows.
fn mark_limit_dirty(draft: &mut WorkingSet, name: &str) -> Result<()> {
    let id = draft.limit_id(name)?;
    if let Some(mut limit) = id.map(|id| draft.locked_limit(id)).transpose()?.flatten() {
        limit.mark_dirty_if_waiting();
        draft.put_limit(&limit)?;
    }
    Ok(())
}
