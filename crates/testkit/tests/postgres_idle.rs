//! Workers with nothing to do leave PostgreSQL alone, and are there at once when there is something.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_core::{Inspect, Kind, NewTask, State, Store, Submission};
use tidegate_engine::{Context, Failure, Shutdown, Worker, time};
use tidegate_store::postgres::{Options, Postgres};
use tidegate_testkit::postgres::{Database, Server};

const WORKERS: u64 = 100;

/// How long is counted.
const WINDOW: Duration = Duration::from_secs(20);

/// A store that counts the statements it sends.
async fn counted(database: &Database, statements: &Arc<AtomicU64>) -> Postgres {
    let statements = statements.clone();
    let step = move |_: &'static str| -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
        statements.fetch_add(1, Ordering::Relaxed);
        Box::pin(async {})
    };
    let options = Options { pool_size: 2, step: Some(Arc::new(step)), ..Options::default() };
    Postgres::connect(&database.url(), options).await.expect("connect")
}

fn worker(store: Postgres) -> Worker {
    let noop = |_: Context, (): ()| async { Ok::<_, Failure>(()) };
    Worker::builder(Arc::new(store)).handle(Kind::new("a"), noop).build().expect("a worker")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_idle_workers_send_at_most_a_hundred_statements_a_second() {
    let database = Server::shared().database();
    let statements = Arc::new(AtomicU64::new(0));
    let store = counted(&database, &Arc::default()).await;
    store.migrate().await.expect("migrate");
    let shutdown = Shutdown::new();
    let mut running = Vec::new();
    for _ in 0..WORKERS {
        let store = counted(&database, &statements).await;
        running.push(tokio::spawn(worker(store).run(shutdown.clone())));
    }
    // All of them have begun when each has been noted.
    while store.workers().await.expect("workers").len() < WORKERS as usize {
        time::sleep(Duration::from_millis(50)).await;
    }
    time::sleep(Duration::from_secs(5)).await;
    let before = statements.load(Ordering::Relaxed);
    time::sleep(WINDOW).await;
    let sent = statements.load(Ordering::Relaxed) - before;
    let per_second = sent as f64 / WINDOW.as_secs_f64();
    println!("{per_second:.1} statements per second from {WORKERS} idle workers");
    assert!(per_second <= WORKERS as f64, "{per_second} statements per second");
    assert!(sent > 0, "nobody was counted");

    // They are not asleep: a task is taken, by a notice and not by a poll.
    let tasks = vec![NewTask::new("a", "null")];
    let submitted = store.submit(Submission { tasks, ..Submission::default() }).await;
    let task = submitted.expect("submit")[0].task;
    let started = time::now();
    while store.task(task).await.expect("task").expect("it is kept").state != State::Completed {
        time::sleep(Duration::from_millis(5)).await;
    }
    println!("a task was done after {:?}", time::now() - started);
    shutdown.drain();
    for worker in running {
        worker.await.expect("a worker").expect("its work");
    }
}
