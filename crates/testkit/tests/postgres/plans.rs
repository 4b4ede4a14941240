//! The plans of PostgreSQL's statements. Every table is reached by an index whose first column is
//! bound, row by row, whatever the statistics of the tables are: see [`Statistics`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use tidegate_core::Store;
use tidegate_store::postgres::{Options, PLANNER_SETTINGS, Postgres};
use tidegate_testkit::postgres::{Database, Server};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// Tables that have one row, whatever the store does.
const SINGLE_ROW: [&str; 1] = ["counters"];

/// Partial indexes of the few rows that some transaction still has to look at: a statement that reads
/// one of them reads these rows.
const OF_FEW: [&str; 3] = ["limits_dirty", "limits_unset", "limit_deltas_needs_drain"];

/// Where the queries are, and the files whose queries are planned as ever.
const FOLDER: &str = "../store/src/postgres";
const READERS: [&str; 3] = ["inspect.rs", "snapshot.rs", "repair.rs"];

/// Statements that read a whole table on purpose, each with the reason.
const WHOLE: &[(&str, &str, &str)] = &[
    ("lock_running_in_groups", "running", "what runs when a limit begins is adopted by it"),
    (
        "kinds_not_registered_since",
        "tasks",
        "a kind without a registration for 30 days may have a task anywhere",
    ),
    ("kinds_not_registered_since", "finished_forever", "the same"),
    ("kinds_not_registered_since", "finished_default", "the same"),
    (
        "delete_stale_fenced_attempts",
        "fenced_attempts",
        "a prune removes every row whose lease is gone",
    ),
    ("delete_stale_fenced_attempts", "leases", "a prune removes every row whose lease is gone"),
    ("expand_leases", "leases", "repair unpacks every lease, and lists them all for that"),
    ("leases_listing_tasks", "leases", LEASES),
    ("leases_listing_tasks_of_groups", "leases", LEASES),
    ("is_task_running", "leases", LEASES),
    ("slot_holder", "leases", LEASES),
    ("slots_of_tasks", "leases", LEASES),
    ("positions_of_tasks", "leases", LEASES),
    ("leases_listing_duplicates", "leases", BROKEN),
    ("leases_listing_duplicates", "running", BROKEN),
    ("leases_listing_duplicates", "slots", BROKEN),
];

const LEASES: &str = "an operator's verb; there are no more leases than claims under way";
const BROKEN: &str = "only after a lease was found that lists a task or a slot twice";

/// Tables with a row for every kind, lane or worker: they do not grow with the tasks, and these
/// statements may read all of them.
const OF_NAMES: &[(&str, &[&str])] = &[
    (
        "kinds",
        &[
            "claim_one",
            "claim_many",
            "claim_plain_",
            "claim_admitted",
            "claim_probe",
            "finish_fast",
            "hand_off_",
            "kinds_not_registered_since",
        ],
    ),
    ("lanes", &["kinds_not_registered_since", "lanes_of_kinds"]),
    (
        "workers",
        &[
            "delete_dead_workers",
            "is_reap_needed",
            "put_heartbeat",
            "live_registrations",
            "groups_with_outdated_registration",
            "kinds_not_registered_since",
        ],
    ),
    (
        "worker_lanes",
        &[
            "delete_dead_workers",
            "is_reap_needed",
            "served_lanes",
            "lock_ready_in_unserved_lanes",
            "kinds_not_registered_since",
            "admit_due_fast",
        ],
    ),
    (
        "registrations",
        &[
            "delete_dead_workers",
            "live_registrations",
            "groups_with_outdated_registration",
            "kinds_not_registered_since",
        ],
    ),
    ("run_times", &["delete_old_run_times"]),
];

/// Whether a statement may read all of a table.
fn is_meant(query: &str, table: &str) -> bool {
    let is_of_names = |(names, queries): &(&str, &[&str])| {
        *names == table && queries.iter().any(|name| query.starts_with(name))
    };
    WHOLE.iter().any(|(name, whole, _)| *name == query && *whole == table)
        || OF_NAMES.iter().any(is_of_names)
}

