//! Corruptions planted by hand in the database: `doctor` says each of them in words, `--repair`
//! mends it, and all work is done afterwards.

use crate::common::{Shell, expect_exit, expect_numbers, expect_output, format_output, numbers};
use insta::{allow_duplicates, assert_snapshot};
use tidegate_core::{
    Attempt, CapacitySource, Claim, Completion, Finish, NewTask, Outcome, SetLimit, Submission,
    WorkerId,
};
use tidegate_store::{OpenOptions, StoreHandle};
use tidegate_testkit::conformance::fixture::settle;
use tidegate_testkit::postgres::{Database, Server};

/// A lease that does not run out in a test.
const LEASE_MS: i64 = 3_600_000;

/// A corruption, in the SQL of both stores, and numbers that follow each other in a line of `doctor` about it.
struct Corruption {
    name: &'static str,
    sqlite: &'static str,
    postgres: &'static str,
    numbers: &'static [i64],
}

/// Tasks 1 and 2 run, 3 and 4 wait for their slots, 5 is ready and has a key, 6 is not due, 7 is
/// completed; 8 and 9 are steps of a workflow, of which 8 runs; 10 is of a job and waits.
const CORRUPTIONS: [Corruption; 22] = [
    Corruption {
        name: "more slots counted than held",
        sqlite: "update limits set held = held + 1 where name = 'group:g'",
        postgres: "update tidegate.slot_groups set taken = taken || 50 where limit_id = 1 and number = 0",
        numbers: &[3, 3, 0, 2, 3, 0],
    },
    Corruption {
        name: "fewer tasks counted than wait",
        sqlite: "update limits set waiting = 0 where name = 'group:g'",
        postgres: "update tidegate.limits set waiting = 0 where name = 'group:g'",
        numbers: &[2, 0, 0, 2, 3, 0],
    },
    Corruption {
        name: "a slot of a task that has ended",
        sqlite: "insert or replace into slots values (1, 9, 7)",
        postgres: "insert into tidegate.slots values (1, 9, 7)",
        numbers: &[1, 7],
    },
    Corruption {
        name: "a running task without its slot",
        sqlite: "update slots set task = null where task = 1",
        postgres: "update tidegate.leases set tasks = tasks[2:] || tasks[1:1], limits = limits[2:], \
                   numbers = numbers[2:] where tasks[1] = 1",
        numbers: &[1, 1, 0],
    },
    Corruption {
        name: "running tasks without a lease",
        sqlite: "delete from leases",
        postgres: "delete from tidegate.leases",
        numbers: &[8, 3],
    },
    Corruption {
        name: "a lease that nothing runs under",
        sqlite: "insert into leases values (0, 'ghost', 9000000000000)",
        postgres: "insert into tidegate.leases values (0, 'ghost', 9000000000000)",
        numbers: &[0],
    },
    Corruption {
        name: "a task in two places",
        sqlite: "insert into inbox (task) values (3)",
        postgres: "insert into tidegate.inbox values (3)",
        numbers: &[3],
    },
    Corruption {
        name: "a task that stands nowhere",
        sqlite: "delete from waiters where task = 4",
        postgres: "delete from tidegate.waiters where task = 4",
        numbers: &[4],
    },
    Corruption {
        name: "a row without a task",
        sqlite: "insert into inbox (task) values (4711)",
        postgres: "insert into tidegate.inbox values (4711)",
        numbers: &[4711],
    },
    Corruption {
        name: "a task that has ended and is to start",
        sqlite: "insert into scheduled values (7, 0)",
        postgres: "insert into tidegate.scheduled values (7, 0)",
        numbers: &[7],
    },
    Corruption {
        name: "a task that waits beside a free slot",
        sqlite: "update limits set capacity = 3 where name = 'group:g'; insert or ignore into slots values (1, 2, null)",
        postgres: "update tidegate.limits set capacity = 3 where name = 'group:g'",
        numbers: &[3, 2, 3],
    },
    Corruption {
        name: "a seat for one who does not reserve",
        sqlite: "update limits set reserving_task = 5 where name = 'group:g'",
        postgres: "update tidegate.limits set reserving_task = 5 where name = 'group:g'",
        numbers: &[5],
    },
    Corruption {
        name: "tokens that would be given twice",
        sqlite: "update counters set last_token = 0",
        postgres: "select setval('tidegate.tokens', 1)",
        numbers: &[3],
    },
    Corruption {
        name: "places that would be given twice",
        sqlite: "update counters set last_admission_seq = 0",
        postgres: "select setval('tidegate.admission_seqs', 1)",
        numbers: &[],
    },
    Corruption {
        name: "a line of a limit that is not there",
        sqlite: "update waiters set limit_id = 99 where task = 3",
        postgres: "update tidegate.waiters set limit_id = 99 where task = 3",
        numbers: &[3, 99],
    },
    Corruption {
        name: "a count below zero",
        sqlite: "update limits set held = -1 where name = 'group:g'",
        postgres: "update tidegate.limits set waiting = -1 where name = 'group:g'",
        numbers: &[2, 3, 0],
    },
    Corruption {
        name: "a workflow under way without its limit",
        sqlite: "delete from limits where name = 'workflow:w'",
        postgres: "delete from tidegate.limits where name = 'workflow:w'",
        numbers: &[],
    },
    Corruption {
        name: "ids of tasks that would be given twice",
        sqlite: "update counters set last_task_id = 3",
        postgres: "select setval('tidegate.task_ids', 3)",
        numbers: &[10, 3],
    },
    Corruption {
        name: "a task that is not due and stands at the gate",
        sqlite: "insert into inbox (task) values (6)",
        postgres: "insert into tidegate.inbox values (6)",
        numbers: &[6],
    },
    Corruption {
        name: "a job that counts more ahead than there are",
        sqlite: "update limits set in_window = 7 where name = 'job:j'",
        postgres: "update tidegate.limits set in_window = 7 where name = 'job:j'",
        numbers: &[7],
    },
    Corruption {
        name: "a task in the line of another's limit",
        sqlite: "update waiters set limit_id = (select id from limits where name = 'job:j') \
                 where task = 3",
        postgres: "update tidegate.waiters set limit_id = \
                   (select id from tidegate.limits where name = 'job:j') where task = 3",
        numbers: &[3],
    },
    Corruption {
        name: "a ready task that is ready twice over",
        sqlite: "insert into waiters values (1, 0, 0, 0, 0, 5, 1, 0, 0, 0)",
        postgres: "insert into tidegate.waiters values (5, 1, 0, 0, 0, 0, 1, 0, false, 0)",
        numbers: &[5],
    },
];

