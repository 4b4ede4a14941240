//! PostgreSQL as others use it: tasks that come from SQL, and roles that may do no more than they
//! should.

use std::sync::Arc;

use insta::assert_snapshot;
use tidegate_core::reader::TaskFilter;
use tidegate_core::{
    Attempt, CapacitySource, Claim, Completion, Finish, JobSpec, Kind, NewTask, Outcome,
    Registration, SetLimit, Store, StoreReader, Submission, WorkerId,
};
use tidegate_store::postgres::{Options, Postgres};
use tidegate_testkit::postgres::{Database, Server};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};

const ROLES: &str = include_str!("../../../../docs/reference/postgres-roles.sql");

async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("connect");
    tokio::spawn(connection);
    client
}

async fn open(url: &str) -> Postgres {
    Postgres::connect(url, Options::default()).await.expect("connect")
}

async fn store_and_client(database: &Database) -> (Postgres, Client) {
    let store = open(&database.url()).await;
    store.migrate().await.expect("migrate");
    (store, client(&database.url()).await)
}

async fn register(store: &Postgres, kinds: &[&str]) {
    let kinds = kinds.iter().map(|kind| Kind::new(*kind)).collect();
    let registration = Registration { kinds, ..Registration::default() };
    store.register(registration).await.expect("register");
}

async fn claim(store: &Postgres, kind: &str) -> Vec<Attempt> {
    let claim = Claim {
        worker: WorkerId("worker".into()),
        queues: ["default".into()].into(),
        kinds: [Arc::from(kind)].into(),
        tasks_max: 100,
        lease_ms: 30_000,
        poll_interval_ms: 1000,
    };
    store.claim(claim).await.expect("claim")
}

async fn finish(store: &Postgres, attempts: &[Attempt]) {
    let exit = |attempt: &Attempt| Completion {
        task: attempt.task,
        token: attempt.token,
        outcome: Outcome::Completed(b"null".to_vec()),
    };
    let exits = attempts.iter().map(exit).collect();
    let finished = store.finish(Finish { completions: exits, claim: None }).await.expect("finish");
    assert!(finished.lost_attempts.is_empty(), "{finished:?}");
}

async fn enqueue(client: &Client, arguments: &str) -> i64 {
    let sql = format!("SELECT tidegate.enqueue({arguments})");
    client.query_one(&sql, &[]).await.expect(&sql).get(0)
}

fn payloads(attempts: &[Attempt]) -> Vec<String> {
    attempts.iter().map(|attempt| String::from_utf8_lossy(&attempt.payload).into_owned()).collect()
}

fn all() -> TaskFilter {
    TaskFilter { tasks_max: 100, ..TaskFilter::default() }
}

// Enqueue

/// All that a submit writes, without ids and times.
const WRITTEN: &str = "
    SELECT t.lane, t.kind, t.queue, t.group_name, t.job, t.workflow, t.unique_key, t.weight,
           t.priority, t.max_attempts, t.timeout_ms, t.attempts_used, t.crashes,
           CASE WHEN t.due_at <> t.created_at THEN t.due_at END AS arrives_later,
           t.error, encode(t.payload, 'escape'),
           a.task IS NOT NULL AS arrived, s.run_at, r.lane AS ready_in, r.rank, r.tag, r.limits_version,
           r.holds_slots, r.ready_at = t.created_at AS is_since_then, k.key
    FROM tidegate.tasks t
    LEFT JOIN tidegate.inbox a ON a.task = t.id
    LEFT JOIN tidegate.scheduled s ON s.task = t.id
    LEFT JOIN tidegate.ready r ON r.task = t.id
    LEFT JOIN tidegate.unique_keys k ON k.task = t.id";

async fn written(client: &Client, task: i64) -> String {
    let sql = format!("SELECT to_jsonb(w)::text FROM ({WRITTEN} WHERE t.id = {task}) AS w");
    client.query_one(&sql, &[]).await.expect("what was written").get(0)
}