/// Files that are parts of statements, and the statements.
const PARTS: [&str; 21] = [
    "claim_probe",
    "claim_task_count",
    "claim_lanes",
    "claim_lanes_after_admit",
    "claim_pick_single_lane",
    "claim_pick_lanes",
    "claim_lane_branch",
    "claim_take_general",
    "claim_take_fast",
    "claim_probe_result",
    "claim_probe_idle",
    "claim_probe_admission",
    "finish_fast",
    "complete_tasks",
    "finish_fast_result",
    "hand_off_eligible",
    "hand_off_start",
    "hand_off_admit",
    "record_limit_deltas",
    "hand_off_result",
    "hand_off_admit_result",
];
/// How many lanes the claims of many of them read.
const LANES: usize = 128;

const SEVERAL: [(&str, &[&str]); 11] = [
    (
        "claim_one",
        &[
            "claim_probe",
            "claim_task_count",
            "claim_lanes",
            "claim_pick_single_lane",
            "claim_take_general",
        ],
    ),
    (
        "claim_many",
        &[
            "claim_probe",
            "claim_task_count",
            "claim_lanes",
            "claim_pick_lanes",
            "claim_take_general",
        ],
    ),
    (
        "claim_plain_one",
        &[
            "claim_probe",
            "claim_task_count",
            "claim_lanes",
            "claim_pick_single_lane",
            "claim_take_fast",
        ],
    ),
    (
        "claim_plain_many",
        &["claim_probe", "claim_task_count", "claim_lanes", "claim_pick_lanes", "claim_take_fast"],
    ),
    ("claim_probe", &["claim_probe", "claim_probe_result"]),
    ("claim_probe_idle", &["claim_probe", "claim_probe_idle"]),
    ("claim_probe_admission", &["claim_probe", "claim_probe_admission"]),
    ("finish_fast", &["finish_fast", "complete_tasks", "finish_fast_result"]),
    (
        "hand_off_start",
        &[
            "claim_probe",
            "hand_off_eligible",
            "hand_off_start",
            "record_limit_deltas",
            "complete_tasks",
            "hand_off_result",
        ],
    ),
    (
        "hand_off_admit",
        &[
            "claim_probe",
            "hand_off_eligible",
            "hand_off_admit",
            "record_limit_deltas",
            "complete_tasks",
            "hand_off_admit_result",
        ],
    ),
    (
        "claim_admitted",
        &[
            "claim_probe",
            "claim_task_count",
            "claim_lanes_after_admit",
            "claim_pick_lanes",
            "claim_take_general",
        ],
    ),
];

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(FOLDER)
}

/// The names of the queries that a source file uses.
fn used_by(source: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(folder().join(source)).expect("a source file");
    let names = text.split("queries/").skip(1).filter_map(|rest| rest.split(".sql").next());
    names.map(str::to_owned).collect()
}

/// The source files beside the queries.
fn sources() -> Vec<String> {
    let entries = fs::read_dir(folder()).expect("the source files");
    let names =
        entries.map(|entry| entry.expect("a file").file_name().to_string_lossy().into_owned());
    names.filter(|name| name.ends_with(".rs")).collect()
}

/// The statements of verbs by their names, as they are sent.
fn statements() -> BTreeMap<String, String> {
    let readers = READERS.iter().flat_map(|source| used_by(source));
    let verbs = sources().into_iter().filter(|source| !READERS.contains(&&**source));
    let verbs: BTreeSet<String> = verbs.flat_map(|source| used_by(&source)).collect();
    let readers: BTreeSet<String> = readers.filter(|name| !verbs.contains(name)).collect();
    let mut statements = BTreeMap::new();
    for entry in fs::read_dir(folder().join("queries")).expect("the queries") {
        let path = entry.expect("a query").path();
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let text = fs::read_to_string(path).expect("a query").replace("{page}", "256");
        if !readers.contains(&name) && !name.starts_with("migrate_") {
            statements.insert(name, text);
        }
    }
    let parts: BTreeMap<&str, String> =
        PARTS.map(|name| (name, statements.remove(name).expect(name))).into();
    let lanes = (1..=LANES).map(|n| parts["claim_lane_branch"].replace("{n}", &n.to_string()));
    let lanes = lanes.collect::<Vec<_>>().join("UNION ALL ");
    for (name, of) in SEVERAL {
        let text: Vec<&str> = of.iter().map(|part| &*parts[part]).collect();
        statements.insert((*name).to_owned(), text.concat().replace("{lanes}", &lanes));
    }
    statements
}

