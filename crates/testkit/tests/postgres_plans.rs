//! The plans of PostgreSQL's statements, made at the worst moment: when the tables were counted and
//! nothing was in them. Every table that grows is still reached by an index, row by row.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use tidegate_core::Store;
use tidegate_store::postgres::{Options, PLANS, Postgres};
use tidegate_testkit::postgres::Server;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// Tables with as many rows as there are tasks.
const GROWING: [&str; 10] = [
    "tasks",
    "ready",
    "line",
    "running",
    "slots",
    "slot_groups",
    "scheduled",
    "arrived",
    "unique_keys",
    "limits",
];

/// Indexes of the few rows that somebody waits for: to read one is to read them.
const OF_FEW: [&str; 2] = ["limits_dirty", "limits_unset"];

/// Where the queries are, and the files whose queries are planned as ever.
const FOLDER: &str = "../store/src/postgres";
const READERS: [&str; 3] = ["inspect.rs", "snapshot.rs", "repair.rs"];

/// Statements that read a whole table on purpose, each with the reason.
const WHOLE: &[(&str, &str, &str)] = &[
    ("lock_running_in_groups", "running", "what runs when a limit begins is adopted by it"),
    ("kinds_unseen", "tasks", "a kind that nobody registered for 30 days may have a task anywhere"),
];

/// Files that are parts of statements, and the statements.
const PARTS: [&str; 21] = [
    "look",
    "wanted",
    "lanes",
    "lanes_admitted",
    "pick_one",
    "pick_many",
    "of_lane",
    "take",
    "take_plain",
    "seen",
    "idle",
    "at_gate",
    "finish",
    "end",
    "finished",
    "held",
    "relay",
    "admit",
    "pass",
    "relayed",
    "admitted",
];
/// How many lanes the claims of many of them read.
const LANES: usize = 128;

const SEVERAL: [(&str, &[&str]); 11] = [
    ("claim_one", &["look", "wanted", "lanes", "pick_one", "take"]),
    ("claim_many", &["look", "wanted", "lanes", "pick_many", "take"]),
    ("claim_plain_one", &["look", "wanted", "lanes", "pick_one", "take_plain"]),
    ("claim_plain_many", &["look", "wanted", "lanes", "pick_many", "take_plain"]),
    ("look", &["look", "seen"]),
    ("look_idly", &["look", "idle"]),
    ("look_at_gate", &["look", "at_gate"]),
    ("finish", &["finish", "end", "finished"]),
    ("relay", &["look", "held", "relay", "pass", "end", "relayed"]),
    ("admit", &["look", "held", "admit", "pass", "end", "admitted"]),
    ("claim_admitted", &["look", "wanted", "lanes_admitted", "pick_many", "take"]),
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
    let lanes = (1..=LANES).map(|n| parts["of_lane"].replace("{n}", &n.to_string()));
    let lanes = lanes.collect::<Vec<_>>().join("UNION ALL ");
    for (name, of) in SEVERAL {
        let text: Vec<&str> = of.iter().map(|part| &*parts[part]).collect();
        statements.insert((*name).to_owned(), text.concat().replace("{lanes}", &lanes));
    }
    statements
}

async fn connect(url: &str) -> Client {
    connect_with(url, PLANS).await
}

async fn connect_with(url: &str, options: &str) -> Client {
    let mut config: tokio_postgres::Config = url.parse().expect("a URL");
    let (client, connection) = config.options(options).connect(NoTls).await.expect("connect");
    tokio::spawn(connection);
    client
}

