//! The reads, each in one transaction of a reader.

mod explain;
mod snapshot;

use std::collections::BTreeMap;

use async_trait::async_trait;
use rusqlite::{Row, params};
use tidegate_core::inspect::{
    Explanation, Holder, Inspect, JobView, Snapshot, TaskFilter, TaskView,
};
use tidegate_core::tables::{Position, Tables};
use tidegate_core::{
    Kind, LaneId, Limit, LimitId, Millis, Progress, Result, Scope, State, TaskId, Token,
};

use super::Sqlite;
use super::error::unknown;
use super::statements::Query;
use super::tables::{Transaction, lanes, read_kind, read_limit};

#[async_trait]
impl Inspect for Sqlite {
    async fn now(&self) -> Result<Millis> {
        Ok((self.inner.clock)())
    }

    async fn task(&self, task: TaskId) -> Result<Option<TaskView>> {
        self.read(move |tx| {
            let Some(view) = view(tx, task)? else {
                return Ok(None);
            };
            let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
            let (payload, result) =
                tx.statements.first(Query::TaskBytes, [task.0], read)?.unwrap_or_default();
            Ok(Some(TaskView { payload, result, ..view }))
        })
        .await
    }

    async fn tasks(&self, filter: TaskFilter) -> Result<Vec<TaskView>> {
        self.read(move |tx| {
            let ids = ids(tx, &filter)?;
            ids.into_iter().filter_map(|id| view(tx, id).transpose()).collect()
        })
        .await
    }

    async fn explain(&self, task: TaskId) -> Result<Option<Explanation>> {
        self.read(move |tx| explain::explain(tx, task)).await
    }

    async fn counts(&self) -> Result<BTreeMap<State, u64>> {
        self.read(|tx| counts(tx, Query::Counts)).await
    }

    async fn limits(&self) -> Result<Vec<Limit>> {
        self.read(|tx| limits(tx, Query::LimitsByName)).await
    }

    async fn holders(&self, limit: LimitId) -> Result<Vec<Holder>> {
        self.read(move |tx| explain::holders(tx, limit, i64::MAX)).await
    }

    async fn jobs(&self) -> Result<Vec<JobView>> {
        self.read(jobs).await
    }

    async fn kinds(&self) -> Result<Vec<Kind>> {
        self.read(|tx| tx.statements.rows(Query::Kinds, [], read_kind)).await
    }

    async fn snapshot(&self) -> Result<Snapshot> {
        self.read(snapshot::snapshot).await
    }
}

/// The tasks a filter lets through, ascending: those of each place, merged.
fn ids(tx: &mut Transaction<'_, '_>, filter: &TaskFilter) -> Result<Vec<TaskId>> {
    let mut places: Vec<(Query, Option<State>)> = Vec::new();
    for state in &filter.states {
        match state {
            State::Scheduled => places.push((Query::IdsScheduled, None)),
            State::Pending => {
                places.extend([(Query::IdsArrived, None), (Query::IdsReady, None)]);
            }
            State::Blocked => places.push((Query::IdsLine, None)),
            State::Processing => places.push((Query::IdsRunning, None)),
            ended => places.push((Query::IdsFinal, Some(*ended))),
        }
    }
    if filter.states.is_empty() {
        places.push((Query::IdsAll, None));
    }
    let mut ids = Vec::new();
    for (query, ended) in places {
        ids.append(&mut ids_of(tx, filter, query, ended)?);
    }
    ids.sort_unstable();
    ids.dedup();
    ids.truncate(filter.tasks_max as usize);
    Ok(ids)
}

fn ids_of(
    tx: &mut Transaction<'_, '_>,
    filter: &TaskFilter,
    query: Query,
    ended: Option<State>,
) -> Result<Vec<TaskId>> {
    let TaskFilter { kind, queue, job, workflow, tasks_max, .. } = filter;
    let after = filter.after.map_or(i64::MIN, |task| task.0);
    let read = |row: &Row<'_>| Ok(TaskId(row.get(0)?));
    match ended {
        Some(state) => {
            let span = params![after, kind, queue, job, workflow, tasks_max, state.as_str()];
            tx.statements.rows(query, span, read)
        }
        None => {
            let span = params![after, kind, queue, job, workflow, tasks_max];
            tx.statements.rows(query, span, read)
        }
    }
}

