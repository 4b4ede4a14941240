//! How far `explain` is off when it says how long a task still waits.
//!
//! A worker works off a line. Meanwhile tasks at several places of the line are asked how long
//! they wait, and when they start, the answer is compared with the truth.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::ensure;
use serde::{Deserialize, Serialize};
use tidegate_core::reader::TaskFilter;
use tidegate_core::{
    Attempt, CapacitySource, Kind, NewTask, SetLimit, StoreReader, TaskId, TaskState,
};
use tidegate_engine::{Context, Failure, Observer, Shutdown, Worker, WorkerConfig, time};

use super::target::Target;
use super::{submit, wait_until_done};
use crate::clock::{Stopwatch, monotonic_ns};
use crate::report::ResultLine;

/// How long a task runs on average.
const MEAN_MS: u64 = 50;

/// Between two rounds of questions.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(200);

/// Tasks asked in a round.
const SAMPLES_PER_ROUND: usize = 8;

/// A wait shorter than this is shorter than the question.
const WAIT_MIN_MS: f64 = 250.0;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Estimate {
    /// The store. Default: a temporary SQLite file.
    pub url: Option<String>,
    /// How long each line takes to drain, about.
    pub seconds: u64,
}

/// What the tasks of one line are like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct WorkloadShape {
    name: &'static str,
    /// The limit; none where only the worker has no room.
    limit: Option<u32>,
    /// Run times that tasks take in turn; their mean is [`MEAN_MS`].
    run_ms: &'static [u64],
}

const WORKLOADS: [WorkloadShape; 5] = [
    WorkloadShape { name: "equal, limit 1", limit: Some(1), run_ms: &[50] },
    WorkloadShape { name: "equal, limit 8", limit: Some(8), run_ms: &[50] },
    WorkloadShape { name: "mixed, limit 8", limit: Some(8), run_ms: &[10, 90, 30, 70, 20, 80] },
    WorkloadShape { name: "one in ten long, limit 8", limit: Some(8), run_ms: MIXED_RUN_TIMES },
    WorkloadShape { name: "equal, worker full", limit: None, run_ms: &[50] },
];

const MIXED_RUN_TIMES: &[u64] = &[20, 20, 20, 320, 20, 20, 20, 20, 20, 20];

/// Tasks the worker runs at once where there is no limit.
const WORKER_CONCURRENCY: u32 = 8;

#[derive(Debug, Serialize, Deserialize)]
struct Payload {
    ms: u64,
}

/// When tasks started.
#[derive(Debug, Default)]
struct StartTimes(Mutex<BTreeMap<TaskId, u64>>);

impl Observer for StartTimes {
    fn on_start(&self, attempt: &Attempt) {
        let mut starts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        starts.insert(attempt.task, monotonic_ns());
    }
}

/// An answer: of whom, when, and what it was.
#[derive(Debug, Clone, Copy)]
struct EstimateSample {
    task: TaskId,
    sampled_ns: u64,
    estimate_ms: i64,
}

/// Works off one line of each shape.
pub async fn estimate(
    scenario: &Estimate,
    mut each: impl FnMut(ResultLine) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for shape in WORKLOADS {
        // A store of its own: run times of one shape say nothing about another.
        let target = Target::new(scenario.url.as_deref())?;
        each(measure(&target, scenario, shape).await?)?;
    }
    Ok(())
}

async fn measure(
    target: &Target,
    scenario: &Estimate,
    shape: WorkloadShape,
) -> anyhow::Result<ResultLine> {
    let opened = target.open().await?;
    let at_once = shape.limit.unwrap_or(WORKER_CONCURRENCY);
    let tasks = scenario.seconds * 1000 * u64::from(at_once) / MEAN_MS;
    let group = format!("estimate {}", shape.name);
    let name = format!("group:{group}");
    let set = SetLimit { name, capacity: shape.limit, source: CapacitySource::Operator };
    opened.store.set_limit(set).await?;
    submit(&*opened.store, &[], (0..tasks).map(|place| task(shape, &group, place))).await?;
    let starts = Arc::new(StartTimes::default());
    let options = WorkerConfig {
        concurrency: shape.limit.map_or(WORKER_CONCURRENCY, |limit| 2 * limit),
        lease: Duration::from_millis(1500),
        ..WorkerConfig::default()
    };
    let kind = Kind { remove_on_completed_days: Some(0), ..Kind::new("estimated") };
    let worker = Worker::builder(opened.store.clone())
        .config(options)
        .handle(kind, |_: Context, payload: Payload| async move {
            time::sleep(Duration::from_millis(payload.ms)).await;
            Ok::<_, Failure>(())
        })
        .observer(starts.clone())
        .build()?;
    let (shutdown, watch) = (Shutdown::new(), Stopwatch::start());
    let done = shutdown.clone();
    let (worked, answers) = tokio::join!(worker.run(shutdown), async {
        let answers = collect_samples(&*opened.reader, &group).await;
        let all_done = wait_until_done(&*opened.reader).await;
        done.drain();
        all_done.and(answers)
    });
    worked?;
    let seconds = watch.seconds();
    let starts = starts.0.lock().unwrap_or_else(PoisonError::into_inner);
    let errors = errors(&answers?, &starts);
    ensure!(!errors.is_empty(), "nobody could be asked: take more --seconds");
    Ok(result_line(target, shape, tasks, seconds, errors))
}

