//! The plans of the statements that do most of the work, with a million tasks waiting, kept in files
//! and compared with those that are there.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::str::FromStr as _;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, ensure};
use tidegate_core::{Attempt, CapacitySource, Claim, Finish, Outcome, SetLimit, Store, WorkerId};
use tidegate_store::StoreLocation;
use tidegate_store::postgres::{Options, PLANNER_SETTINGS, Postgres, StatementHook};
use tokio_postgres::{Client, Config, NoTls, SimpleQueryMessage};

use super::cost::completions;
use super::drain::{kind, register, task};
use super::plan::{Plan, parse_plans};
use super::submit;
use crate::clock::Stopwatch;
use crate::report::ResultLine;
use crate::table::grouped;

/// What to explain.
#[derive(Debug, Clone)]
pub struct Explain {
    /// A server on which a database of its own is made, and dropped.
    pub url: String,
    /// Tasks that wait.
    pub tasks: u64,
    /// Where the records are.
    pub folder: PathBuf,
}

const KINDS: u64 = 10;
const LIMIT: u32 = 10;
const BATCH: u32 = 100;
const LEASE_MS: i64 = 3_600_000;
const WORKER: &str = "explain";

/// Their names, and how many kinds are under a limit.
const SCENARIOS: [(&str, u64, &str); 3] = [
    ("concurrency-baseline", 0, "none of them has a limit"),
    ("concurrency-single-task", 1, "one of them has a limit of 10"),
    ("concurrency-all-tasks", KINDS, "each of them has a limit of 10"),
];

/// Writes a record for each scenario, and gives a line for each statement.
pub async fn explain(
    scenario: &Explain,
    mut each: impl FnMut(ResultLine) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    ensure!(
        matches!(StoreLocation::parse(&scenario.url)?, StoreLocation::Postgres(_)),
        "only PostgreSQL explains its plans; name one with --store postgres://..."
    );
    fs::create_dir_all(&scenario.folder).context("make the folder of the records")?;
    for (name, limited, about) in SCENARIOS {
        let stopwatch = Stopwatch::start();
        let database = Database::make(&scenario.url).await?;
        let explained = scenario.collect_plans(&database.url, limited).await;
        database.remove().await?;
        let (version, plans) = explained?;
        let path = scenario.folder.join(format!("{name}.txt"));
        let kept = parse_plans(&fs::read_to_string(&path).unwrap_or_default());
        let about = format!(
            "{name}: {} tasks of {KINDS} kinds wait; {about}.\n\
             Made by `tidegate bench explain` on PostgreSQL {version}; the pages of a statement are those\n\
             it asked for, in memory or not.\n",
            grouped(scenario.tasks)
        );
        let records: Vec<String> = plans.iter().map(Plan::record).collect();
        fs::write(&path, about + &records.concat()).context("write a record")?;
        for plan in &plans {
            let before = kept.iter().find(|kept| kept.statement == plan.statement);
            each(result_line(name, plan, before, stopwatch.seconds()))?;
        }
    }
    Ok(())
}

fn result_line(name: &str, plan: &Plan, before: Option<&Plan>, seconds: f64) -> ResultLine {
    let how = match before {
        None => "new",
        Some(before) if plan.has_same_shape(before) => "same",
        Some(_) => "changed",
    };
    let mut line = ResultLine::new(name, "postgres", plan.tasks, seconds)
        .with_extra("statement", plan.statement.clone())
        .with_extra("plan", how)
        .with_extra("pages_per_task", plan.pages_per_task())
        .with_optional("pages_per_task_before", before.map(Plan::pages_per_task));
    line.ratio = before.map(|before| plan.pages_per_task() / before.pages_per_task());
    match how {
        "changed" => {
            line.with_note(format!("{name}: the plan of the {} is another one", plan.statement))
        }
        _ => line,
    }
}

