//! The slots of a limit as PostgreSQL keeps them: in at most fifty groups whose parts are exactly the
//! capacity, each slot with a number and one holder, whatever becomes of the limit meanwhile.

use std::collections::BTreeSet;

use tidegate_core::invariants::check;
use tidegate_core::{
    Attempt, CapacitySource, Claim, Completion, Finish, Kind, NewTask, Outcome, Registration,
    SetLimit, Store, StoreReader, Submission, WorkerId,
};
use tidegate_store::postgres::{Options, Postgres};
use tidegate_testkit::postgres::{Database, Server};
use tokio_postgres::{Client, NoTls};

const LIMIT: &str = "group:call";

/// One store with the kind `call`, and a connection to look at its rows.
struct SlotHarness {
    store: Postgres,
    client: Client,
    /// Dropped last: the data goes with it.
    _database: Database,
}

/// A group's part of the capacity, and the slots that are taken there.
type SlotGroup = (Option<i64>, Vec<i32>);

impl SlotHarness {
    async fn new() -> Self {
        let database = Server::shared().database();
        let store = Postgres::connect(&database.url(), Options::default()).await.expect("connect");
        store.migrate().await.expect("migrate");
        let (client, connection) =
            tokio_postgres::connect(&database.url(), NoTls).await.expect("connect");
        tokio::spawn(connection);
        let lab = Self { store, client, _database: database };
        let kinds = vec![Kind::new("call")];
        lab.store.register(Registration { kinds, ..Registration::default() }).await.expect("kind");
        lab
    }

    async fn set(&self, capacity: Option<u32>) {
        let set = SetLimit { name: LIMIT.into(), capacity, source: CapacitySource::Operator };
        self.store.set_limit(set).await.expect("set the limit");
    }

    async fn submit(&self, number: usize) {
        let tasks = (0..number).map(|_| NewTask::new("call", "null")).collect();
        self.store.submit(Submission { tasks, ..Submission::default() }).await.expect("submit");
    }

    async fn claim(&self, tasks_max: u32) -> Vec<Attempt> {
        let claim = Claim {
            worker: WorkerId("worker".into()),
            queues: ["default".into()].into(),
            kinds: ["call".into()].into(),
            tasks_max,
            lease_ms: 600_000,
            poll_interval_ms: 1000,
        };
        self.store.claim(claim).await.expect("claim")
    }

    /// All that may run, however often one has to ask.
    async fn claim_all(&self) -> Vec<Attempt> {
        let mut all = Vec::new();
        loop {
            let more = self.claim(200).await;
            if more.is_empty() {
                return all;
            }
            all.extend(more);
        }
    }

    async fn finish(&self, attempts: &[Attempt]) {
        let exit = |attempt: &Attempt| Completion {
            task: attempt.task,
            token: attempt.token,
            outcome: Outcome::Completed(b"null".to_vec()),
        };
        let exits = attempts.iter().map(exit).collect();
        let finished =
            self.store.finish(Finish { completions: exits, claim: None }).await.expect("finish");
        assert!(finished.lost_attempts.is_empty(), "{finished:?}");
    }

