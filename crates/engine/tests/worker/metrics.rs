//! What a worker counts.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Claim, NewTask, Submission, WorkerId};
use tidegate_engine::metrics::descriptors::ALL;
use tidegate_engine::metrics::{MetricFamily, MetricValue, Sampler};
use tidegate_engine::{
    AttemptOutcome, BackpressureReason, Context, Failure, JobSpec, Metrics, Observer, Store, Task,
    WorkerConfig,
};

use tidegate_store::memory::Memory;
use tokio::sync::Notify;

use crate::harness::{Harness, sleep_between_checks, within_timeout};

type Done = Result<(), Failure>;
const GOOD: Done = Ok(());

/// The number of a series; a histogram's is how many it has seen.
fn number(metrics: &Metrics, name: &str, labels: &[&str]) -> Option<f64> {
    let families = metrics.snapshot();
    let family =
        families.iter().find(|family| family.descriptor.name == name).expect("a known metric");
    let is_meant = |of: &[Arc<str>]| of.iter().map(|label| &**label).eq(labels.iter().copied());
    let series = family.series.iter().find(|series| is_meant(&series.labels))?;
    Some(match &series.value {
        MetricValue::Number(number) => *number,
        MetricValue::Histogram(buckets) => buckets.count() as f64,
    })
}

/// All values of a label of a metric; empty where it has no such label.
fn values(family: &MetricFamily, label: &str) -> BTreeSet<String> {
    let at = family.descriptor.labels.iter().position(|name| *name == label);
    let values = at.map(|at| family.series.iter().map(move |series| series.labels[at].to_string()));
    values.into_iter().flatten().collect()
}

/// A job of which one task runs at a time.
fn job_of_one(name: String) -> JobSpec {
    let concurrency = Some(1);
    JobSpec { name, concurrency, min_concurrency: 0, weight: 1, priority: 0, delay_ms: 0 }
}

fn sampler(rig: &Harness, metrics: &Metrics) -> Sampler {
    // Every reading reads everything.
    Sampler::new(metrics, Arc::new(rig.store.memory.clone())).interval(Duration::ZERO)
}

#[tokio::test]
async fn attempts_are_counted_by_outcome() {
    let rig = Harness::new();
    let metrics = Metrics::new();
    let worker = rig
        .worker_builder()
        .metrics(&metrics)
        .handle("good", async |_: Context, (): ()| GOOD)
        .handle("bad", async |_: Context, (): ()| Err::<(), _>(Failure::fatal("no")))
        .handle("panics", async |_: Context, (): ()| -> Done { panic!("by the test") });
    let worker = rig.start_worker(worker);
    let good = rig.submit(Task::new("good", &())).await;
    rig.wait_until_acknowledged(good, AttemptOutcome::Completed).await;
    let bad = rig.submit(Task::new("bad", &())).await;
    rig.wait_until_acknowledged(bad, AttemptOutcome::Failed).await;
    let panics = rig.submit(Task::new("panics", &()).max_attempts(1)).await;
    rig.wait_until_acknowledged(panics, AttemptOutcome::Failed).await;
    assert_eq!(number(&metrics, "tidegate_worker_accepting", &[]), Some(1.0));
    rig.drain_worker(worker).await;

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
        () = sleep_between_checks() => {}
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
    let workers = |reason: &BackpressureReason| {
        let workers = number(metrics, "tidegate_worker_backpressure", &[reason.as_str()]);
        (reason.as_str(), workers.expect("every reason is always exported"))
    };
    BackpressureReason::ALL.iter().map(workers).filter(|(_, workers)| *workers > 0.0).collect()
}

