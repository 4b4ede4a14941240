//! Failed attempts on the fast path of `finish`: the store reads the task rows, the rules decide, and
//! one statement writes the decisions.
//!
//! Eligible are attempts that a lease lists, without job and workflow, whose task is then scheduled for
//! later or final. All others need the general path.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use tidegate_core::rules::{FailureDecision, decide_after_failure};
use tidegate_core::{AttemptCounts, Completion, Kind, Millis, Outcome, TaskId, Token};
use tokio_postgres::Row;

use super::PostgresInner;
use super::error::TxError;
use super::rows;
use super::transaction::{Params, Tx};

const FAILED_ATTEMPTS: &str = include_str!("queries/failed_attempts.sql");
const KINDS_OF_TASKS: &str = include_str!("queries/kinds_of_tasks.sql");
const FAIL_TASKS_FAST: &str = include_str!("queries/fail_tasks_fast.sql");

/// Whether an attempt failed in a way that the fast path may support.
pub(super) fn may_fail_on_fast_path(completion: &Completion) -> bool {
    match &completion.outcome {
        Outcome::Failed { retry_in_ms, .. } => retry_in_ms.is_none_or(|delay| delay > 0),
        Outcome::Snoozed { delay_ms: for_ms } => *for_ms > 0,
        _ => false,
    }
}

/// Decisions about failed attempts, as columns of a statement.
#[derive(Debug, Default)]
pub(super) struct FailedBatch {
    tasks: Vec<i64>,
    tokens: Vec<i64>,
    attempts_used: Vec<i64>,
    crashes: Vec<i64>,
    errors: Vec<Option<Vec<u8>>>,
    run_at: Vec<Option<Millis>>,
    states: Vec<Option<i32>>,
    remove_at: Vec<Option<Millis>>,
    now: Millis,
}

impl FailedBatch {
    /// Reads the tasks and decides. The caller has locked the leases of `exits`, or sends the statement
    /// that locks them first. Completed exits are ignored.
    pub(super) async fn decide(
        store: &PostgresInner,
        tx: &Tx<'_>,
        completions: &[Completion],
    ) -> Result<Self, TxError> {
        let failed = || completions.iter().filter(|completion| may_fail_on_fast_path(completion));
        let tasks: Vec<i64> = failed().map(|exit| exit.task.0).collect();
        let tokens: Vec<i64> = failed().map(|exit| exit.token.0).collect();
        let now = store.options.now_override();
        let (of_exits, of_tasks): (Params<'_>, Params<'_>) = (&[&tasks, &tokens, &now], &[&tasks]);
        let (listed, kinds) = tokio::try_join!(biased;
            tx.query(FAILED_ATTEMPTS, of_exits),
            tx.query(KINDS_OF_TASKS, of_tasks),
        )?;
        let kinds =
            kinds.iter().map(rows::kind_row).collect::<tidegate_core::Result<Vec<Kind>>>()?;
        let kinds: HashMap<Arc<str>, Kind> =
            kinds.into_iter().map(|kind| (kind.name.clone(), kind)).collect();
        let listed: HashMap<(TaskId, Token), &Row> = listed
            .iter()
            .map(|row| ((TaskId(row.get("task")), Token(row.get("token"))), row))
            .collect();
        let mut batch = Self::default();
        for completion in failed() {
            if let Some(row) = listed.get(&(completion.task, completion.token)) {
                batch.add_decision(completion, row, kinds.get(row.get::<_, &str>("kind")))?;
            }
        }
        Ok(batch)
    }

    /// Decides about one failed attempt, and adds the decision unless the general path is needed.
    fn add_decision(
        &mut self,
        exit: &Completion,
        row: &Row,
        kind: Option<&Kind>,
    ) -> Result<(), TxError> {
        let unknown;
        let kind = match kind {
            Some(kind) => kind,
            None => {
                unknown = Kind::new(row.get::<_, &str>("kind"));
                &unknown
            }
        };
        let max_attempts = row.get::<_, Option<i64>>("max_attempts");
        let max_attempts =
            max_attempts.map(|max| rows::to_unsigned("tasks", "max_attempts", max)).transpose()?;
        let mut ledger = AttemptCounts {
            attempts_used: rows::read_unsigned(row, "tasks", "attempts_used")?,
            crashes: rows::read_unsigned(row, "tasks", "crashes")?,
            max_attempts: max_attempts.unwrap_or(kind.max_attempts),
            max_crashes: kind.max_crashes,
            // A cancel gives the attempt a row of its own, so the lease does not list it.
            cancel_requested: false,
        };
        self.now = row.get("now");
        let decision =
            decide_after_failure(exit.outcome.clone(), &mut ledger, exit.task, kind, self.now);
        let (run_at, state, error, remove_at) = match decision {
            FailureDecision::Scheduled { run_at, error } => (Some(run_at), None, error, None),
            FailureDecision::Finished { state, error, remove_at } => {
                (None, Some(rows::state_code(state)), error, remove_at)
            }
            FailureDecision::NeedsGeneralPath => return Ok(()),
        };
        self.tasks.push(exit.task.0);
        self.tokens.push(exit.token.0);
        self.attempts_used.push(i64::from(ledger.attempts_used));
        self.crashes.push(i64::from(ledger.crashes));
        self.errors.push(error.map(String::into_bytes));
        self.run_at.push(run_at);
        self.states.push(state);
        self.remove_at.push(remove_at);
        Ok(())
    }

    /// Splits exits into those that the fast path supports and failed attempts that need the general path.
    pub(super) fn partition_by_path(
        &self,
        exits: Vec<Completion>,
    ) -> (Vec<Completion>, Vec<Completion>) {
        let decided: BTreeSet<i64> = self.tasks.iter().copied().collect();
        let is_fast =
            |exit: &Completion| !may_fail_on_fast_path(exit) || decided.contains(&exit.task.0);
        exits.into_iter().partition(is_fast)
    }

    /// Writes the decisions. Call it after the statement that removes the attempts from their leases.
    pub(super) async fn write_decisions(&self, tx: &Tx<'_>) -> Result<(), TxError> {
        if self.tasks.is_empty() {
            return Ok(());
        }
        let Self {
            tasks,
            tokens,
            attempts_used: spent,
            crashes: deaths,
            errors,
            run_at,
            states,
            remove_at,
            now,
        } = self;
        let params: Params<'_> =
            &[tasks, tokens, spent, deaths, errors, run_at, states, remove_at, now];
        tx.query_one(FAIL_TASKS_FAST, params).await.map(drop)
    }

    /// Updates the due hint with the earliest retry. Call it after the commit.
    pub(super) fn update_due_hint(&self, store: &PostgresInner) {
        if let Some(run_at) = self.run_at.iter().flatten().min() {
            store.next_due.note_scheduled(run_at - self.now);
        }
    }
}