    async fn groups(&self) -> Vec<SlotGroup> {
        let sql = "SELECT capacity, taken FROM tidegate.slot_groups
                   WHERE limit_id = (SELECT id FROM tidegate.limits WHERE name = $1) ORDER BY number";
        let rows = self.client.query(sql, &[&LIMIT]).await.expect("groups");
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    async fn parts(&self) -> Vec<i64> {
        self.groups().await.into_iter().filter_map(|(capacity, _)| capacity).collect()
    }

    /// How many slots are held, by the evidence; each by one task. Every rule holds.
    async fn held(&self) -> usize {
        let snapshot = self.store.snapshot().await.expect("snapshot");
        assert_eq!(check(&snapshot), []);
        let numbers: BTreeSet<u32> = snapshot.slots.iter().map(|slot| slot.number).collect();
        let tasks: BTreeSet<_> = snapshot.slots.iter().map(|slot| slot.task).collect();
        assert_eq!((numbers.len(), tasks.len()), (snapshot.slots.len(), snapshot.slots.len()));
        numbers.len()
    }

    /// Works off what is left, `capacity` at once, and leaves nothing behind.
    async fn end(&self, mut running: Vec<Attempt>, tasks: usize, capacity: usize) {
        let mut ended = 0;
        while !running.is_empty() {
            assert!(running.len() <= capacity, "{} run under {capacity}", running.len());
            self.finish(&running).await;
            ended += running.len();
            running = self.claim_all().await;
        }
        assert_eq!((ended, self.held().await), (tasks, 0));
    }
}

#[tokio::test]
async fn slot_groups_are_at_most_fifty_and_sum_to_capacity() {
    let lab = SlotHarness::new().await;
    for (capacity, parts) in
        [(4, vec![1; 4]), (100, vec![2; 50]), (500, vec![10; 50]), (1000, vec![20; 50])]
    {
        lab.set(Some(capacity)).await;
        assert_eq!(lab.parts().await, parts);
    }
    for capacity in [51, 1, 0, 49, 50, 99, 101, 501, 1001, 2_147_483_647] {
        lab.set(Some(capacity)).await;
        let parts = lab.parts().await;
        assert!(parts.len() <= 50 && parts.iter().all(|part| *part > 0), "{capacity}: {parts:?}");
        assert_eq!(parts.iter().sum::<i64>(), i64::from(capacity));
    }
    assert_eq!(lab.held().await, 0);
}

#[tokio::test]
async fn slot_groups_exist_for_jobs_and_workflows() {
    let lab = SlotHarness::new().await;
    lab.client.execute("SELECT tidegate.create_job('sql', 3)", &[]).await.expect("a job");
    lab.client.execute("SELECT tidegate.create_job('unlimited')", &[]).await.expect("a job");
    let step = NewTask { workflow: Some("w".into()), ..NewTask::new("call", "null") };
    let job = tidegate_core::JobSpec { concurrency: Some(60), ..tidegate_core::JobSpec::new("j") };
    let of_job = NewTask { job: Some("j".into()), ..NewTask::new("call", "null") };
    let (tasks, jobs) = (vec![step, of_job], vec![job]);
    let submission = Submission { tasks, jobs, ..Submission::default() };
    lab.store.submit(submission).await.expect("submit");
    let running = lab.claim(10).await;
    assert_eq!((running.len(), lab.store.snapshot().await.expect("snapshot").slots.len()), (2, 2));
    let sql = "SELECT l.name, count(*), sum(g.capacity)::bigint FROM tidegate.limits l
               JOIN tidegate.slot_groups g ON g.limit_id = l.id GROUP BY l.name ORDER BY l.name";
    let rows = lab.client.query(sql, &[]).await.expect("groups");
    let rows: Vec<(String, i64, i64)> =
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    let wanted = [("job:j", 50, 60), ("job:sql", 3, 3), ("workflow:w", 1, 1)];
    assert_eq!(rows, wanted.map(|(name, rows, sum)| (name.to_owned(), rows, sum)));
    assert_eq!(check(&lab.store.snapshot().await.expect("snapshot")), []);
}

#[tokio::test]
async fn limit_lowered_from_five_hundred_to_ten_while_held_is_exact() {
    let lab = SlotHarness::new().await;
    lab.set(Some(500)).await;
    lab.submit(600).await;
    let mut running = lab.claim_all().await;
    assert_eq!((running.len(), lab.held().await), (500, 500));
    lab.set(Some(10)).await;
    // What is held stays where it is, and counts for what has no room.
    assert_eq!(lab.parts().await.iter().sum::<i64>(), 10);
    assert_eq!((lab.groups().await.len(), lab.held().await), (50, 500));
    // The last 490 give way to nobody.
    lab.finish(&running.split_off(10)).await;
    assert_eq!((lab.claim_all().await.len(), lab.held().await), (0, 10));
    lab.finish(&running.split_off(9)).await;
    let next = lab.claim_all().await;
    assert_eq!((next.len(), lab.held().await), (1, 10), "one goes, one comes");
    running.extend(next);
    lab.end(running, 600 - 491, 10).await;
    assert_eq!(lab.parts().await, [1; 10]);
}

#[tokio::test]
async fn limit_raised_from_ten_to_five_hundred_while_held_is_exact() {
    let lab = SlotHarness::new().await;
    lab.set(Some(10)).await;
    lab.submit(600).await;
    let mut running = lab.claim_all().await;
    assert_eq!(running.len(), 10);
    lab.set(Some(500)).await;
    running.extend(lab.claim_all().await);
    assert_eq!((running.len(), lab.held().await), (500, 500));
    assert_eq!(lab.parts().await, [10; 50]);
    lab.end(running, 600, 500).await;
}

#[tokio::test]
async fn unset_limit_admits_all_waiters_and_leaves_no_slot_group() {
    let lab = SlotHarness::new().await;
    lab.set(Some(60)).await;
    lab.submit(200).await;
    let mut running = lab.claim_all().await;
    assert_eq!(running.len(), 60);
    lab.set(None).await;
    assert!(
        lab.groups().await.iter().all(|(capacity, taken)| capacity.is_none() && !taken.is_empty())
    );
    running.extend(lab.claim_all().await);
    assert_eq!((running.len(), lab.parts().await), (200, vec![]));
    lab.held().await;
    lab.end(running, 200, 200).await;
    while lab.store.prune().await.expect("prune").has_more {}
    let left = lab.client.query_one("SELECT count(*) FROM tidegate.slot_groups", &[]).await;
    assert_eq!(left.expect("count").get::<_, i64>(0), 0);
}

/// Slots change hands without their groups being written.
#[tokio::test]
async fn hand_off_writes_no_slot_group() {
    let lab = SlotHarness::new().await;
    lab.set(Some(4)).await;
    lab.submit(40).await;
    let mut running = lab.claim(4).await;
    let rows = "SELECT array_agg(xmin::text ORDER BY number) FROM tidegate.slot_groups";
    let before: Vec<String> = lab.client.query_one(rows, &[]).await.expect("rows").get(0);
    for _ in 0..8 {
        let exits = running.iter().map(|attempt| Completion {
            task: attempt.task,
            token: attempt.token,
            outcome: Outcome::Completed(b"null".to_vec()),
        });
        let claim = Claim {
            worker: WorkerId("worker".into()),
            queues: ["default".into()].into(),
            kinds: ["call".into()].into(),
            tasks_max: 4,
            lease_ms: 600_000,
            poll_interval_ms: 1000,
        };
        let finish = Finish { completions: exits.collect(), claim: Some(claim) };
        running = lab.store.finish(finish).await.expect("finish").claimed;
        assert_eq!((running.len(), lab.held().await), (4, 4));
    }
    let after: Vec<String> = lab.client.query_one(rows, &[]).await.expect("rows").get(0);
    assert_eq!(before, after);
    lab.end(running, 8, 4).await;
}
