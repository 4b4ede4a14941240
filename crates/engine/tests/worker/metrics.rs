//! What a worker counts.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Claim, NewTask, Submission, WorkerId};
use tidegate_engine::metrics::about::ALL;
use tidegate_engine::metrics::{Family, Sampler, Value};
use tidegate_engine::{
    Context, Ended, Failure, JobSpec, Metrics, Observer, Options, Reason, Store, Task,
};

use tidegate_store::memory::Memory;
use tokio::sync::Notify;

use crate::rig::{Rig, pause, soon};

type Done = Result<(), Failure>;
const GOOD: Done = Ok(());

/// The number of a series; a histogram's is how many it has seen.
fn number(metrics: &Metrics, name: &str, labels: &[&str]) -> Option<f64> {
    let families = metrics.read();
    let family = families.iter().find(|family| family.about.name == name).expect("a known metric");
    let is_meant = |of: &[Arc<str>]| of.iter().map(|label| &**label).eq(labels.iter().copied());
    let series = family.series.iter().find(|series| is_meant(&series.labels))?;
    Some(match &series.value {
        Value::Number(number) => *number,
        Value::Buckets(buckets) => buckets.count() as f64,
    })
}

/// All values of a label of a metric; empty where it has no such label.
fn values(family: &Family, label: &str) -> BTreeSet<String> {
    let at = family.about.labels.iter().position(|name| *name == label);
    let values = at.map(|at| family.series.iter().map(move |series| series.labels[at].to_string()));
    values.into_iter().flatten().collect()
}

/// A job of which one task runs at a time.
fn job_of_one(name: String) -> JobSpec {
    let concurrency = Some(1);
    JobSpec { name, concurrency, min_concurrency: 0, weight: 1, priority: 0, delay_ms: 0 }
}

fn sampler(rig: &Rig, metrics: &Metrics) -> Sampler {
    // Every reading reads everything.
    Sampler::new(metrics, Arc::new(rig.store.memory.clone())).interval(Duration::ZERO)
}

#[tokio::test]
async fn attempts_are_counted_by_how_they_end() {
    let rig = Rig::new();
    let metrics = Metrics::new();
    let worker = rig
        .worker()
        .metrics(&metrics)
        .handle("good", async |_: Context, (): ()| GOOD)
        .handle("bad", async |_: Context, (): ()| Err::<(), _>(Failure::fatal("no")))
        .handle("panics", async |_: Context, (): ()| -> Done { panic!("by the test") });
    let worker = rig.start(worker);
    let good = rig.submit(Task::new("good", &())).await;
    rig.exited(good, Ended::Completed).await;
    let bad = rig.submit(Task::new("bad", &())).await;
    rig.exited(bad, Ended::Failed).await;
    let panics = rig.submit(Task::new("panics", &()).max_attempts(1)).await;
    rig.exited(panics, Ended::Failed).await;
    assert_eq!(number(&metrics, "tidegate_worker_accepting", &[]), Some(1.0));
    rig.end(worker).await;

    let ended = |kind: &str, outcome: &str| {
        number(&metrics, "tidegate_worker_tasks_completed_total", &[kind, outcome])
    };
    assert_eq!(ended("good", "completed"), Some(1.0));
    assert_eq!(ended("bad", "failed"), Some(1.0));
    assert_eq!(ended("panics", "failed"), Some(1.0));
    assert_eq!(ended("good", "failed"), Some(0.0), "a counter is there before it counts");
    for kind in ["good", "bad", "panics"] {
        let ran = number(&metrics, "tidegate_worker_task_duration_seconds", &[kind]);
        assert_eq!(ran, Some(1.0), "{kind}");
    }
    assert_eq!(number(&metrics, "tidegate_worker_in_flight_tasks", &[]), Some(0.0));
    assert_eq!(number(&metrics, "tidegate_worker_claims_total", &["found"]), Some(3.0));
    assert_eq!(number(&metrics, "tidegate_worker_claim_size", &[]), Some(3.0));
    // A sampler makes the store known to the metrics when it starts.
    tokio::select! {
        () = sampler(&rig, &metrics).run(rig.shutdown.clone()) => {}
        () = pause() => {}
    }
    let registers = |name, labels: &[&str]| number(&metrics, name, labels);
    assert_eq!(registers("tidegate_store_request_seconds", &["register", "general"]), Some(1.0));
    assert_eq!(registers("tidegate_store_requests_total", &["register", "general", ""]), Some(1.0));
    assert_eq!(number(&metrics, "tidegate_worker_accepting", &[]), Some(0.0));
    assert_eq!(number(&metrics, "tidegate_worker_slots", &[]), Some(0.0), "the worker has ended");
    assert!(number(&metrics, "tidegate_worker_resident_memory_bytes", &[]) > Some(1e6));
}

