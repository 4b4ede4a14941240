//! How fast the SQLite store claims and finishes tasks that no limit applies to, one worker,
//! `finish` and `claim` in one step.
//!
//!     cargo run --release -p tidegate-store --example sqlite -- 200000 1 10 100 500

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_core::{
    Claim, Completion, Finish, Kind, NewTask, Outcome, Registration, Result, Store, Submission,
    WorkerId,
};
use tidegate_store::sqlite::{Options, Sqlite, Synchronous};

const PAYLOAD: &[u8] = b"\"sixteen bytes.\"";

#[expect(clippy::disallowed_methods, reason = "it measures")]
fn now() -> Instant {
    Instant::now()
}

/// What the process has used of the processors, in seconds: on a busy machine a better measure
/// than the time that has passed. In ticks of 10 ms, where the system tells.
fn used() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let ticks = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    ticks.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

async fn store(path: &std::path::Path, synchronous: Synchronous) -> Result<Sqlite> {
    let store = Sqlite::open(path, Options { synchronous, ..Options::default() })?;
    store.migrate().await?;
    let kind = Kind { remove_on_completed_days: Some(0), ..Kind::new("noop") };
    let registration = Registration { kinds: vec![kind], ..Registration::default() };
    store.register(registration).await?;
    Ok(store)
}

async fn fill(store: &Sqlite, tasks: usize) -> Result<Duration> {
    let begin = now();
    for first in (0..tasks).step_by(1000) {
        let number = (tasks - first).min(1000);
        let tasks = (0..number).map(|_| NewTask::new("noop", PAYLOAD)).collect();
        store.submit(Submission { jobs: vec![], tasks, ..Submission::default() }).await?;
    }
    Ok(now() - begin)
}

async fn drain(store: &Sqlite, batch: u32) -> Result<(usize, Duration)> {
    let names = |name: &str| -> Arc<[Arc<str>]> { Arc::new([Arc::from(name)]) };
    let claim = Claim {
        worker: WorkerId("w".into()),
        queues: names("default"),
        kinds: names("noop"),
        tasks_max: batch,
        lease_ms: 30_000,
        poll_interval_ms: 1000,
    };
    let (begin, mut done, mut exits) = (now(), 0, Vec::new());
    loop {
        let finish = Finish { completions: std::mem::take(&mut exits), claim: Some(claim.clone()) };
        let finished = store.finish(finish).await?;
        if finished.claimed.is_empty() {
            return Ok((done, now() - begin));
        }
        done += finished.claimed.len();
        exits.extend(finished.claimed.into_iter().map(|attempt| Completion {
            task: attempt.task,
            token: attempt.token,
            outcome: Outcome::Completed(b"null".to_vec()),
        }));
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut numbers = std::env::args().skip(1).filter_map(|word| word.parse::<usize>().ok());
    let tasks = numbers.next().unwrap_or(200_000);
    let mut batches: Vec<usize> = numbers.collect();
    if batches.is_empty() {
        batches = vec![1, 10, 100, 500];
    }
    for synchronous in [Synchronous::Full, Synchronous::Normal] {
        for batch in &batches {
            let folder = tempfile::tempdir().expect("a folder for the file");
            let store = store(&folder.path().join("tasks.db"), synchronous).await?;
            let begin = used();
            let filled = fill(&store, tasks).await?;
            let between = used();
            let (done, took) = drain(&store, *batch as u32).await?;
            println!(
                "{synchronous:?} batch {batch}: submit {:.0}/s at {:.1} us of processor each, \
                 claim and finish {:.0}/s at {:.1} us",
                tasks as f64 / filled.as_secs_f64(),
                (between - begin) * 1e6 / tasks as f64,
                done as f64 / took.as_secs_f64(),
                (used() - between) * 1e6 / done as f64,
            );
        }
    }
    Ok(())
}