fn task(shape: WorkloadShape, group: &str, place: u64) -> NewTask {
    let ms = shape.run_ms[place as usize % shape.run_ms.len()];
    let payload = format!("{{\"ms\":{ms}}}");
    NewTask {
        effective_group: Some(group.to_owned()),
        ..NewTask::new("estimated", payload.as_str())
    }
}

/// Asks tasks at several places of the line, again and again, until nobody waits.
async fn collect_samples(
    reader: &dyn StoreReader,
    group: &str,
) -> tidegate_core::Result<Vec<EstimateSample>> {
    let mut answers = Vec::new();
    loop {
        let waiting = TaskFilter {
            states: vec![TaskState::Blocked, TaskState::Pending],
            group: Some(group.to_owned()),
            tasks_max: u32::MAX,
            ..TaskFilter::default()
        };
        let waiting = reader.tasks(waiting).await?;
        if waiting.is_empty() {
            return Ok(answers);
        }
        for place in 0..SAMPLES_PER_ROUND {
            let task = waiting[place * waiting.len() / SAMPLES_PER_ROUND].id;
            let asked_ns = monotonic_ns();
            let explanation = reader.explain(task).await?;
            if let Some(estimate_ms) = explanation.and_then(|told| told.estimated_wait_ms) {
                answers.push(EstimateSample { task, sampled_ns: asked_ns, estimate_ms });
            }
        }
        time::sleep(SAMPLE_INTERVAL).await;
    }
}

/// How far each answer was off: the estimate over the wait, less one.
fn errors(answers: &[EstimateSample], starts: &BTreeMap<TaskId, u64>) -> Vec<f64> {
    let error = |answer: &EstimateSample| {
        let waited_ns = starts.get(&answer.task)?.checked_sub(answer.sampled_ns)?;
        let waited_ms = waited_ns as f64 / 1e6;
        (waited_ms >= WAIT_MIN_MS).then(|| answer.estimate_ms as f64 / waited_ms - 1.0)
    };
    answers.iter().filter_map(error).collect()
}

fn result_line(
    target: &Target,
    shape: WorkloadShape,
    tasks: u64,
    seconds: f64,
    errors: Vec<f64>,
) -> ResultLine {
    let percent = |share: f64| (1000.0 * share).round() / 10.0;
    let bias = errors.iter().sum::<f64>() / errors.len() as f64;
    let mut sizes: Vec<f64> = errors.iter().map(|error| error.abs()).collect();
    sizes.sort_by(f64::total_cmp);
    let at = |share: f64| sizes[((sizes.len() - 1) as f64 * share).round() as usize];
    ResultLine::new("estimate", target.name(), tasks, seconds)
        .with_extra("line", shape.name)
        .with_extra("answers", sizes.len())
        .with_extra("error_median_percent", percent(at(0.5)))
        .with_extra("error_p90_percent", percent(at(0.9)))
        .with_extra("bias_percent", percent(bias))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_queue_shapes_have_same_mean_run_time() {
        for shape in WORKLOADS {
            let all: u64 = shape.run_ms.iter().sum();
            assert_eq!(all, MEAN_MS * shape.run_ms.len() as u64, "{}", shape.name);
        }
    }

    #[test]
    fn estimate_error_is_relative_to_actual_wait() {
        let starts = BTreeMap::from([(TaskId(1), 1_000_000_000)]);
        let answer = |task, asked_ns, estimate_ms| EstimateSample {
            task: TaskId(task),
            sampled_ns: asked_ns,
            estimate_ms,
        };
        let answers = [answer(1, 0, 1500), answer(1, 500_000_000, 400), answer(2, 0, 9)];
        let found = errors(&answers, &starts);
        assert_eq!(found.len(), 2, "who never started is not counted");
        assert!((found[0] - 0.5).abs() < 1e-9 && (found[1] + 0.2).abs() < 1e-9, "{found:?}");
        assert!(errors(&[answer(1, 900_000_000, 1)], &starts).is_empty(), "too short to tell");
    }
}