/// The workers of each reason that has some.
fn reasons(metrics: &Metrics) -> Vec<(&'static str, f64)> {
    let workers = |reason: &Reason| {
        let workers = number(metrics, "tidegate_worker_backpressure", &[reason.as_str()]);
        (reason.as_str(), workers.expect("every reason is always exported"))
    };
    Reason::ALL.iter().map(workers).filter(|(_, workers)| *workers > 0.0).collect()
}

#[tokio::test]
async fn two_workers_of_a_process_are_counted_each_by_its_own_state() {
    let rig = Rig::new();
    let metrics = Metrics::new();
    let accepting = || number(&metrics, "tidegate_worker_accepting", &[]);
    assert_eq!((accepting(), reasons(&metrics)), (Some(0.0), vec![]), "before the first worker");
    let release = Arc::new(Notify::new());
    let build = |kind: &str| {
        let release = release.clone();
        let options = Options { concurrency: 1, ..Options::default() };
        let handler = move |_: Context, (): ()| {
            let release = release.clone();
            async move {
                release.notified().await;
                GOOD
            }
        };
        rig.worker_with(options).metrics(&metrics).handle(kind, handler).build().unwrap()
    };
    let (busy, idle) = (build("busy"), build("idle"));
    assert_eq!((accepting(), reasons(&metrics)), (Some(2.0), vec![("room", 2.0)]));
    let (busy_pressure, idle_pressure) = (busy.pressure(), idle.pressure());
    let busy = tokio::spawn(busy.run(rig.shutdown.clone()));
    let task = rig.submit(Task::new("busy", &())).await;
    rig.entered(task).await;
    // As the two heartbeats do, in both orders.
    for pressures in [[&busy_pressure, &idle_pressure], [&idle_pressure, &busy_pressure]] {
        pressures.into_iter().for_each(|pressure| drop(pressure.report()));
        let counted = (accepting(), reasons(&metrics));
        assert_eq!(counted, (Some(1.0), vec![("room", 1.0), ("permits", 1.0)]));
    }
    release.notify_one();
    rig.end(busy).await;
    assert_eq!((accepting(), reasons(&metrics)), (Some(1.0), vec![("room", 1.0)]));
    drop((idle, busy_pressure, idle_pressure));
    assert_eq!((accepting(), reasons(&metrics)), (Some(0.0), vec![]));
}

#[tokio::test]
async fn calls_that_fail_are_counted() {
    let rig = Rig::new();
    let metrics = Metrics::new();
    rig.store.lose_claims.store(2, std::sync::atomic::Ordering::SeqCst);
    let worker = rig.worker().metrics(&metrics).handle("a", async |_: Context, (): ()| GOOD);
    let worker = rig.start(worker);
    let task = rig.submit(Task::new("a", &())).await;
    rig.exited(task, Ended::Completed).await;
    rig.end(worker).await;
    assert_eq!(number(&metrics, "tidegate_worker_claims_total", &["failed"]), Some(2.0));
    assert_eq!(number(&metrics, "tidegate_store_request_failures_total", &["claim"]), Some(2.0));
}