#[tokio::test]
async fn sql_enqueue_writes_same_rows_as_submit() {
    let database = Server::shared().database();
    let (store, client) = store_and_client(&database).await;
    register(&store, &["a", "limited"]).await;
    let set = SetLimit {
        name: "group:limited".into(),
        capacity: Some(3),
        source: CapacitySource::Operator,
    };
    store.set_limit(set).await.expect("set");
    let job = JobSpec { concurrency: Some(2), weight: 4, ..JobSpec::new("j") };
    let jobs = Submission { jobs: vec![job], ..Submission::default() };
    store.submit(jobs).await.expect("submit");
    // The rank counts in minutes: both must be in the same one.
    let now = store.now().await.expect("now");
    let run_at = now + 3_600_000;
    let at = format!("run_at => to_timestamp({run_at} / 1000.0)");
    let new = || NewTask::new("a", r#"{"b": [1, 2.50, "ü"]}"#);
    let payload = r#"'{"b": [1, 2.50, "ü"]}'"#;
    let cases: Vec<(NewTask, String)> = vec![
        (new(), format!("'a', {payload}")),
        (NewTask::new("a", "null"), "'a'".into()),
        (NewTask { priority: 7, ..new() }, format!("'a', {payload}, priority => 7")),
        (
            NewTask { effective_group: Some("g".into()), ..new() },
            format!("'a', {payload}, group_name => 'g'"),
        ),
        (NewTask { job: Some("j".into()), ..new() }, format!("'a', {payload}, job => 'j'")),
        (
            NewTask { workflow: Some("w".into()), run_at: Some(run_at), ..new() },
            format!("'a', {payload}, workflow => 'w', {at}"),
        ),
        (NewTask { run_at: Some(run_at), ..new() }, format!("'a', {payload}, {at}")),
        (NewTask { run_at: Some(1), ..new() }, format!("'a', {payload}, run_at => 'epoch'")),
        (
            NewTask { weight: 3, ..NewTask::new("limited", "1") },
            "'limited', '1', weight => 3".into(),
        ),
        (
            NewTask { max_attempts: Some(9), timeout_ms: Some(1500), ..new() },
            format!("'a', {payload}, max_attempts => 9, timeout => '1.5 s'"),
        ),
        (
            NewTask { queue: Some("default".into()), ..new() },
            format!("'a', {payload}, queue => 'default'"),
        ),
    ];
    for (task, arguments) in cases {
        let submission = Submission { tasks: vec![task], ..Submission::default() };
        // Whoever meets the turn of a minute tries again.
        let (mut ours, mut theirs) = (String::new(), "-".to_owned());
        for _ in 0..3 {
            let submitted = store.submit(submission.clone()).await.expect("submit");
            ours = written(&client, submitted[0].task.0).await;
            theirs = written(&client, enqueue(&client, &arguments).await).await;
            if ours == theirs {
                break;
            }
        }
        assert_eq!(ours, theirs, "{arguments}");
    }
}

#[tokio::test]
async fn sql_enqueued_tasks_run_in_order_under_their_limit() {
    let database = Server::shared().database();
    let (store, client) = store_and_client(&database).await;
    register(&store, &["a"]).await;
    let set =
        SetLimit { name: "group:a".into(), capacity: Some(2), source: CapacitySource::Operator };
    store.set_limit(set).await.expect("set");
    let sql = "SELECT tidegate.enqueue_many('a', ARRAY['1', '2', '3', '4', '5']::jsonb[])";
    assert_eq!(client.query(sql, &[]).await.expect("enqueue").len(), 5);
    let mut order = Vec::new();
    loop {
        let attempts = claim(&store, "a").await;
        if attempts.is_empty() {
            break;
        }
        assert!(attempts.len() <= 2, "{attempts:?}");
        order.extend(payloads(&attempts));
        finish(&store, &attempts).await;
    }
    assert_eq!(order, ["1", "2", "3", "4", "5"]);
}

#[tokio::test]
async fn sql_trigger_enqueues_in_its_transaction() {
    let database = Server::shared().database();
    let (store, client) = store_and_client(&database).await;
    register(&store, &["mail"]).await;
    let trigger = "
        CREATE TABLE users (id bigint PRIMARY KEY);
        CREATE FUNCTION welcome() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM tidegate.enqueue('mail', jsonb_build_object('user', new.id));
            RETURN new;
        END $$;
        CREATE TRIGGER welcome AFTER INSERT ON users FOR EACH ROW EXECUTE FUNCTION welcome();";
    client.batch_execute(trigger).await.expect("a trigger");
    let undone = "BEGIN; INSERT INTO users VALUES (1); ROLLBACK";
    client.batch_execute(undone).await.expect("insert");
    client.batch_execute("BEGIN; INSERT INTO users VALUES (2), (3)").await.expect("insert");
    assert!(claim(&store, "mail").await.is_empty());
    client.batch_execute("COMMIT").await.expect("commit");
    let mut users = payloads(&claim(&store, "mail").await);
    users.sort();
    assert_eq!(users, [r#"{"user": 2}"#, r#"{"user": 3}"#]);
}

#[tokio::test]
async fn unique_key_is_shared_by_sql_and_submit() {
    let database = Server::shared().database();
    let (store, client) = store_and_client(&database).await;
    register(&store, &["a"]).await;
    let first = enqueue(&client, "'a', unique_key => 'k'").await;
    assert_eq!(enqueue(&client, "'a', unique_key => 'k'").await, first);
    let same = NewTask { unique_key: Some("k".into()), ..NewTask::new("a", "null") };
    let submission = Submission { tasks: vec![same], ..Submission::default() };
    let submitted = store.submit(submission).await.expect("submit");
    assert_eq!((submitted[0].task.0, submitted[0].is_new), (first, false));
    finish(&store, &claim(&store, "a").await).await;
    assert_ne!(enqueue(&client, "'a', unique_key => 'k'").await, first);
}

#[tokio::test]
async fn sql_enqueue_of_invalid_input_is_rejected_and_stores_nothing() {
    let database = Server::shared().database();
    let (store, client) = store_and_client(&database).await;
    register(&store, &["a"]).await;
    let set =
        SetLimit { name: "group:a".into(), capacity: Some(2), source: CapacitySource::Operator };
    store.set_limit(set).await.expect("set");
    let long = format!("'{}'", "x".repeat(201));
    let cases = [
        ("'nobody'", "nobody"),
        ("'a', queue => 'other'", "other"),
        ("'a', job => 'other'", "other"),
        ("''", ""),
        ("NULL", "NULL"),
        ("'a,b'", ""),
        (&*format!("'a', group_name => {long}"), "201"),
        (r"'a', workflow => E'a\nb'", ""),
        (r"'a', unique_key => U&'a\0085b'", ""),
        ("'a', priority => 1001", "1001"),
        ("'a', weight => 0", "0"),
        ("'a', weight => 3", "3"),
        ("'a', max_attempts => 0", "0"),
        ("'a', timeout => '-1 s'", "-1000"),
        ("'a', timeout => '10 years'", ""),
        ("'a', NULL::jsonb", "NULL"),
        ("'a', (repeat('[', 65) || repeat(']', 65))::jsonb", "64"),
        ("'a', to_jsonb(repeat('x', 1048576))", "1048578"),
    ];
    let mut errors = String::new();
    for (arguments, value) in cases {
        let error = client.query(&format!("SELECT tidegate.enqueue({arguments})"), &[]).await;
        let error = error.expect_err(arguments);
        let error = error.as_db_error().expect(arguments);
        assert_eq!(error.code(), &SqlState::INVALID_PARAMETER_VALUE, "{arguments}: {error}");
        assert!(error.message().contains(value), "{arguments}: {error}");
        errors.push_str(&format!("{arguments:.50}: {}\n", error.message()));
        assert!(error.hint().is_some(), "{arguments}: {error}");
    }
    assert_snapshot!(
        errors,
        @r#"
        'nobody': the kind nobody is not known
        'a', queue => 'other': the kind a is not known in the queue other
        'a', job => 'other': the job other is not known
        '': the kind is empty
        NULL: the kind, the payload, the priority or the weight is NULL
        'a,b': the kind "a,b" has a comma
        'a', group_name => 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx: the group has 201 bytes
        'a', workflow => E'a\nb': the workflow has a control character
        'a', unique_key => U&'a\0085b': the unique key has a control character
        'a', priority => 1001: the priority is 1001
        'a', weight => 0: the weight is 0
        'a', weight => 3: a task of weight 3 can never run under "group:a", whose limit is 2
        'a', max_attempts => 0: the max_attempts is 0
        'a', timeout => '-1 s': the timeout in ms is -1000
        'a', timeout => '10 years': the timeout in ms is 315576000000
        'a', NULL::jsonb: a payload is NULL
        'a', (repeat('[', 65) || repeat(']', 65))::jsonb: a payload is nested deeper than 64 levels
        'a', to_jsonb(repeat('x', 1048576)): a payload has 1048578 bytes
        "#
    );
    let many = "SELECT tidegate.enqueue_many('a', array_fill('1'::jsonb, ARRAY[10001]))";
    let error = client.query(many, &[]).await.expect_err("too many");
    let error = error.as_db_error().expect("an answer");
    assert!(error.message().contains("10001"), "{error}");
    assert_snapshot!(error.message(), @"the number of payloads is 10001");
    enqueue(&client, "'a', (repeat('[', 64) || repeat(']', 64))::jsonb").await;
    assert_eq!(claim(&store, "a").await.len(), 1);
}

#[tokio::test]
async fn sql_functions_create_kinds_and_jobs() {
    let database = Server::shared().database();
    let (store, client) = store_and_client(&database).await;
    let make = "SELECT tidegate.create_kind('k'), tidegate.create_kind('k', 'fast'),
                       tidegate.create_job('j', 1, 3), tidegate.create_job('j', 9)";
    client.query(make, &[]).await.expect("make");
    enqueue(&client, "'k', job => 'j'").await;
    enqueue(&client, "'k', job => 'j', queue => 'fast'").await;
    let attempts = claim(&store, "k").await;
    assert_eq!(attempts.len(), 1);
    let jobs = store.jobs().await.expect("jobs");
    assert_eq!((jobs[0].concurrency, jobs[0].weight), (Some(1), 3));
}

#[tokio::test]
async fn sql_guide_examples_run() {
    let database = Server::shared().database();
    let (store, client) = store_and_client(&database).await;
    let page = include_str!("../../../../docs/guides/submit-from-sql.md");
    let blocks: Vec<&str> =
        page.split("```sql\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(blocks.len(), 6);
    for block in blocks {
        client.batch_execute(block).await.expect(block);
    }
    let mut found = payloads(&claim(&store, "mail").await);
    found.sort();
    assert_eq!(
        found,
        [r#"{"order": 17}"#, r#"{"order": 17}"#, r#"{"order": 18}"#, r#"{"to": "all"}"#]
    );
}

// Roles

/// A user of the server in one of the roles, and the URL of the database for it.
async fn user(admin: &Client, database: &Database, role: &str) -> String {
    let name = format!("{}_{role}", database.name());
    let make = format!("CREATE ROLE \"{name}\" LOGIN IN ROLE tidegate_{role}");
    admin.batch_execute(&make).await.expect("make a user");
    let url: Vec<String> = database
        .url()
        .split('&')
        .map(|part| match part.split_once("user=") {
            Some((before, _)) => format!("{before}user={name}"),
            None => part.to_owned(),
        })
        .collect();
    url.join("&")
}

struct RoleUrls {
    migrator: String,
    worker: String,
    enqueue: String,
    viewer: String,
}

/// The roles, and a store that its migrator made.
async fn create_roles(admin: &Client, database: &Database) -> RoleUrls {
    admin.batch_execute(ROLES).await.expect("the roles");
    let cast = RoleUrls {
        migrator: user(admin, database, "migrator").await,
        worker: user(admin, database, "worker").await,
        enqueue: user(admin, database, "enqueue").await,
        viewer: user(admin, database, "viewer").await,
    };
    let owner = format!("{}&options=-c%20role=tidegate_owner", cast.migrator);
    open(&owner).await.migrate().await.expect("migrate");
    admin.batch_execute(ROLES).await.expect("the roles once more");
    cast
}

#[tokio::test]
async fn worker_role_runs_tasks_and_cannot_change_tables() {
    let database = Server::shared().empty_database();
    let admin = client(&database.url()).await;
    let cast = create_roles(&admin, &database).await;
    let store = open(&cast.worker).await;
    store.migrate().await.expect("there is nothing to migrate");
    register(&store, &["a"]).await;
    let tasks = vec![NewTask::new("a", "null")];
    store.submit(Submission { tasks, ..Submission::default() }).await.expect("submit");
    finish(&store, &claim(&store, "a").await).await;
    store.repair().await.expect("repair");
    store.prune().await.expect("prune");
    let worker = client(&cast.worker).await;
    for forbidden in [
        "DROP TABLE tidegate.tasks",
        "ALTER TABLE tidegate.tasks ADD COLUMN x int",
        "TRUNCATE tidegate.tasks",
        "CREATE TABLE tidegate.mine ()",
        "DELETE FROM tidegate.migrations",
        "SET ROLE tidegate_owner",
    ] {
        forbidden_to(&worker, forbidden).await;
    }
}

async fn forbidden_to(client: &Client, sql: &str) {
    let error = client.batch_execute(sql).await.expect_err(sql);
    assert_eq!(error.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE), "{sql}: {error}");
}

/// What somebody with the role might try.
const FORBIDDEN: [&str; 34] = [
    "SELECT payload FROM tidegate.tasks",
    "SELECT count(*) FROM tidegate.tasks",
    "SELECT * FROM tidegate.ready",
    "SELECT * FROM tidegate.leases",
    "SELECT * FROM tidegate.task_states",
    "SELECT * FROM tidegate.unique_keys",
    "SELECT * FROM tidegate.migrations",
    "SELECT last_value FROM tidegate.task_ids",
    "SELECT nextval('tidegate.tokens')",
    "SELECT setval('tidegate.task_ids', 1)",
    "COPY tidegate.tasks TO STDOUT",
    "COPY (SELECT * FROM tidegate.tasks) TO PROGRAM 'cat'",
    "INSERT INTO tidegate.ready VALUES (1, 1, 0, 0, 0, false, 0)",
    "INSERT INTO tidegate.inbox VALUES (1)",
    "INSERT INTO tidegate.limits (name) VALUES ('group:a')",
    "INSERT INTO tidegate.paused_queues VALUES ('default', 0)",
    "UPDATE tidegate.tasks SET priority = 1000",
    "UPDATE tidegate.limits SET capacity = 1000000",
    "UPDATE tidegate.leases SET expires_at = 0",
    "DELETE FROM tidegate.tasks",
    "DELETE FROM tidegate.unique_keys",
    "TRUNCATE tidegate.tasks",
    "DROP TABLE tidegate.tasks",
    "DROP FUNCTION tidegate.create_kind",
    "DROP SCHEMA tidegate CASCADE",
    "ALTER TABLE tidegate.tasks DISABLE ROW LEVEL SECURITY",
    "ALTER FUNCTION tidegate.create_kind RESET search_path",
    "CREATE TABLE tidegate.mine ()",
    "CREATE FUNCTION tidegate.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "SELECT tidegate.create_kind('mine')",
    "SELECT tidegate.create_job('mine')",
    "SELECT tidegate.insert_tasks('a', '{}', '', '', '', '', '', 0, 1, 1, '1 s', now(), 'halt', '')",
    "DO $$ BEGIN LOCK TABLE tidegate.tasks; END $$",
    "SET ROLE tidegate_worker",
];

#[tokio::test]
async fn enqueue_role_can_only_enqueue() {
    let database = Server::shared().empty_database();
    let admin = client(&database.url()).await;
    let cast = create_roles(&admin, &database).await;
    let store = open(&cast.worker).await;
    register(&store, &["a"]).await;
    let sender = client(&cast.enqueue).await;
    for sql in FORBIDDEN {
        forbidden_to(&sender, sql).await;
    }
    enqueue(&sender, "'a', '1'").await;
    // Nor does anything that the sender puts in the way reach the functions.
    let own = format!("CREATE SCHEMA own AUTHORIZATION \"{}_enqueue\"", database.name());
    admin.batch_execute(&own).await.expect("a schema of its own");
    let in_the_way = "
        CREATE FUNCTION own.trap() RETURNS int LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'the trap was called'; END $$;
        CREATE FUNCTION own.octet_length(bytea) RETURNS int LANGUAGE sql AS 'SELECT own.trap()';
        CREATE FUNCTION own.cardinality(jsonb[]) RETURNS int LANGUAGE sql AS 'SELECT own.trap()';
        CREATE FUNCTION own.join(text, text) RETURNS text LANGUAGE sql AS
            'SELECT own.trap()::text';
        CREATE OPERATOR own.|| (FUNCTION = own.join, LEFTARG = text, RIGHTARG = text);
        SET search_path = own, pg_catalog;";
    sender.batch_execute(in_the_way).await.expect("put in the way");
    sender.query("SELECT cardinality('{}'::jsonb[])", &[]).await.expect_err("the trap works");
    let task = enqueue(&sender, "'a', '2', unique_key => 'k'").await;
    assert!(task > 0);
    let tasks = store.tasks(all()).await.expect("tasks");
    assert_eq!(tasks.len(), 2);
    let loose = "SELECT count(*) FROM pg_proc WHERE pronamespace = 'tidegate'::regnamespace
                 AND NOT coalesce(proconfig @> ARRAY['search_path=pg_catalog, pg_temp'], false)";
    assert_eq!(admin.query_one(loose, &[]).await.expect("functions").get::<_, i64>(0), 0);
    assert_eq!(payloads(&claim(&store, "a").await), ["1", "2"]);
}

#[tokio::test]
async fn viewer_role_reads_all_but_payloads_and_cannot_write() {
    let database = Server::shared().empty_database();
    let admin = client(&database.url()).await;
    let cast = create_roles(&admin, &database).await;
    let store = open(&cast.worker).await;
    register(&store, &["a"]).await;
    let submit = async || {
        let tasks = vec![NewTask::new("a", "\"secret\"")];
        store.submit(Submission { tasks, ..Submission::default() }).await.expect("submit");
    };
    submit().await;
    finish(&store, &claim(&store, "a").await).await;
    submit().await;
    let view = open(&cast.viewer).await;
    assert_eq!(view.tasks(all()).await.expect("tasks").len(), 2);
    assert_eq!(view.task_counts().await.expect("counts").len(), 2);
    view.limits().await.expect("limits");
    let viewer = client(&cast.viewer).await;
    for forbidden in [
        "SELECT payload FROM tidegate.tasks",
        "SELECT payload FROM tidegate.finished",
        "SELECT result FROM tidegate.finished",
        "SELECT payload FROM tidegate.finished_forever",
        "SELECT tidegate.rotate_finished_partitions(0)",
        "DELETE FROM tidegate.tasks",
        "UPDATE tidegate.limits SET capacity = 1",
        "SELECT tidegate.enqueue('a')",
    ] {
        forbidden_to(&viewer, forbidden).await;
    }
}

#[tokio::test]
async fn roles_created_before_migration_have_no_access() {
    let database = Server::shared().empty_database();
    let admin = client(&database.url()).await;
    admin.batch_execute(ROLES).await.expect("the roles");
    let owner = user(&admin, &database, "migrator").await;
    let owner = format!("{owner}&options=-c%20role=tidegate_owner");
    open(&owner).await.migrate().await.expect("migrate");
    let viewer = client(&user(&admin, &database, "viewer").await).await;
    forbidden_to(&viewer, "SELECT payload FROM tidegate.tasks").await;
    let sender = client(&user(&admin, &database, "enqueue").await).await;
    forbidden_to(&sender, "SELECT tidegate.enqueue('a')").await;
}

#[tokio::test]
async fn role_script_transfers_ownership_of_existing_store() {
    let database = Server::shared().database();
    let (store, admin) = store_and_client(&database).await;
    register(&store, &["a"]).await;
    admin.batch_execute(ROLES).await.expect("the roles");
    let owners = "SELECT count(*) FROM pg_class c WHERE relnamespace = 'tidegate'::regnamespace
                  AND relowner <> 'tidegate_owner'::regrole";
    assert_eq!(admin.query_one(owners, &[]).await.expect("owners").get::<_, i64>(0), 0);
    let worker = open(&user(&admin, &database, "worker").await).await;
    let tasks = vec![NewTask::new("a", "null")];
    worker.submit(Submission { tasks, ..Submission::default() }).await.expect("submit");
    finish(&worker, &claim(&worker, "a").await).await;
}

// The schema

/// The schema after all migrations. `TIDEGATE_BLESS=1` writes it anew.
#[tokio::test]
async fn schema_matches_the_checked_in_dump() {
    let database = Server::shared().empty_database();
    let (_, client) = store_and_client(&database).await;
    let dump = include_str!("../../src/schema.sql");
    let found: String = client.query_one(dump, &[]).await.expect("the schema").get(0);
    let found = format!("{found}\n");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../store/src/postgres/schema.txt");
    if std::env::var_os("TIDEGATE_BLESS").is_some() {
        std::fs::write(path, &found).expect("write the schema");
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(found, written, "run it with TIDEGATE_BLESS=1 to write the schema anew");
}
