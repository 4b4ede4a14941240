//! Brings tasks back to the gate.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::{Result, RetryOutcome, State, TaskId, rules};

use super::error::Fault;
use super::load::moment;
use super::rows;
use super::session::Tx;
use super::{Inner, transact};

const LOCK_ENDED: &str = include_str!("queries/lock_ended.sql");
const LOCK_SCHEDULED: &str = include_str!("queries/lock_scheduled.sql");
const TASKS_KNOWN: &str = include_str!("queries/tasks_known.sql");
const REVIVE_KEYS: &str = include_str!("queries/revive_keys.sql");
const REVIVE_TASKS: &str = include_str!("queries/revive_tasks.sql");
const HASTEN_TASKS: &str = include_str!("queries/hasten_tasks.sql");
const PUT_ARRIVED: &str = include_str!("queries/put_arrived.sql");
const NOTIFY: &str = include_str!("queries/notify.sql");

type Outcomes = BTreeMap<i64, RetryOutcome>;

pub(super) async fn retry(store: &Inner, tasks: Vec<TaskId>) -> Result<Vec<RetryOutcome>> {
    rules::check_retry(&tasks)?;
    let distinct: BTreeSet<i64> = tasks.iter().map(|task| task.0).collect();
    let distinct: Vec<i64> = distinct.into_iter().collect();
    let outcomes = transact!(store, tx => retry_all(store, &tx, &distinct));
    store.changed.here();
    let mut seen = BTreeSet::new();
    let outcome = |task: &TaskId| match outcomes.get(&task.0) {
        Some(RetryOutcome::Retried | RetryOutcome::Hastened) if !seen.insert(*task) => {
            RetryOutcome::Unfinished
        }
        Some(outcome) => *outcome,
        None => RetryOutcome::NotFound,
    };
    Ok(tasks.iter().map(outcome).collect())
}

/// Rows of ended tasks are locked by nobody but a prune and another retry; the schedule comes
/// first, as in the one lock order. It locks no limit: the gate does the rest.
async fn retry_all(store: &Inner, tx: &Tx<'_>, tasks: &[i64]) -> Result<Outcomes, Fault> {
    let mut outcomes: Outcomes = BTreeMap::new();
    for row in tx.query(TASKS_KNOWN, &[&tasks]).await? {
        outcomes.insert(row.get("id"), RetryOutcome::Unfinished);
    }
    let scheduled = tx.query(LOCK_SCHEDULED, &[&tasks]).await?;
    let scheduled: Vec<i64> = scheduled.iter().map(|row| row.get("task")).collect();
    let now = moment(store, tx).await?.now;
    if !scheduled.is_empty() {
        tx.execute(HASTEN_TASKS, &[&scheduled, &now]).await?;
        outcomes.extend(scheduled.iter().map(|task| (*task, RetryOutcome::Hastened)));
    }
    let mut back = revivable(tx, tasks, &mut outcomes).await?;
    if !back.is_empty() {
        tx.execute(REVIVE_TASKS, &[&back, &now]).await?;
    }
    back.extend(scheduled);
    if !back.is_empty() {
        tx.execute(PUT_ARRIVED, &[&back]).await?;
        tx.query(NOTIFY, &[]).await?;
    }
    Ok(outcomes)
}

/// Ended tasks that may come back, with their unique keys taken.
async fn revivable(tx: &Tx<'_>, tasks: &[i64], outcomes: &mut Outcomes) -> Result<Vec<i64>, Fault> {
    let (mut back, mut keys, mut keyed) = (Vec::new(), Vec::new(), Vec::new());
    let ended = tx.query(LOCK_ENDED, &[&tasks]).await?;
    for row in &ended {
        let id: i64 = row.get("id");
        if rows::state(row.get("state")) == State::Completed {
            outcomes.insert(id, RetryOutcome::Completed);
            continue;
        }
        outcomes.insert(id, RetryOutcome::Retried);
        match row.get::<_, Option<&str>>("unique_key") {
            Some(key) => {
                keys.push(key);
                keyed.push(id);
            }
            None => back.push(id),
        }
    }
    if !keys.is_empty() {
        let taken = tx.query(REVIVE_KEYS, &[&keys, &keyed]).await?;
        let taken: BTreeSet<i64> = taken.iter().map(|row| row.get("task")).collect();
        for id in keyed {
            match taken.contains(&id) {
                true => back.push(id),
                false => drop(outcomes.insert(id, RetryOutcome::KeyTaken)),
            }
        }
    }
    Ok(back)
}