#[tokio::test]
async fn reads_of_the_sampler_that_fail_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    // Without a schema every read fails.
    let options = tidegate_store::sqlite::Options::default();
    let store = tidegate_store::sqlite::Sqlite::open(folder.path().join("a.db"), options).unwrap();
    let store = Arc::new(store);
    let metrics = Metrics::new();
    let mut sampler = Sampler::new(&metrics, store.clone()).interval(Duration::ZERO);
    sampler.read().await.unwrap_err();
    let failed = || number(&metrics, "tidegate_store_request_failures_total", &["read"]);
    assert_eq!(failed(), Some(1.0));
    store.migrate().await.unwrap();
    let mut sampler = Sampler::new(&metrics, store).interval(Duration::ZERO);
    sampler.read().await.unwrap();
    assert_eq!(failed(), Some(1.0));
}

/// Whoever submits can make any number of jobs and groups; the series stay few, and nothing of a
/// task is in them.
#[tokio::test]
async fn series_are_few_and_say_nothing_of_tasks() {
    let rig = Rig::new();
    let metrics = Metrics::new();
    let worker = rig.worker().metrics(&metrics).handle("a", async |_: Context, _: String| GOOD);
    let worker = rig.start(worker);
    let jobs = (0..150).map(|number| job_of_one(format!("job-{number}")));
    let tasks = (0..600).map(|number| {
        Task::new("a", &format!("secret-{number}"))
            .job(format!("job-{}", number % 150))
            .unique_key(format!("key-{number}"))
            .concurrency_group(format!("group-{}", number % 120))
            .concurrency_limit(2)
            .workflow(format!("flow-{number}"))
    });
    rig.client.submit_jobs(jobs, tasks).await.unwrap();
    rig.completed(600).await;
    let mut sampler = sampler(&rig, &metrics);
    soon("the reading", sampler.read()).await.unwrap();
    let mut started = 0.0;
    for family in metrics.read() {
        let name = family.about.name;
        let (jobs, limits) = (values(&family, "job_name"), values(&family, "limit"));
        // Nothing runs any more.
        let most = if name == "tidegate_job_in_flight_tasks" { 1 } else { 101 };
        assert!(
            jobs.is_empty() || jobs.len() == most && jobs.contains("other"),
            "{name}: {jobs:?}"
        );
        let by_top =
            ["tidegate_concurrency_wait_seconds", "tidegate_concurrency_acquisition_total"];
        let most = if by_top.contains(&name) { 41 } else { 201 };
        assert!(
            limits.is_empty() || limits.len() == most && limits.contains("other"),
            "{name}: {}",
            limits.len()
        );
        assert!(!limits.iter().any(|limit| limit.starts_with("workflow:")), "{name}: {limits:?}");
        let of = |job: &String| number(&metrics, "tidegate_job_tasks_total", &[job]);
        if name == "tidegate_job_tasks_total" {
            started = jobs.iter().filter_map(of).sum();
        }
    }
    assert_eq!(started, 600.0, "each start is counted once");
    let text = metrics.encode();
    for hidden in ["secret-", "key-", "flow-"] {
        assert!(!text.contains(hidden), "{hidden}");
    }
    rig.end(worker).await;
}