/// A task as a person sees it, without its payload and result.
fn view(tx: &mut Transaction<'_, '_>, task: TaskId) -> Result<Option<TaskView>> {
    let read = |row: &Row<'_>| {
        let lane = LaneId(row.get(0)?);
        let max_attempts: Option<u32> = row.get(8)?;
        let view = TaskView {
            id: task,
            kind: "".into(),
            queue: "".into(),
            state: State::Pending,
            group: row.get(1)?,
            job: row.get(2)?,
            workflow: row.get(3)?,
            unique_key: row.get(4)?,
            weight: row.get(5)?,
            priority: row.get(6)?,
            spent: row.get(7)?,
            max_attempts: max_attempts.unwrap_or_default(),
            deaths: row.get(9)?,
            created_at: row.get(10)?,
            run_at: None,
            finished_at: row.get(11)?,
            error: row.get(12)?,
            progress: None,
            payload: None,
            result: None,
        };
        Ok((view, lane, max_attempts.is_none()))
    };
    let found = tx.statements.first(Query::TaskView, [task.0], read)?;
    let Some((mut view, lane, is_by_kind)) = found else {
        return Ok(None);
    };
    let lane = lanes(tx)?.get(lane).ok_or_else(|| unknown("lane", lane))?.clone();
    if is_by_kind {
        view.max_attempts = tx.kind(&lane.kind)?.map_or(1, |kind| kind.max_attempts);
    }
    view.kind = lane.kind;
    view.queue = lane.queue;
    let position = tx.position(task)?.unwrap_or(Position::Arrived);
    view.state = position.state();
    match position {
        Position::Scheduled(run_at) => view.run_at = Some(run_at),
        Position::Running(token) => view.progress = progress(tx, task, token)?,
        _ => {}
    }
    Ok(Some(view))
}

fn progress(tx: &mut Transaction<'_, '_>, task: TaskId, token: Token) -> Result<Option<Progress>> {
    let read = |row: &Row<'_>| Ok((row.get::<_, Option<u8>>(0)?, row.get::<_, Option<String>>(1)?));
    let found = tx.statements.first(Query::Progress, [token.0, task.0], read)?;
    let progress = found.and_then(|(percent, message)| percent.zip(message));
    Ok(progress.map(|(percent, message)| Progress { percent, message }))
}

fn counts(tx: &mut Transaction<'_, '_>, query: Query) -> Result<BTreeMap<State, u64>> {
    let read = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?));
    let mut counts = BTreeMap::new();
    for (word, number) in tx.statements.rows(query, [], read)? {
        let state = State::parse(&word).ok_or_else(|| unknown("state", word))?;
        if number > 0 {
            counts.insert(state, number as u64);
        }
    }
    Ok(counts)
}

fn limits(tx: &mut Transaction<'_, '_>, query: Query) -> Result<Vec<Limit>> {
    let limits = tx.statements.rows(query, [], read_limit)?;
    let known = |limit: Option<Limit>| limit.ok_or_else(|| unknown("source of", "a limit"));
    limits.into_iter().map(known).collect()
}

fn jobs(tx: &mut Transaction<'_, '_>) -> Result<Vec<JobView>> {
    let mut jobs: BTreeMap<String, JobView> = BTreeMap::new();
    for limit in limits(tx, Query::LimitsByName)? {
        if limit.scope() == Scope::Job {
            let name = limit.name.strip_prefix("job:").unwrap_or(&limit.name);
            let view = JobView {
                name: name.into(),
                concurrency: limit.capacity,
                weight: limit.share.map_or(1, |share| share.weight),
                tasks: BTreeMap::new(),
            };
            jobs.insert(name.to_owned(), view);
        }
    }
    let read = |row: &Row<'_>| {
        Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, i64>(2)?))
    };
    for (job, word, number) in tx.statements.rows(Query::JobCounts, [], read)? {
        let state = State::parse(&word).ok_or_else(|| unknown("state", word))?;
        if let Some(view) = jobs.get_mut(&job) {
            view.tasks.insert(state, number as u64);
        }
    }
    Ok(jobs.into_values().collect())
}