impl Explain {
    /// The server's version, and the plans of what is sent where so many kinds are limited.
    async fn collect_plans(&self, url: &str, limited: u64) -> anyhow::Result<(String, Vec<Plan>)> {
        let texts = StatementTexts::default();
        let options = Options { statement_hook: Some(texts.recorder()), ..Options::default() };
        let store = Postgres::connect(url, options).await?;
        store.migrate().await?;
        set_up(&store, limited).await?;
        // A worker is known to serve them before they come.
        store.claim(claim_request(BATCH)).await?;
        self.load(url).await?;
        texts.clear();
        let first = store.claim(claim_request(BATCH)).await?;
        let text = texts.take_longest()?;
        // They go back, and the server explains how it would give them out again.
        let mut back = completions(&first);
        back.iter_mut().for_each(|exit| exit.outcome = Outcome::Released);
        store.finish(Finish { completions: back, claim: None }).await?;
        while store.admit().await?.has_more {}
        let client = connect(url).await?;
        client.batch_execute("VACUUM ANALYZE").await?;
        let tasks = u64::from(BATCH);
        let mut plans =
            vec![explain_statement(&client, "claim", text, &claim_arguments(), tasks).await?];
        let mut attempts = Vec::new();
        for _ in 0..2 {
            attempts.extend(store.claim(claim_request(BATCH)).await?);
        }
        let (held, free): (Vec<_>, Vec<_>) =
            attempts.into_iter().partition(|attempt: &Attempt| !attempt.slots.is_empty());
        for (statement, attempts) in [("finish", free), ("relay", held)] {
            // The store ends one half, which tells the text; the server explains it with the other.
            let (first, second) = attempts.split_at(attempts.len() / 2);
            if second.is_empty() {
                continue;
            }
            let is_relay = statement == "relay";
            let wanted = is_relay.then(|| claim_request(first.len() as u32));
            texts.clear();
            store.finish(Finish { completions: completions(first), claim: wanted }).await?;
            let text = texts.take_longest()?;
            let arguments =
                if is_relay { hand_off_arguments(second) } else { finish_arguments(second) };
            let tasks = second.len() as u64;
            plans.push(explain_statement(&client, statement, text, &arguments, tasks).await?);
        }
        Ok((version(&client).await?, plans))
    }

    async fn load(&self, url: &str) -> anyhow::Result<()> {
        let store = Postgres::connect(url, Options::default()).await?;
        let tasks = (0..self.tasks).map(|number| task(&kind_name(number % KINDS)));
        submit(&store, &[], tasks).await?;
        while store.admit().await?.has_more {}
        Ok(())
    }
}

fn kind_name(number: u64) -> String {
    format!("kind-{number}")
}

fn kind_names() -> Vec<String> {
    (0..KINDS).map(kind_name).collect()
}

async fn set_up(store: &Postgres, limited: u64) -> anyhow::Result<()> {
    register(store, kind_names().iter().map(|name| kind(name)).collect()).await?;
    for number in 0..limited {
        let name = format!("group:{}", kind_name(number));
        let (capacity, source) = (Some(LIMIT), CapacitySource::Configuration);
        store.set_limit(SetLimit { name, capacity, source }).await?;
    }
    Ok(())
}

fn claim_request(tasks_max: u32) -> Claim {
    Claim {
        worker: WorkerId(WORKER.into()),
        queues: Arc::new([kind("").queue]),
        kinds: kind_names().into_iter().map(Into::into).collect(),
        tasks_max,
        lease_ms: LEASE_MS,
        poll_interval_ms: 1000,
    }
}

/// The texts of statements, as a store sends them.
#[derive(Default)]
struct StatementTexts(Arc<Mutex<Vec<&'static str>>>);

impl StatementTexts {
    fn recorder(&self) -> StatementHook {
        let texts = self.0.clone();
        Arc::new(move |text| {
            texts.lock().unwrap_or_else(PoisonError::into_inner).push(text);
            Box::pin(std::future::ready(()))
        })
    }

    fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The one that does the work, which is the longest by far; the others lock and commit.
    fn take_longest(&self) -> anyhow::Result<&'static str> {
        let mut texts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let longest = texts.drain(..).max_by_key(|text| text.len());
        longest.context("the store has sent nothing")
    }
}

// The arguments, in the order of the parameters of `claim_lanes.sql`, `finish_fast.sql`, and
// `hand_off_eligible.sql` with `hand_off_start.sql`.

fn claim_arguments() -> Vec<String> {
    let floors = vec![EMPTY_BIGINT_ARRAY.to_owned(); 4];
    let told_to_and_closed = vec!["false".to_owned(), EMPTY_BIGINT_ARRAY.to_owned()];
    let lanes_and_takes_rest = vec![KINDS.to_string(), "false".to_owned()];
    [claim_parameters(), vec![BATCH.to_string()], told_to_and_closed, floors, lanes_and_takes_rest]
        .concat()
}

fn finish_arguments(attempts: &[Attempt]) -> Vec<String> {
    [completion_parameters(attempts), vec!["NULL".to_owned()]].concat()
}

fn hand_off_arguments(attempts: &[Attempt]) -> Vec<String> {
    let limits: BTreeSet<i64> =
        attempts.iter().flat_map(|attempt| &attempt.slots).map(|slot| slot.limit.0).collect();
    // Each line is read from its start.
    let never = vec!["-1".to_owned(); limits.len()];
    let limits = limits.iter().map(i64::to_string).collect();
    let slots = vec![attempts.len().to_string()];
    let lines = vec![bigint_array(limits), bigint_array(never)];
    let floors = vec![EMPTY_BIGINT_ARRAY.to_owned(); 3 + 4];
    [claim_parameters(), completion_parameters(attempts), slots, lines, floors].concat()
}