#[tokio::test]
async fn a_sample_shows_limits_lines_and_how_many_workers_would_help() {
    let rig = Rig::new();
    let metrics = Metrics::new();
    rig.client.set_limit("group:a", 1).await.unwrap();
    let (begun, go) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let (tell, wait) = (begun.clone(), go.clone());
    let options = Options { concurrency: 4, ..Options::default() };
    let worker =
        rig.worker_with(options).metrics(&metrics).handle("a", move |_: Context, (): ()| {
            let (tell, wait) = (tell.clone(), wait.clone());
            async move {
                tell.notify_one();
                wait.notified().await;
                GOOD
            }
        });
    let worker = rig.start(worker);
    rig.client.submit_many((0..3).map(|_| Task::new("a", &()))).await.unwrap();
    // Nobody serves these.
    rig.client.submit_many((0..12).map(|_| Task::new("b", &()))).await.unwrap();
    soon("the first handler", begun.notified()).await;
    let mut sampler = sampler(&rig, &metrics);
    soon("the reading", sampler.read()).await.unwrap();
    let of = |name: &str, labels: &[&str]| number(&metrics, name, labels);
    assert_eq!(of("tidegate_concurrency_slots_active", &["group:a"]), Some(1.0));
    assert_eq!(of("tidegate_concurrency_slots_limit", &["group:a"]), Some(1.0));
    assert_eq!(of("tidegate_concurrency_slots_waiting", &["group:a"]), Some(2.0));
    assert!(of("tidegate_concurrency_oldest_wait_seconds", &["group:a"]) >= Some(0.0));
    assert_eq!(of("tidegate_tasks", &["processing"]), Some(1.0));
    assert_eq!(of("tidegate_tasks", &["blocked"]), Some(2.0));
    assert_eq!(of("tidegate_ready_tasks", &[]), Some(12.0));
    assert_eq!(of("tidegate_workers", &[]), Some(1.0));
    assert_eq!(of("tidegate_workers_wanted", &[]), Some(3.0), "12 ready, 3 free, 4 each");
    assert_eq!(of("tidegate_worker_in_flight_tasks", &[]), Some(1.0));
    // Refusals count from the first look.
    assert_eq!(of("tidegate_concurrency_acquisition_total", &["group:a", "rejected"]), Some(0.0));
    let more = rig.submit(Task::new("a", &())).await;
    rig.store.memory.admit().await.unwrap();
    // A reading that took long rests before the next.
    let rejected = || of("tidegate_concurrency_acquisition_total", &["group:a", "rejected"]);
    soon("the refusal", async {
        while rejected() == Some(0.0) {
            sampler.read().await.unwrap();
            pause().await;
        }
    })
    .await;
    assert_eq!(rejected(), Some(1.0));
    for _ in 0..3 {
        go.notify_one();
        soon("the next handler", begun.notified()).await;
    }
    go.notify_one();
    rig.exited(more, Ended::Completed).await;
    assert_eq!(of("tidegate_concurrency_acquisition_total", &["group:a", "acquired"]), Some(4.0));
    assert_eq!(of("tidegate_concurrency_wait_seconds", &["group:a"]), Some(4.0));
    assert_eq!(of("tidegate_worker_wait_seconds", &[]), Some(4.0));
    rig.end(worker).await;
}

/// What the alert on jobs that starve asks for, in seconds.
const LONG: f64 = 900.0;

/// The jobs of which a task has waited for long while none of them moved.
fn starved(metrics: &Metrics) -> Vec<String> {
    let of = |name: &str| {
        let family = metrics.read().into_iter().find(|family| family.about.name == name);
        values(&family.expect("a known metric"), "job_name")
    };
    let jobs = of("tidegate_job_oldest_wait_seconds");
    assert_eq!(jobs, of("tidegate_job_idle_seconds"), "one choice of names");
    let is_long = |name: &str, job: &str| number(metrics, name, &[job]) > Some(LONG);
    let names = ["tidegate_job_oldest_wait_seconds", "tidegate_job_idle_seconds"];
    jobs.into_iter().filter(|job| names.iter().all(|name| is_long(name, job))).collect()
}