/// What only PostgreSQL keeps by hand.
const MANUAL_REPAIRS: [Corruption; 4] = [
    Corruption {
        name: "a group of slots with too large a part of the capacity",
        sqlite: "",
        postgres: "update tidegate.slot_groups set capacity = 5 where limit_id = 1 and number = 0",
        numbers: &[0, 5, 0, 1, 0],
    },
    Corruption {
        name: "a group of slots that is gone",
        sqlite: "",
        postgres: "delete from tidegate.slot_groups where limit_id = 1 and number = 1",
        numbers: &[1, 1, 1],
    },
    Corruption {
        name: "a key that nobody carries",
        sqlite: "",
        postgres: "insert into tidegate.unique_keys values ('gone', 7)",
        numbers: &[7],
    },
    Corruption {
        name: "a key that is not noted",
        sqlite: "",
        postgres: "update tidegate.unique_keys set task = null where key = 'k'",
        numbers: &[5],
    },
];

/// A store that work goes on in.
struct BusyStore {
    shell: Shell,
    url: String,
    running: Vec<Attempt>,
    /// Dropped last: the data goes with it.
    database: Option<Database>,
}

impl BusyStore {
    async fn on_sqlite() -> Self {
        let shell = Shell::new();
        let url = format!("sqlite:{}", shell.path("t.db").display());
        Self::new(shell, url, None).await
    }

    async fn on_postgres() -> Self {
        let database = Server::shared().database();
        Self::new(Shell::new(), database.url(), Some(database)).await
    }