/// Fills the tables, empties them, and lets the server count.
async fn count_when_empty(client: &Client) {
    let fill = "
        INSERT INTO tidegate.tasks (id, lane, kind, queue, weight, priority, arrival, created_at, payload)
            SELECT n, 1, 'a', 'q', 1, 0, 0, 0, '' FROM generate_series(1, 5000) n;
        INSERT INTO tidegate.ready SELECT n, 1, 0, 0, 0, false, 0 FROM generate_series(1, 5000) n;
        INSERT INTO tidegate.line SELECT n, 1, 0, 0, 0, n, 1, 0, false, 0 FROM generate_series(1, 5000) n;
        INSERT INTO tidegate.running SELECT n, 1, false, false, 0 FROM generate_series(1, 5000) n;
        INSERT INTO tidegate.slots SELECT 1, n, n FROM generate_series(1, 5000) n;
        INSERT INTO tidegate.slot_groups SELECT n, 0, 1 FROM generate_series(1, 5000) n;
        INSERT INTO tidegate.scheduled SELECT n, 0 FROM generate_series(1, 5000) n;
        INSERT INTO tidegate.arrived SELECT n FROM generate_series(1, 5000) n;
        INSERT INTO tidegate.unique_keys SELECT n::text, n FROM generate_series(1, 5000) n;";
    client.batch_execute(fill).await.expect("fill");
    for table in GROWING {
        client.batch_execute(&format!("DELETE FROM tidegate.{table}")).await.expect("empty");
    }
    client.batch_execute("ANALYZE").await.expect("count");
}

async fn plan(client: &Client, name: &str, text: &str) -> Value {
    client.batch_execute(&format!("PREPARE {name} AS {text}")).await.expect(name);
    let count = "SELECT cardinality(parameter_types) FROM pg_prepared_statements WHERE name = $1";
    let count: i32 = client.query_one(count, &[&name]).await.expect(name).get(0);
    let nulls = vec!["NULL"; count as usize].join(", ");
    let arguments = if count == 0 { String::new() } else { format!("({nulls})") };
    let explain = format!("EXPLAIN (FORMAT JSON) EXECUTE {name}{arguments}");
    let answer = client.simple_query(&explain).await.expect(name);
    let text = answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    let plans: Value = serde_json::from_str(text.expect("a plan")).expect("JSON");
    plans[0]["Plan"].clone()
}

/// Growing tables that a plan reads as a whole. A LIMIT right above ends the reading, and so does
/// whoever only asks whether there is a row.
fn read_whole(node: &Value, is_limited: bool, found: &mut BTreeSet<String>) {
    let text = |key: &str| node[key].as_str().unwrap_or_default().to_owned();
    let (kind, table) = (text("Node Type"), text("Relation Name"));
    let is_sub = ["InitPlan", "SubPlan"].contains(&&*text("Parent Relationship"));
    let is_reached = ["Index Cond", "TID Cond"].iter().any(|key| !node[key].is_null());
    let is_one = is_sub && kind == "Index Only Scan" || OF_FEW.contains(&&*text("Index Name"));
    if GROWING.contains(&&*table) && kind.ends_with("Scan") && !(is_reached || is_limited || is_one)
    {
        found.insert(table);
    }
    // A sort reads everything before it gives its first row.
    let passes_on = is_limited && ["LockRows", "Result", "Subquery Scan"].contains(&&*kind);
    for child in node["Plans"].as_array().into_iter().flatten() {
        let is_sub = ["InitPlan", "SubPlan"]
            .contains(&child["Parent Relationship"].as_str().unwrap_or_default());
        let is_limited = !is_sub && (kind == "Limit" || passes_on);
        read_whole(child, is_limited, found);
    }
}