#[tokio::test]
async fn workers_of_one_process_are_counted_by_their_own_state() {
    let rig = Harness::new();
    let metrics = Metrics::new();
    let accepting = || number(&metrics, "tidegate_worker_accepting", &[]);
    assert_eq!((accepting(), reasons(&metrics)), (Some(0.0), vec![]), "before the first worker");
    let release = Arc::new(Notify::new());
    let build = |kind: &str| {
        let release = release.clone();
        let options = WorkerConfig { concurrency: 1, ..WorkerConfig::default() };
        let handler = move |_: Context, (): ()| {
            let release = release.clone();
            async move {
                release.notified().await;
                GOOD
            }
        };
        rig.worker_builder_with(options).metrics(&metrics).handle(kind, handler).build().unwrap()
    };
    let (busy, idle) = (build("busy"), build("idle"));
    assert_eq!((accepting(), reasons(&metrics)), (Some(2.0), vec![("room", 2.0)]));
    let (busy_pressure, idle_pressure) = (busy.status(), idle.status());
    let busy = tokio::spawn(busy.run(rig.shutdown.clone()));
    let task = rig.submit(Task::new("busy", &())).await;
    rig.wait_until_started(task).await;
    // As the two heartbeats do, in both orders.
    for pressures in [[&busy_pressure, &idle_pressure], [&idle_pressure, &busy_pressure]] {
        pressures.into_iter().for_each(|pressure| drop(pressure.worker_report()));
        let counted = (accepting(), reasons(&metrics));
        assert_eq!(counted, (Some(1.0), vec![("room", 1.0), ("permits", 1.0)]));
    }
    release.notify_one();
    rig.drain_worker(busy).await;
    assert_eq!((accepting(), reasons(&metrics)), (Some(1.0), vec![("room", 1.0)]));
    drop((idle, busy_pressure, idle_pressure));
    assert_eq!((accepting(), reasons(&metrics)), (Some(0.0), vec![]));
}

#[tokio::test]
async fn failed_store_calls_are_counted() {
    let rig = Harness::new();
    let metrics = Metrics::new();
    rig.store.claims_to_lose.store(2, std::sync::atomic::Ordering::SeqCst);
    let worker =
        rig.worker_builder().metrics(&metrics).handle("a", async |_: Context, (): ()| GOOD);
    let worker = rig.start_worker(worker);
    let task = rig.submit(Task::new("a", &())).await;
    rig.wait_until_acknowledged(task, AttemptOutcome::Completed).await;
    rig.drain_worker(worker).await;
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
    sampler.sample_once().await.unwrap_err();
    let failed = || number(&metrics, "tidegate_store_request_failures_total", &["read"]);
    assert_eq!(failed(), Some(1.0));
    store.migrate().await.unwrap();
    let mut sampler = Sampler::new(&metrics, store).interval(Duration::ZERO);
    sampler.sample_once().await.unwrap();
    assert_eq!(failed(), Some(1.0));
}