    async fn new(shell: Shell, url: String, database: Option<Database>) -> Self {
        let StoreHandle { store, .. } = open(&url).await;
        store.migrate().await.expect("migrate");
        let capacity = Some(2);
        let set = SetLimit { name: "group:g".into(), capacity, source: CapacitySource::Operator };
        store.set_limit(set).await.expect("set a limit");
        let new = || NewTask::new("noop", "null");
        let limited = || NewTask { effective_group: Some("g".into()), ..new() };
        let keyed = NewTask { unique_key: Some("k".into()), ..new() };
        let late = NewTask { run_at: Some(9_000_000_000_000), ..new() };
        let tasks = vec![limited(), limited(), limited(), limited(), keyed, late];
        let other = NewTask { queue: Some("other".into()), ..new() };
        let step = || NewTask { workflow: Some("w".into()), queue: Some("steps".into()), ..new() };
        let of_job = NewTask { job: Some("j".into()), ..limited() };
        let submission = |tasks| Submission { tasks, ..Submission::default() };
        store.submit(submission(tasks)).await.expect("submit");
        store.submit(submission(vec![other, step(), step(), of_job])).await.expect("submit");
        let ended = store.claim(claim("other", 1)).await.expect("claim");
        finish(&*store, &ended).await;
        store.claim(claim("default", 0)).await.expect("claim none");
        settle(&*store).await;
        let mut running = store.claim(claim("default", 2)).await.expect("claim");
        store.claim(claim("steps", 0)).await.expect("claim none");
        settle(&*store).await;
        running.extend(store.claim(claim("steps", 9)).await.expect("claim"));
        settle(&*store).await;
        running.sort_by_key(|one| one.task);
        assert_eq!(running.iter().map(|one| one.task.0).collect::<Vec<_>>(), [1, 2, 8]);
        Self { shell, url, running, database }
    }

    async fn corrupt(&self, corruption: &Corruption) {
        match &self.database {
            None => {
                let connection = rusqlite::Connection::open(self.shell.path("t.db")).expect("open");
                connection.execute_batch(corruption.sqlite).expect(corruption.name);
            }
            Some(database) => {
                let (client, connection) =
                    tokio_postgres::connect(&database.url(), tokio_postgres::NoTls)
                        .await
                        .expect("connect");
                tokio::spawn(connection);
                client.batch_execute(corruption.postgres).await.expect(corruption.name);
            }
        }
    }

    fn tidegate(&self, arguments: &[&str]) -> String {
        let output = self.shell.command(arguments).env("TIDEGATE_STORE", &self.url).output();
        format_output(&output.expect("run the binary"))
    }

    /// What was done is done, and the rest is.
    async fn run_all(&self, name: &str) {
        finish(&*open(&self.url).await.store, &self.running).await;
        let hastened = self.tidegate(&["task", "retry", "6"]);
        allow_duplicates! {
            assert_snapshot!(expect_output(0, &[6], &hastened), @"task 6 is due now");
        }
        let worked = self.tidegate(&["worker", "--until-idle", "--queues", "default,steps"]);
        assert!(worked.starts_with("exit 0\n"), "{name}: {worked}");
        let left = self.tidegate(&["doctor", "--at-rest"]);
        assert!(left.starts_with("exit 0\n"), "{name}: {left}");
        assert_eq!(
            numbers(&expect_exit(0, &left))[..2],
            [0, 10],
            "{name}: unfinished and finished: {left}"
        );
    }

    /// However it was mended, no second step runs beside the one that does.
    async fn assert_step_order(&self, name: &str) {
        let store = open(&self.url).await.store;
        store.claim(claim("steps", 0)).await.expect("claim none");
        settle(&*store).await;
        let claimed = store.claim(claim("steps", 9)).await.expect("claim");
        assert!(claimed.is_empty(), "{name}: {claimed:?}");
    }

    /// Returns what was found and how it was repaired.
    async fn assert_repaired(&self, name: &str, found_numbers: &[&[i64]]) -> String {
        let found = self.tidegate(&["doctor"]);
        assert!(found.starts_with("exit 1\n"), "{name}: {found}");
        for wanted in found_numbers.iter().filter(|wanted| !wanted.is_empty()) {
            let has = |line: &str| numbers(line).windows(wanted.len()).any(|some| some == *wanted);
            assert!(found.lines().any(has), "{name}: {wanted:?}: {found}");
        }
        let repaired = self.tidegate(&["doctor", "--repair"]);
        assert!(repaired.starts_with("exit 0\n"), "{name}: {repaired}");
        assert!(repaired.contains("\nrepaired: "), "{name}: {repaired}");
        let clean = expect_exit(0, &self.tidegate(&["doctor"]));
        allow_duplicates! {
            assert_snapshot!(clean.lines().last().expect(name), @"clean: every rule holds");
        }
        if name != "running tasks without a lease" {
            self.assert_step_order(name).await;
        }
        self.run_all(name).await;
        format!("## {name}\n{}{}", expect_exit(1, &found), expect_exit(0, &repaired))
    }
}

