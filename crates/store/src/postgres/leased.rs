//! Attempts as their lease begins.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate_core::{Attempt, LimitId, Millis, Result, SlotHeld, TaskId, Token};
use tokio_postgres::Row;

use super::error::Fault;
use super::rows;
use super::session::Tx;

const BODIES: &str = include_str!("queries/claim_task_rows.sql");

/// Tasks that a statement has put under a lease, in their order, as it tells of them in one row: what
/// the tasks are comes with their [bodies].
#[derive(Debug)]
pub(super) struct Leased {
    token: Token,
    claimed_at: Millis,
    expires_at: Millis,
    tasks: Vec<i64>,
    /// When they were through the gate; empty where that is just now.
    since: Vec<Millis>,
    /// Attempts and timeouts by the kinds of lanes, for tasks that say nothing themselves.
    lanes: HashMap<i64, (Option<i64>, Option<i64>)>,
    slots: HashMap<i64, Vec<SlotHeld>>,
}

impl Leased {
    /// None where there is no lease.
    pub(super) fn of(row: &Row) -> Result<Option<Self>> {
        let Some(token) = row.get::<_, Option<i64>>("token").map(Token) else {
            return Ok(None);
        };
        let open: Vec<i64> = row.get("open");
        let (attempts, timeouts) = (list(row, "open_attempts"), list(row, "open_timeouts"));
        Ok(Some(Self {
            token,
            claimed_at: row.get("now"),
            since: list(row, "ready_at"),
            expires_at: row.get("expires_at"),
            tasks: list(row, "tasks"),
            lanes: open.into_iter().zip(attempts.into_iter().zip(timeouts)).collect(),
            slots: slots(row)?,
        }))
    }

    pub(super) fn attempts(mut self, bodies: &Bodies) -> Result<Vec<Attempt>> {
        let (mut kinds, mut queues, mut groups) =
            (Names::default(), Names::default(), Names::default());
        let mut attempt = |(at, task): (usize, i64)| {
            let Some(row) = bodies.0.get(&task) else {
                return Ok(None);
            };
            let (kind_attempts, kind_timeout_ms) =
                self.lanes.get(&row.get("lane")).copied().unwrap_or_default();
            let max_attempts = row.get::<_, Option<i64>>("max_attempts").or(kind_attempts);
            Ok(Some(Attempt {
                task: TaskId(task),
                token: self.token,
                kind: kinds.share(row.get("kind")),
                queue: queues.share(row.get("queue")),
                group: groups.share(row.get("group_name")),
                weight: rows::number(row, "tasks", "weight")?,
                payload: row.get("payload"),
                number: rows::number(row, "tasks", "attempts_used")? + 1,
                max_attempts: rows::unsigned("tasks", "max_attempts", max_attempts.unwrap_or(1))?,
                timeout_ms: row.get::<_, Option<Millis>>("timeout_ms").or(kind_timeout_ms),
                job: rows::text(row, "job"),
                workflow: rows::text(row, "workflow"),
                slots: self.slots.remove(&task).unwrap_or_default(),
                expires_at: self.expires_at,
                arrived_at: row.get("due_at"),
                ready_at: self.since.get(at).copied().unwrap_or(self.claimed_at),
                trace: rows::text(row, "trace"),
            }))
        };
        let tasks = self.tasks.into_iter().enumerate();
        tasks.filter_map(|task| attempt(task).transpose()).collect()
    }
}

/// A list that is not there is empty.
fn list<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, column: &str) -> Vec<T> {
    row.get::<_, Option<Vec<T>>>(column).unwrap_or_default()
}

fn slots(row: &Row) -> Result<HashMap<i64, Vec<SlotHeld>>> {
    let mut slots: HashMap<i64, Vec<SlotHeld>> = HashMap::new();
    let numbers = list::<i64>(row, "limits").into_iter().zip(list::<i64>(row, "numbers"));
    let held = numbers.zip(list::<&str>(row, "names"));
    for (task, ((limit, number), name)) in list::<i64>(row, "holders").into_iter().zip(held) {
        slots.entry(task).or_default().push(SlotHeld {
            limit: LimitId(limit),
            name: name.into(),
            number: rows::unsigned("slots", "number", number)?,
        });
    }
    Ok(slots)
}

/// What the tasks are that run under the lease of a transaction.
#[derive(Debug)]
pub(super) struct Bodies(HashMap<i64, Row>);

/// They are asked for together with the statements that begin the lease, and after them.
pub(super) async fn bodies(tx: &Tx<'_>) -> Result<Bodies, Fault> {
    let rows = tx.query(BODIES, &[]).await?;
    Ok(Bodies(rows.into_iter().map(|row| (row.get("id"), row)).collect()))
}

/// Names that mostly repeat the last one.
#[derive(Default)]
struct Names(Arc<str>);

impl Names {
    fn share(&mut self, name: &str) -> Arc<str> {
        if *self.0 != *name {
            self.0 = name.into();
        }
        self.0.clone()
    }
}