fn bigint_array(numbers: Vec<String>) -> String {
    format!("'{{{}}}'::bigint[]", numbers.join(","))
}

const EMPTY_BIGINT_ARRAY: &str = "'{}'::bigint[]";

/// Queues, kinds, worker, lease and time of whoever asks, and from which task on it looks at the gate.
fn claim_parameters() -> Vec<String> {
    let queue = format!("'{{{}}}'::text[]", kind("").queue);
    let kinds = format!("'{{{}}}'::text[]", kind_names().join(","));
    let (lease, now, from) = (LEASE_MS.to_string(), "NULL".to_owned(), "0".to_owned());
    vec![queue, kinds, format!("'{WORKER}'"), lease, now, from]
}

/// Tasks, tokens, results and leases of what ended.
fn completion_parameters(attempts: &[Attempt]) -> Vec<String> {
    let tasks = attempts.iter().map(|attempt| attempt.task.0.to_string()).collect();
    let tokens: Vec<String> = attempts.iter().map(|attempt| attempt.token.0.to_string()).collect();
    let mut leases = tokens.clone();
    leases.dedup();
    let results = format!("array_fill('null'::bytea, ARRAY[{}])", attempts.len());
    vec![bigint_array(tasks), bigint_array(tokens), results, bigint_array(leases)]
}

/// The part of a statement that has a row for each of its tasks.
fn task_cte(statement: &str) -> &'static str {
    match statement {
        "claim" => "picked",
        "finish" => "listed",
        _ => "head",
    }
}

/// Runs a statement about so many tasks twice and undoes it, and gives the second plan: the first
/// finds nothing prepared.
async fn explain_statement(
    client: &Client,
    statement: &str,
    text: &str,
    arguments: &[String],
    tasks: u64,
) -> anyhow::Result<Plan> {
    client.batch_execute(&format!("PREPARE {statement} AS {text}")).await?;
    let arguments = arguments.join(", ");
    // Times and estimates would make every record another one.
    let explain = format!(
        "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) EXECUTE {statement} ({arguments})"
    );
    let mut lines = Vec::new();
    for _ in 0..2 {
        client.batch_execute("BEGIN").await?;
        let answer = client.simple_query(&explain).await;
        client.batch_execute("ROLLBACK").await?;
        lines = answer.with_context(|| format!("explain the {statement}"))?;
    }
    let line = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    };
    let lines: Vec<String> = lines.iter().filter_map(line).collect();
    let part = format!("CTE {}", task_cte(statement));
    let node = lines.iter().skip_while(|line| line.trim() != part).nth(1);
    let rows = rows(node.map_or("", String::as_str));
    ensure!(rows == tasks, "the {statement} found {rows} tasks of {tasks}");
    Ok(Plan { statement: statement.to_owned(), tasks, text: lines.join("\n") })
}

/// How many rows a node gave.
fn rows(node: &str) -> u64 {
    let number = node.split(" rows=").last().and_then(|rest| rest.split([' ', '.']).next());
    number.and_then(|number| number.parse().ok()).unwrap_or_default()
}

async fn version(client: &Client) -> anyhow::Result<String> {
    let version: String = client.query_one("SHOW server_version", &[]).await?.get(0);
    // What follows is who packed it.
    Ok(version.split(' ').next().unwrap_or_default().to_owned())
}

/// A connection that plans as the store's do.
async fn connect(url: &str) -> anyhow::Result<Client> {
    let (client, connection) =
        Config::from_str(url)?.options(PLANNER_SETTINGS).connect(NoTls).await?;
    // It ends with the client; what goes wrong on it, the client's calls report.
    tokio::spawn(connection);
    Ok(client)
}

/// A database that is there for one scenario.
struct Database {
    server: Client,
    name: String,
    url: String,
}

impl Database {
    async fn make(url: &str) -> anyhow::Result<Self> {
        let name = format!("tidegate_explain_{}", std::process::id());
        let server = connect(url).await?;
        // Of a process that had the same id and was killed.
        server.batch_execute(&format!("DROP DATABASE IF EXISTS {name}")).await?;
        let make = server.batch_execute(&format!("CREATE DATABASE {name}")).await;
        make.context("make a database; the user needs the right CREATEDB")?;
        let sign = if url.contains('?') { '&' } else { '?' };
        let url = format!("{url}{sign}dbname={name}");
        Ok(Self { server, name, url })
    }

    async fn remove(self) -> anyhow::Result<()> {
        let remove = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        Ok(self.server.batch_execute(&remove).await?)
    }
}