async fn open(url: &str) -> StoreHandle {
    tidegate_store::open(url, OpenOptions::default()).await.expect("open")
}

fn claim(queue: &str, tasks_max: u32) -> Claim {
    Claim {
        worker: WorkerId("gone".into()),
        queues: [queue.into()].into(),
        kinds: ["noop".into()].into(),
        tasks_max,
        lease_ms: LEASE_MS,
        poll_interval_ms: 1000,
    }
}

/// What a repair took back is lost, and runs again.
async fn finish(store: &dyn tidegate_core::Store, attempts: &[Attempt]) {
    let outcome = Outcome::Completed(b"null".to_vec());
    let exits = attempts.iter().map(|one| Completion {
        task: one.task,
        token: one.token,
        outcome: outcome.clone(),
    });
    store.finish(Finish { completions: exits.collect(), claim: None }).await.expect("finish");
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_finds_and_repairs_corruption_in_sqlite() {
    let mut texts = String::new();
    for corruption in &CORRUPTIONS {
        let busy = BusyStore::on_sqlite().await;
        busy.corrupt(corruption).await;
        texts.push_str(&busy.assert_repaired(corruption.name, &[corruption.numbers]).await);
    }
    assert_snapshot!(texts);
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_finds_and_repairs_corruption_in_postgres() {
    let mut texts = String::new();
    for corruption in CORRUPTIONS.iter().chain(&MANUAL_REPAIRS) {
        let busy = BusyStore::on_postgres().await;
        busy.corrupt(corruption).await;
        texts.push_str(&busy.assert_repaired(corruption.name, &[corruption.numbers]).await);
    }
    assert_snapshot!(texts);
}

/// One fault often comes with others.
#[tokio::test(flavor = "multi_thread")]
async fn doctor_repairs_many_faults_at_once() {
    let mut texts = String::new();
    let together = [0, 2, 3, 5, 6, 7, 8, 9, 11, 12, 13, 16, 17, 18, 19];
    for busy in [BusyStore::on_sqlite().await, BusyStore::on_postgres().await] {
        for corruption in together {
            busy.corrupt(&CORRUPTIONS[corruption]).await;
        }
        texts.push_str(&busy.assert_repaired("many", &[&[4], &[3]]).await);
    }
    assert_snapshot!(texts);
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_leaves_consistent_store_unchanged() {
    let mut texts = String::new();
    for busy in [BusyStore::on_sqlite().await, BusyStore::on_postgres().await] {
        let looked = busy.tidegate(&["doctor"]);
        assert_eq!(busy.tidegate(&["doctor", "--repair"]), looked);
        texts.push_str(&expect_output(0, &[9, 1, 3, 3, 2], &looked));
        let told = busy.tidegate(&["doctor", "--json"]);
        let told = told.lines().nth(1).expect("a diagnosis");
        let told: serde_json::Value = serde_json::from_str(told).expect("JSON");
        let encrypted = busy.database.as_ref().map(|_| false);
        assert_eq!(told["connection"]["encrypted"], serde_json::json!(encrypted));
        busy.run_all("sound").await;
    }
    assert_snapshot!(
        texts,
        @"
        looked at 9 unfinished and 1 finished task, 3 limits, 3 held slots, 2 leases
        clean: every rule holds
        looked at 9 unfinished and 1 finished task, 3 limits, 3 held slots, 2 leases
        connection: Unix socket, not encrypted
        clean: every rule holds
        "
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_prints_repairs_as_json() {
    let busy = BusyStore::on_sqlite().await;
    busy.corrupt(&CORRUPTIONS[8]).await;
    let told = busy.tidegate(&["doctor", "--repair", "--json"]);
    let mut lines = told.lines();
    assert_eq!(lines.next(), Some("exit 0"));
    let told = lines.next().expect("a diagnosis");
    assert_snapshot!(
        expect_numbers(&[4711], lines.next().unwrap_or_default()),
        @"repaired: task 4711 no longer stands at the gate"
    );
    let told: serde_json::Value = serde_json::from_str(told).expect("JSON");
    assert_eq!(told["clean"], true);
    assert_eq!(told["repairs"][0]["repair"], "remove_position");
    assert_eq!(told["repairs"][0]["task"], 4711);
    assert_snapshot!(
        told["violations"][0]["rule"].as_str().unwrap_or_default(),
        @"what stands somewhere is an unfinished task"
    );
}