/// More jobs than have series of their own, each with a quota of one. Of all but one a task runs; that
/// one has less than may be ready at once, and nobody claims it.
#[tokio::test]
async fn of_many_jobs_the_one_that_starves_is_told_of() {
    let now = Arc::new(std::sync::atomic::AtomicI64::new(1_000_000));
    let pass = |ms| now.fetch_add(ms, std::sync::atomic::Ordering::SeqCst);
    let clock = now.clone();
    let memory = Memory::with_clock(move || clock.load(std::sync::atomic::Ordering::SeqCst));
    let claim = async |tasks_max| {
        let (queues, kinds) = (["default".into()].into(), ["a".into()].into());
        let worker = WorkerId("w".into());
        let claim = Claim { worker, queues, kinds, tasks_max, lease_ms: 9_000_000, poll_ms: 1000 };
        memory.claim(claim).await.unwrap()
    };
    let submit = async |job: String, tasks: usize, concurrency| {
        let task = NewTask { job: Some(job.clone()), ..NewTask::new("a", "null") };
        let jobs = vec![JobSpec { concurrency, ..job_of_one(job) }];
        let submission = Submission { tasks: vec![task; tasks], jobs, ..Submission::default() };
        memory.submit(submission).await.unwrap();
    };
    for number in 0..150 {
        submit(format!("busy-{number}"), 3, Some(1)).await;
    }
    assert_eq!(claim(150).await.len(), 150);
    submit("starved".into(), 3, None).await;
    memory.admit().await.unwrap();
    let metrics = Metrics::new();
    let mut sampler = Sampler::new(&metrics, Arc::new(memory.clone())).interval(Duration::ZERO);
    sampler.read().await.unwrap();
    assert_eq!(starved(&metrics), [""; 0]);
    pass(1_000_000);
    // A reading that took long rests before the next.
    soon("the next reading", async {
        while starved(&metrics).is_empty() {
            sampler.read().await.unwrap();
            pause().await;
        }
    })
    .await;
    assert_eq!(starved(&metrics), ["starved"]);
    assert_eq!(number(&metrics, "tidegate_job_oldest_wait_seconds", &["other"]), Some(1000.0));
    assert_eq!(number(&metrics, "tidegate_job_idle_seconds", &["other"]), Some(0.0));
}

#[tokio::test]
async fn every_metric_is_in_the_text_with_its_help_and_type() {
    let metrics = Metrics::new();
    let text = metrics.encode();
    let named = |mark: &str| {
        let lines = text.lines().filter_map(|line| line.strip_prefix(mark));
        lines.filter_map(|line| line.split(' ').next()).collect::<Vec<_>>()
    };
    let wanted: Vec<&str> = ALL.iter().map(|about| about.name).collect();
    assert_eq!(named("# HELP "), wanted);
    assert_eq!(named("# TYPE "), wanted);
}

#[tokio::test]
async fn several_observers_see_the_same() {
    #[derive(Debug, Default)]
    struct Count(std::sync::atomic::AtomicU32);
    impl Observer for Count {
        fn leave(&self, _: &tidegate_engine::Attempt, ran: Duration) {
            assert!(ran < Duration::from_secs(20));
            self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    }
    let rig = Rig::new();
    let counts = [Arc::new(Count::default()), Arc::new(Count::default())];
    let [first, second] = counts.clone();
    let worker = rig.worker().observer(first).observer(second);
    let worker = rig.start(worker.handle("a", async |_: Context, (): ()| GOOD));
    let task = rig.submit(Task::new("a", &())).await;
    rig.exited(task, Ended::Completed).await;
    rig.end(worker).await;
    assert!(counts.iter().all(|count| count.0.load(std::sync::atomic::Ordering::SeqCst) == 1));
}

#[tokio::test]
async fn a_handler_is_told_where_its_task_was_submitted() {
    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let rig = Rig::new();
    let told =
        async |context: Context, (): ()| Ok::<_, Failure>(context.trace().map(str::to_owned));
    let worker = rig.start(rig.worker().handle("a", told));
    let task = rig.submit(Task::new("a", &()).trace(PARENT)).await;
    let result = rig.ended(task).await.result.expect("a result");
    assert_eq!(String::from_utf8_lossy(&result), format!("{PARENT:?}"));
    rig.end(worker).await;
}