async fn connect(url: &str) -> Client {
    connect_with(url, PLANNER_SETTINGS).await
}

async fn connect_with(url: &str, options: &str) -> Client {
    let mut config: tokio_postgres::Config = url.parse().expect("a URL");
    let (client, connection) = config.options(options).connect(NoTls).await.expect("connect");
    tokio::spawn(connection);
    client
}

/// What the server knows of the tables when it plans a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Statistics {
    /// The schema was just migrated: the planner guesses that every table has ten pages.
    NeverAnalysed,
    /// The tables were analysed while they were empty, as a queue is in its quiet moments.
    AnalysedEmpty,
    /// The tables were analysed while tasks waited and ran.
    AnalysedWithBacklog,
}

/// Rows for every table.
const FILL: &str = include_str!("plans/fill.sql");

/// The tables of the schema; partitions are tables too.
async fn tables(client: &Client) -> BTreeSet<String> {
    let sql = "SELECT relname::text FROM pg_class
               WHERE relnamespace = 'tidegate'::regnamespace AND relkind IN ('r', 'p')";
    client.query(sql, &[]).await.expect("tables").iter().map(|row| row.get(0)).collect()
}

/// The first column of every index.
async fn leading_columns(client: &Client) -> BTreeMap<String, String> {
    let sql = "SELECT c.relname::text, pg_get_indexdef(c.oid, 1, true) FROM pg_class c
               WHERE c.relnamespace = 'tidegate'::regnamespace AND c.relkind IN ('i', 'I')";
    let rows = client.query(sql, &[]).await.expect("indexes");
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// Brings the tables into a state. Tables that a migration filled keep their rows.
async fn prepare(client: &Client, statistics: Statistics) {
    if statistics == Statistics::NeverAnalysed {
        return;
    }
    client.batch_execute(FILL).await.expect("fill");
    let empty = tables(client).await;
    for table in &empty {
        let is_filled = format!("SELECT EXISTS (SELECT FROM tidegate.{table})");
        let is_filled: bool = client.query_one(&is_filled, &[]).await.expect("rows").get(0);
        assert!(is_filled, "fill.sql has no row for {table}");
    }
    if statistics == Statistics::AnalysedEmpty {
        for table in empty.iter().filter(|table| !["counters", "migrations"].contains(&&***table)) {
            client.batch_execute(&format!("DELETE FROM tidegate.{table}")).await.expect("empty");
        }
    }
    client.batch_execute("ANALYZE").await.expect("analyse");
}

/// A migrated database in a state, and a connection that plans as the store's connections do.
async fn database(statistics: Statistics) -> (Database, Client) {
    let database = Server::shared().database();
    let store = Postgres::connect(&database.url(), Options::default()).await.expect("connect");
    store.migrate().await.expect("migrate");
    let client = connect(&database.url()).await;
    prepare(&client, statistics).await;
    (database, client)
}

async fn plan(client: &Client, name: &str, text: &str) -> Value {
    client.batch_execute(&format!("PREPARE {name} AS {text}")).await.expect(name);
    let count = "SELECT cardinality(parameter_types) FROM pg_prepared_statements WHERE name = $1";
    let count: i32 = client.query_one(count, &[&name]).await.expect(name).get(0);
    let nulls = vec!["NULL"; count as usize].join(", ");
    let arguments = if count == 0 { String::new() } else { format!("({nulls})") };
    // VERBOSE adds the columns that each node returns.
    let explain = format!("EXPLAIN (VERBOSE, FORMAT JSON) EXECUTE {name}{arguments}");
    let answer = client.simple_query(&explain).await.expect(name);
    let text = answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    let plans: Value = serde_json::from_str(text.expect("a plan")).expect("JSON");
    plans[0]["Plan"].clone()
}

/// Finds the tables that a plan reads as a whole.
struct Reads {
    tables: BTreeSet<String>,
    /// The first column of every index.
    leading: BTreeMap<String, String>,
    /// The table, and how it is read.
    found: BTreeMap<String, String>,
}

impl Reads {
    async fn new(client: &Client) -> Self {
        let mut tables = tables(client).await;
        tables.retain(|table| !SINGLE_ROW.contains(&&**table));
        Self { tables, leading: leading_columns(client).await, found: BTreeMap::new() }
    }

    /// The tables that this plan reads as a whole, and how.
    fn of(&mut self, plan: &Value) -> BTreeMap<String, String> {
        self.visit(plan, false);
        std::mem::take(&mut self.found)
    }

    /// A LIMIT right above a scan without a filter ends the reading, and so does an EXISTS. An EXISTS that the planner
    /// hashes reads every row: its scan returns the columns of the hash table.
    fn visit(&mut self, node: &Value, is_limited: bool) {
        let text = |key: &str| node[key].as_str().unwrap_or_default().to_owned();
        let (kind, table, index) = (text("Node Type"), text("Relation Name"), text("Index Name"));
        let is_sub = ["InitPlan", "SubPlan"].contains(&&*text("Parent Relationship"));
        // EXISTS needs no column, so the scan has no output. ARRAY (SELECT ...) needs every row.
        let has_output = node["Output"].as_array().is_some_and(|columns| !columns.is_empty());
        let is_exists = is_sub && kind == "Index Only Scan" && !has_output;
        let is_first = (is_limited || is_exists) && node["Filter"].is_null();
        let condition = text("Index Cond");
        let is_reached = !node["TID Cond"].is_null()
            || self.leading.get(&index).is_some_and(|column| binds(&condition, column));
        // An index that is read by another column than its first is read from end to end.
        let is_short = condition.is_empty() && (is_first || OF_FEW.contains(&&*index));
        if self.tables.contains(&table) && kind.ends_with("Scan") && !(is_reached || is_short) {
            self.found.insert(table, format!("{kind} {index} {condition}"));
        }
        // A sort reads everything before it gives its first row.
        let passes_on = is_limited && ["LockRows", "Result", "Subquery Scan"].contains(&&*kind);
        for child in node["Plans"].as_array().into_iter().flatten() {
            let is_sub = ["InitPlan", "SubPlan"]
                .contains(&child["Parent Relationship"].as_str().unwrap_or_default());
            self.visit(child, !is_sub && (kind == "Limit" || passes_on));
        }
    }
}

/// Whether a condition of an index scan compares this column: it stands on the left, alone or first
/// of a row, with or without the name of its table.
fn binds(condition: &str, column: &str) -> bool {
    condition.split('(').any(|term| {
        let name = term.split([' ', ',', ')']).next().unwrap_or_default();
        let compared = term[name.len()..].trim_start();
        let is_compared = ["=", "<", ">", "IS ", ","].iter().any(|op| compared.starts_with(op));
        name.rsplit('.').next() == Some(column) && is_compared
    })
}

/// Faults of the statements of the verbs with these statistics.
async fn faults(statistics: Statistics) -> Vec<String> {
    let (_database, client) = database(statistics).await;
    let mut reads = Reads::new(&client).await;
    let statements = statements();
    assert!(statements.contains_key("delete_positions") && statements.contains_key("finish_fast"));
    assert!(statements.len() > 60, "{} statements", statements.len());
    let mut faults = Vec::new();
    for (name, text) in &statements {
        let verb = text.lines().find(|line| !line.starts_with("--")).unwrap_or_default();
        let verbs = ["SELECT", "WITH", "INSERT", "UPDATE", "DELETE"];
        if !verbs.iter().any(|word| verb.starts_with(word)) {
            continue;
        }
        for (table, how) in reads.of(&plan(&client, name, text).await) {
            if !is_meant(name, &table) {
                faults.push(format!("{name}.sql reads all of {table}: {how}"));
            }
        }
    }
    faults
}

#[tokio::test]
async fn statements_scan_no_table_that_was_never_analysed() {
    let faults = faults(Statistics::NeverAnalysed).await;
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[tokio::test]
async fn statements_scan_no_table_that_was_analysed_while_empty() {
    let faults = faults(Statistics::AnalysedEmpty).await;
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[tokio::test]
async fn statements_scan_no_table_that_was_analysed_with_backlog() {
    let faults = faults(Statistics::AnalysedWithBacklog).await;
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Every process that shows metrics asks these every few seconds, and they are planned as ever. Limits are
/// listed anyway.
#[tokio::test]
async fn metrics_sample_reads_waiting_tasks_by_index() {
    let (database, client) = database(Statistics::AnalysedEmpty).await;
    let mut reads = Reads::new(&client).await;
    let client = connect_with(&database.url(), "").await;
    for name in ["first_waiter_due_times", "job_loads"] {
        let path = folder().join("queries").join(name).with_extension("sql");
        let text = fs::read_to_string(path).expect("a query");
        let found = reads.of(&plan(&client, name, &text).await);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["limits"], "{name}: {found:?}");
    }
}

/// The condition by which a plan reads an index, of all its scans.
fn conditions(node: &Value, index: &str, found: &mut Vec<String>) {
    if node["Index Name"] == index {
        found.push(node["Index Cond"].as_str().unwrap_or_default().to_owned());
    }
    for child in node["Plans"].as_array().into_iter().flatten() {
        conditions(child, index, found);
    }
}

#[tokio::test]
async fn claim_starts_at_its_cursor_by_index() {
    let (_database, client) = database(Statistics::AnalysedEmpty).await;
    let (mut found, mut lines, mut gates) = (Vec::new(), Vec::new(), Vec::new());
    let claims =
        ["claim_one", "claim_many", "claim_plain_one", "claim_plain_many", "claim_admitted"];
    let relays = ["hand_off_start", "hand_off_admit"];
    for name in claims.into_iter().chain(relays) {
        let plan = plan(&client, name, &statements()[name]).await;
        conditions(&plan, "ready_order", &mut found);
        conditions(&plan, "waiters_order", &mut lines);
        conditions(&plan, "inbox_pkey", &mut gates);
    }
    assert_eq!(found.len(), 3 + 3 * LANES, "of one lane and of many, and what is before a relay");
    assert!(found.iter().all(|condition| condition.contains("ROW(")), "{found:?}");
    let lines = lines.iter().filter(|condition| condition.contains("ROW("));
    assert_eq!(lines.count(), 2, "what is handed on and what is let in");
    assert_eq!(gates.len(), 7);
    assert!(gates.iter().all(|condition| condition.contains("task >= ")), "{gates:?}");
}

/// An anti-join would read every worker for each pass of the reaper.
#[tokio::test]
async fn reaper_reads_worker_of_lease_by_primary_key() {
    for statistics in
        [Statistics::NeverAnalysed, Statistics::AnalysedEmpty, Statistics::AnalysedWithBacklog]
    {
        let (_database, client) = database(statistics).await;
        for name in ["expired_leases", "expired_leases_listing_tasks", "is_reap_needed"] {
            let plan = plan(&client, name, &statements()[name]).await;
            let (mut workers, mut expiries) = (Vec::new(), Vec::new());
            conditions(&plan, "workers_pkey", &mut workers);
            conditions(&plan, "leases_expires_at", &mut expiries);
            assert!(workers.contains(&"(w.id = leases.worker)".to_owned()), "{name}: {workers:?}");
            assert!(expiries.iter().any(|one| one.contains("expires_at <=")), "{name}: {plan}");
        }
    }
}

/// An array would be searched from its start for each expired lease.
#[tokio::test]
async fn heartbeat_looks_expired_leases_up_in_a_hash_of_the_listed_ones() {
    for statistics in
        [Statistics::NeverAnalysed, Statistics::AnalysedEmpty, Statistics::AnalysedWithBacklog]
    {
        let (_database, client) = database(statistics).await;
        let plan = plan(&client, "put_heartbeat", &statements()["put_heartbeat"]).await;
        assert!(plan.to_string().contains("hashed SubPlan"), "{statistics:?}: {plan}");
    }
}

/// What a plan does between its LIMIT and the rows that it merges, or none where it does not merge.
fn above_the_merge(node: &Value) -> Option<Vec<String>> {
    let kind = node["Node Type"].as_str().unwrap_or_default().to_owned();
    if kind == "Merge Append" {
        return Some(Vec::new());
    }
    let mut above = node["Plans"].as_array().into_iter().flatten().find_map(above_the_merge)?;
    if above.last().is_none_or(|last| last != "Limit") {
        above.push(kind);
    }
    Some(above)
}

#[tokio::test]
async fn claim_merges_its_lanes_without_sort() {
    let (_database, client) = database(Statistics::AnalysedEmpty).await;
    let way = ["Subquery Scan", "Nested Loop", "Nested Loop", "LockRows", "Limit"];
    for name in ["claim_many", "claim_plain_many", "claim_admitted"] {
        let plan = plan(&client, name, &statements()[name]).await;
        assert_eq!(above_the_merge(&plan).as_deref(), Some(&way.map(str::to_owned)[..]), "{name}");
    }
}

#[tokio::test]
async fn plan_check_reports_join_that_scans_a_table() {
    let (_database, client) = database(Statistics::AnalysedEmpty).await;
    let join =
        "DELETE FROM tidegate.tasks t USING unnest($1::bigint[]) AS n (task) WHERE t.id = n.task";
    let found = Reads::new(&client).await.of(&plan(&client, "joined", join).await);
    assert_eq!(found.keys().collect::<Vec<_>>(), ["tasks"], "{found:?}");
}

#[tokio::test]
async fn unconditioned_index_only_scan_of_a_subquery_is_found_unless_it_stops_at_one_row() {
    const EVERY: &str =
        "SELECT FROM tidegate.counters WHERE 1 = ANY (ARRAY (SELECT token FROM tidegate.leases))";
    const FILTERED: &str =
        "SELECT EXISTS (SELECT FROM tidegate.fenced_attempts WHERE task + 1 = $1::bigint)";
    const EXISTS: &str = "SELECT EXISTS (SELECT FROM tidegate.leases)";
    const FIRST: &str = "SELECT (SELECT token FROM tidegate.leases ORDER BY token LIMIT 1)";
    for statistics in
        [Statistics::NeverAnalysed, Statistics::AnalysedEmpty, Statistics::AnalysedWithBacklog]
    {
        let (_database, client) = database(statistics).await;
        let mut reads = Reads::new(&client).await;
        for (name, text, tables) in [
            ("every_row", EVERY, &["leases"][..]),
            ("filtered", FILTERED, &["fenced_attempts"]),
            ("one", EXISTS, &[]),
            ("first_row", FIRST, &[]),
        ] {
            let plan = plan(&client, name, text).await;
            let found = reads.of(&plan);
            assert!(plan.to_string().contains("Index Only Scan"), "{statistics:?} {name}: {plan}");
            assert_eq!(found.keys().collect::<Vec<_>>(), tables, "{statistics:?} {name}: {plan}");
        }
    }
}

#[tokio::test]
async fn plan_check_reports_index_scan_without_bound_first_column() {
    let (_database, client) = database(Statistics::AnalysedWithBacklog).await;
    // The primary key of `fenced_attempts` is (token, task).
    let by_second = "SELECT token FROM tidegate.fenced_attempts WHERE task = ANY ($1::bigint[])";
    let plan = plan(&client, "by_second", by_second).await;
    assert_eq!(plan["Index Name"], "fenced_attempts_pkey", "{plan}");
    let found = Reads::new(&client).await.of(&plan);
    assert_eq!(found.keys().collect::<Vec<_>>(), ["fenced_attempts"], "{found:?}");
}

#[test]
fn index_condition_binds_only_its_left_column() {
    assert!(binds("(token = ANY ($1))", "token"));
    assert!(binds("((l.lane = $0) AND (ROW(l.rank, l.tag) >= ROW($1, $2)))", "lane"));
    assert!(binds("(ROW(rank, tag, admission_seq) > ROW($1, $2, $3))", "rank"));
    assert!(!binds("(token = ANY ($1))", "expires_at"));
    assert!(!binds("(task = r.token)", "token"));
}
