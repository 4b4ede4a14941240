//! Pauses queues, jobs and workflows, and lets them go on.

use tidegate_core::{LimitScope, PauseTarget, Result, SetPaused, rules};

use super::admission::run_follow_ups;
use super::error::TxError;
use super::set_limit::{read_limits, run_limit_rule};
use super::transaction::Tx;
use super::working_set::{FollowUp, WorkingSet};
use super::working_set_load::read_tx_start;
use super::{PostgresInner, in_transaction};

const PAUSE_QUEUE: &str = include_str!("queries/pause_queue.sql");
const RESUME_QUEUE: &str = include_str!("queries/resume_queue.sql");

pub(super) async fn pause(store: &PostgresInner, pause: SetPaused) -> Result<bool> {
    rules::check_set_paused(&pause)?;
    let name = match &pause.target {
        PauseTarget::Queue(queue) => return pause_queue(store, queue, pause.paused).await,
        PauseTarget::Job(job) => LimitScope::Job.limit_name(job),
        PauseTarget::Workflow(workflow) => LimitScope::Workflow.limit_name(workflow),
    };
    let (changed, follow_up) = in_transaction!(store, tx => pause_limit(store, &tx, &pause, &name));
    run_follow_ups(store, follow_up).await?;
    Ok(changed)
}

async fn pause_limit(
    store: &PostgresInner,
    tx: &Tx<'_>,
    pause: &SetPaused,
    name: &str,
) -> Result<(bool, FollowUp), TxError> {
    let names = [name.to_owned()];
    let is_known = !read_limits(tx, &names).await?.is_empty();
    match &pause.target {
        PauseTarget::Workflow(_) if !is_known && !pause.paused => Ok((false, FollowUp::default())),
        // It is made first, in a transaction of its own, as by the gate.
        PauseTarget::Workflow(_) if !is_known => Err(TxError::MissingWorkflowLimits(names.into())),
        _ => {
            run_limit_rule(store, tx, &names, &[], |working_set: &mut WorkingSet| {
                rules::set_paused(working_set, pause)
            })
            .await
        }
    }
}

async fn pause_queue(store: &PostgresInner, queue: &str, paused: bool) -> Result<bool> {
    let changed = in_transaction!(store, tx => write_queue_pause(store, &tx, queue, paused));
    if changed {
        store.notifier.notify_others();
    }
    Ok(changed)
}

async fn write_queue_pause(
    store: &PostgresInner,
    tx: &Tx<'_>,
    queue: &str,
    paused: bool,
) -> Result<bool, TxError> {
    let now = read_tx_start(store, tx).await?.now;
    let rows = match paused {
        true => tx.execute(PAUSE_QUEUE, &[&queue, &now]).await?,
        false => tx.execute(RESUME_QUEUE, &[&queue]).await?,
    };
    Ok(rows > 0)
}