/// Whoever submits can make any number of jobs and groups; the series stay few, and nothing of a
/// task is in them.
#[tokio::test]
async fn metric_series_are_bounded_and_contain_no_task_data() {
    let rig = Harness::new();
    let metrics = Metrics::new();
    let worker =
        rig.worker_builder().metrics(&metrics).handle("a", async |_: Context, _: String| GOOD);
    let worker = rig.start_worker(worker);
    let jobs = (0..150).map(|number| job_of_one(format!("job-{number}")));
    let tasks = (0..600).map(|number| {
        Task::new("a", &format!("secret-{number}"))
            .job(format!("job-{}", number % 150))
            .unique_key(format!("key-{number}"))
            .concurrency_group(format!("group-{}", number % 120))
            .concurrency_limit(2)
            .workflow(format!("flow-{number}"))
    });
    rig.client.submit_with_jobs(jobs, tasks).await.unwrap();
    rig.wait_until_completed(600).await;
    let mut sampler = sampler(&rig, &metrics);
    within_timeout("the reading", sampler.sample_once()).await.unwrap();
    let mut started = 0.0;
    for family in metrics.snapshot() {
        let name = family.descriptor.name;
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
    let text = metrics.encode_text();
    for hidden in ["secret-", "key-", "flow-"] {
        assert!(!text.contains(hidden), "{hidden}");
    }
    rig.drain_worker(worker).await;
}

#[tokio::test]
async fn sample_shows_limits_waiters_and_desired_workers() {
    let rig = Harness::new();
    let metrics = Metrics::new();
    rig.client.set_limit("group:a", 1).await.unwrap();
    let (begun, go) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let (tell, wait) = (begun.clone(), go.clone());
    let options = WorkerConfig { concurrency: 4, ..WorkerConfig::default() };
    let worker = rig.worker_builder_with(options).metrics(&metrics).handle(
        "a",
        move |_: Context, (): ()| {
            let (tell, wait) = (tell.clone(), wait.clone());
            async move {
                tell.notify_one();
                wait.notified().await;
                GOOD
            }
        },
    );
    let worker = rig.start_worker(worker);
    rig.client.submit_many((0..3).map(|_| Task::new("a", &()))).await.unwrap();
    // Nobody serves these.
    rig.client.submit_many((0..12).map(|_| Task::new("b", &()))).await.unwrap();
    within_timeout("the first handler", begun.notified()).await;
    let mut sampler = sampler(&rig, &metrics);
    within_timeout("the reading", sampler.sample_once()).await.unwrap();
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
    within_timeout("the refusal", async {
        while rejected() == Some(0.0) {
            sampler.sample_once().await.unwrap();
            sleep_between_checks().await;
        }
    })
    .await;
    assert_eq!(rejected(), Some(1.0));
    for _ in 0..3 {
        go.notify_one();
        within_timeout("the next handler", begun.notified()).await;
    }
    go.notify_one();
    rig.wait_until_acknowledged(more, AttemptOutcome::Completed).await;
    assert_eq!(of("tidegate_concurrency_acquisition_total", &["group:a", "acquired"]), Some(4.0));
    assert_eq!(of("tidegate_concurrency_wait_seconds", &["group:a"]), Some(4.0));
    assert_eq!(of("tidegate_worker_wait_seconds", &[]), Some(4.0));
    rig.drain_worker(worker).await;
}

/// What the alert on jobs that starve asks for, in seconds.
const LONG: f64 = 900.0;

/// The jobs of which a task has waited for long while none of them moved.
fn starved(metrics: &Metrics) -> Vec<String> {
    let of = |name: &str| {
        let family = metrics.snapshot().into_iter().find(|family| family.descriptor.name == name);
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
async fn sample_shows_starving_job_among_many() {
    let now = Arc::new(std::sync::atomic::AtomicI64::new(1_000_000));
    let pass = |ms| now.fetch_add(ms, std::sync::atomic::Ordering::SeqCst);
    let clock = now.clone();
    let memory = Memory::with_clock(move || clock.load(std::sync::atomic::Ordering::SeqCst));
    let claim = async |tasks_max| {
        let (queues, kinds) = (["default".into()].into(), ["a".into()].into());
        let worker = WorkerId("w".into());
        let claim =
            Claim { worker, queues, kinds, tasks_max, lease_ms: 9_000_000, poll_interval_ms: 1000 };
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
    sampler.sample_once().await.unwrap();
    assert_eq!(starved(&metrics), [""; 0]);
    pass(1_000_000);
    // A reading that took long rests before the next.
    within_timeout("the next reading", async {
        while starved(&metrics).is_empty() {
            sampler.sample_once().await.unwrap();
            sleep_between_checks().await;
        }
    })
    .await;
    assert_eq!(starved(&metrics), ["starved"]);
    assert_eq!(number(&metrics, "tidegate_job_oldest_wait_seconds", &["other"]), Some(1000.0));
    assert_eq!(number(&metrics, "tidegate_job_idle_seconds", &["other"]), Some(0.0));
}

#[tokio::test]
async fn every_metric_has_help_and_type() {
    let metrics = Metrics::new();
    let text = metrics.encode_text();
    let named = |mark: &str| {
        let lines = text.lines().filter_map(|line| line.strip_prefix(mark));
        lines.filter_map(|line| line.split(' ').next()).collect::<Vec<_>>()
    };
    let wanted: Vec<&str> = ALL.iter().map(|about| about.name).collect();
    assert_eq!(named("# HELP "), wanted);
    assert_eq!(named("# TYPE "), wanted);
}

#[tokio::test]
async fn several_observers_receive_same_events() {
    #[derive(Debug, Default)]
    struct Count(std::sync::atomic::AtomicU32);
    impl Observer for Count {
        fn on_handler_done(&self, _: &tidegate_engine::Attempt, ran: Duration) {
            assert!(ran < Duration::from_secs(20));
            self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    }
    let rig = Harness::new();
    let counts = [Arc::new(Count::default()), Arc::new(Count::default())];
    let [first, second] = counts.clone();
    let worker = rig.worker_builder().observer(first).observer(second);
    let worker = rig.start_worker(worker.handle("a", async |_: Context, (): ()| GOOD));
    let task = rig.submit(Task::new("a", &())).await;
    rig.wait_until_acknowledged(task, AttemptOutcome::Completed).await;
    rig.drain_worker(worker).await;
    assert!(counts.iter().all(|count| count.0.load(std::sync::atomic::Ordering::SeqCst) == 1));
}

#[tokio::test]
async fn handler_context_has_trace_parent_of_submit() {
    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let rig = Harness::new();
    let told =
        async |context: Context, (): ()| Ok::<_, Failure>(context.trace().map(str::to_owned));
    let worker = rig.start_worker(rig.worker_builder().handle("a", told));
    let task = rig.submit(Task::new("a", &()).trace(PARENT)).await;
    let result = rig.wait_until_final(task).await.result.expect("a result");
    assert_eq!(String::from_utf8_lossy(&result), format!("{PARENT:?}"));
    rig.drain_worker(worker).await;
}