#[tokio::test]
async fn no_statement_reads_a_table_that_was_empty_when_it_was_planned() {
    let database = Server::shared().database();
    let store = Postgres::connect(&database.url(), Options::default()).await.expect("connect");
    store.migrate().await.expect("migrate");
    let client = connect(&database.url()).await;
    count_when_empty(&client).await;
    let mut faults = Vec::new();
    let statements = statements();
    assert!(statements.contains_key("leave") && statements.contains_key("finish"));
    assert!(statements.len() > 60, "{} statements", statements.len());
    for (name, text) in &statements {
        let verb = text.lines().find(|line| !line.starts_with("--")).unwrap_or_default();
        if !["SELECT", "WITH", "INSERT", "UPDATE", "DELETE"]
            .iter()
            .any(|word| verb.starts_with(word))
        {
            continue;
        }
        let mut found = BTreeSet::new();
        read_whole(&plan(&client, name, text).await, false, &mut found);
        for table in found {
            if !WHOLE.iter().any(|(query, whole, _)| query == name && *whole == table) {
                faults.push(format!("{name}.sql reads all of {table}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Every process that shows metrics asks these every few seconds, and they are planned as ever. Limits are
/// listed anyway.
#[tokio::test]
async fn a_sample_finds_what_waits_by_indexes() {
    let database = Server::shared().database();
    let store = Postgres::connect(&database.url(), Options::default()).await.expect("connect");
    store.migrate().await.expect("migrate");
    let client = connect_with(&database.url(), "").await;
    count_when_empty(&client).await;
    for name in ["first_waits", "job_loads"] {
        let path = folder().join("queries").join(name).with_extension("sql");
        let text = fs::read_to_string(path).expect("a query");
        let mut found = BTreeSet::new();
        read_whole(&plan(&client, name, &text).await, false, &mut found);
        assert_eq!(found, BTreeSet::from(["limits".to_owned()]), "{name}");
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
async fn a_claim_begins_at_its_floor_by_the_index() {
    let database = Server::shared().database();
    let store = Postgres::connect(&database.url(), Options::default()).await.expect("connect");
    store.migrate().await.expect("migrate");
    let client = connect(&database.url()).await;
    count_when_empty(&client).await;
    let (mut found, mut lines, mut gates) = (Vec::new(), Vec::new(), Vec::new());
    let claims =
        ["claim_one", "claim_many", "claim_plain_one", "claim_plain_many", "claim_admitted"];
    let relays = ["relay", "admit"];
    for name in claims.into_iter().chain(relays) {
        let plan = plan(&client, name, &statements()[name]).await;
        conditions(&plan, "ready_order", &mut found);
        conditions(&plan, "line_order", &mut lines);
        conditions(&plan, "arrived_pkey", &mut gates);
    }
    assert_eq!(found.len(), 3 + 3 * LANES, "of one lane and of many, and what is before a relay");
    assert!(found.iter().all(|condition| condition.contains("ROW(")), "{found:?}");
    let lines = lines.iter().filter(|condition| condition.contains("ROW("));
    assert_eq!(lines.count(), 2, "what is handed on and what is let in");
    assert_eq!(gates.len(), 7);
    assert!(gates.iter().all(|condition| condition.contains("task >= ")), "{gates:?}");
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
async fn a_claim_merges_its_lanes_and_sorts_nothing() {
    let database = Server::shared().database();
    let store = Postgres::connect(&database.url(), Options::default()).await.expect("connect");
    store.migrate().await.expect("migrate");
    let client = connect(&database.url()).await;
    count_when_empty(&client).await;
    let way = ["Subquery Scan", "Nested Loop", "Nested Loop", "LockRows", "Limit"];
    for name in ["claim_many", "claim_plain_many", "claim_admitted"] {
        let plan = plan(&client, name, &statements()[name]).await;
        assert_eq!(above_the_merge(&plan).as_deref(), Some(&way.map(str::to_owned)[..]), "{name}");
    }
}

#[tokio::test]
async fn a_join_by_a_column_with_an_index_is_found() {
    let database = Server::shared().database();
    let store = Postgres::connect(&database.url(), Options::default()).await.expect("connect");
    store.migrate().await.expect("migrate");
    let client = connect(&database.url()).await;
    count_when_empty(&client).await;
    let join =
        "DELETE FROM tidegate.tasks t USING unnest($1::bigint[]) AS n (task) WHERE t.id = n.task";
    let mut found = BTreeSet::new();
    read_whole(&plan(&client, "joined", join).await, false, &mut found);
    assert_eq!(found, BTreeSet::from(["tasks".to_owned()]));
}
