//! Attempts as their lease begins.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate_core::{Attempt, HeldSlot, LimitId, Millis, Result, TaskId, Token};
use tokio_postgres::Row;

use super::error::TxError;
use super::rows;
use super::transaction::Tx;

const CLAIM_TASK_ROWS: &str = include_str!("queries/claim_task_rows.sql");

/// Tasks that a statement has put under a lease, in their order, as it tells of them in one row: what
/// the tasks are comes with their [bodies].
#[derive(Debug)]
pub(super) struct ClaimedLease {
    token: Token,
    claimed_at: Millis,
    expires_at: Millis,
    tasks: Vec<i64>,
    /// When they were through the gate; empty where that is just now.
    ready_at: Vec<Millis>,
    /// Attempts and timeouts by the kinds of lanes, for tasks that say nothing themselves.
    lane_defaults: HashMap<i64, (Option<i64>, Option<i64>)>,
    slots: HashMap<i64, Vec<HeldSlot>>,
}

impl ClaimedLease {
    /// None where there is no lease.
    pub(super) fn from_row(row: &Row) -> Result<Option<Self>> {
        let Some(token) = row.get::<_, Option<i64>>("token").map(Token) else {
            return Ok(None);
        };
        let open: Vec<i64> = row.get("open");
        let (attempts, timeouts) =
            (list_or_empty(row, "open_attempts"), list_or_empty(row, "open_timeouts"));
        Ok(Some(Self {
            token,
            claimed_at: row.get("now"),
            ready_at: list_or_empty(row, "ready_at"),
            expires_at: row.get("expires_at"),
            tasks: list_or_empty(row, "tasks"),
            lane_defaults: open.into_iter().zip(attempts.into_iter().zip(timeouts)).collect(),
            slots: held_slots(row)?,
        }))
    }

    pub(super) fn into_attempts(mut self, task_rows: &TaskRows) -> Result<Vec<Attempt>> {
        let (mut kinds, mut queues, mut groups) =
            (LastName::default(), LastName::default(), LastName::default());
        let mut attempt = |(at, task): (usize, i64)| {
            let Some(row) = task_rows.0.get(&task) else {
                return Ok(None);
            };
            let (kind_attempts, kind_timeout_ms) =
                self.lane_defaults.get(&row.get("lane")).copied().unwrap_or_default();
            let max_attempts = row.get::<_, Option<i64>>("max_attempts").or(kind_attempts);
            Ok(Some(Attempt {
                task: TaskId(task),
                token: self.token,
                kind: kinds.intern(row.get("kind")),
                queue: queues.intern(row.get("queue")),
                group: groups.intern(row.get("group_name")),
                weight: rows::read_unsigned(row, "tasks", "weight")?,
                payload: row.get("payload"),
                number: rows::read_unsigned(row, "tasks", "attempts_used")? + 1,
                max_attempts: rows::to_unsigned(
                    "tasks",
                    "max_attempts",
                    max_attempts.unwrap_or(1),
                )?,
                timeout_ms: row.get::<_, Option<Millis>>("timeout_ms").or(kind_timeout_ms),
                job: rows::optional_name(row, "job"),
                workflow: rows::optional_name(row, "workflow"),
                slots: self.slots.remove(&task).unwrap_or_default(),
                expires_at: self.expires_at,
                due_at: row.get("due_at"),
                ready_at: self.ready_at.get(at).copied().unwrap_or(self.claimed_at),
                trace: rows::optional_name(row, "trace"),
            }))
        };
        let tasks = self.tasks.into_iter().enumerate();
        tasks.filter_map(|task| attempt(task).transpose()).collect()
    }
}

/// A list that is not there is empty.
fn list_or_empty<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, column: &str) -> Vec<T> {
    row.get::<_, Option<Vec<T>>>(column).unwrap_or_default()
}

fn held_slots(row: &Row) -> Result<HashMap<i64, Vec<HeldSlot>>> {
    let mut slots: HashMap<i64, Vec<HeldSlot>> = HashMap::new();
    let numbers =
        list_or_empty::<i64>(row, "limits").into_iter().zip(list_or_empty::<i64>(row, "numbers"));
    let held = numbers.zip(list_or_empty::<&str>(row, "names"));
    for (task, ((limit, number), name)) in
        list_or_empty::<i64>(row, "holders").into_iter().zip(held)
    {
        slots.entry(task).or_default().push(HeldSlot {
            limit: LimitId(limit),
            name: name.into(),
            number: rows::to_unsigned("slots", "number", number)?,
        });
    }
    Ok(slots)
}

/// What the tasks are that run under the lease of a transaction.
#[derive(Debug)]
pub(super) struct TaskRows(HashMap<i64, Row>);

/// They are asked for together with the statements that begin the lease, and after them.
pub(super) async fn read_task_rows(tx: &Tx<'_>) -> Result<TaskRows, TxError> {
    let rows = tx.query(CLAIM_TASK_ROWS, &[]).await?;
    Ok(TaskRows(rows.into_iter().map(|row| (row.get("id"), row)).collect()))
}

/// Names that mostly repeat the last one.
#[derive(Default)]
struct LastName(Arc<str>);

impl LastName {
    fn intern(&mut self, name: &str) -> Arc<str> {
        if *self.0 != *name {
            self.0 = name.into();
        }
        self.0.clone()
    }
}
