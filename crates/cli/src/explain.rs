//! Why a task is not running, in words.

use tidegate_core::reader::{Explanation, NotRunningReason, TaskView};
use tidegate_core::tables::WaitReason;
use tidegate_core::{
    CapacitySource, ErrorKind, Millis, PauseCause, Result, StoreReader, TaskId, TaskState,
};
use tidegate_measure::table::counted;

use crate::cli::Global;
use crate::commands::concurrency::format_holder;
use crate::kinds;
use crate::output::{format_date, format_duration};

/// What the store says about a task, and what a person wants to know beside it.
#[derive(Debug)]
pub(crate) struct TaskExplanation {
    pub(crate) explanation: Explanation,
    pub(crate) now: Millis,
    /// Who set the limit that leaves it no room.
    source: Option<CapacitySource>,
    /// The task itself, where more is told of it.
    task: Option<TaskView>,
}

/// Asks why a task is not running; none if there is no such task.
pub(crate) async fn explain_task(
    reader: &dyn StoreReader,
    task: TaskId,
) -> Result<Option<TaskExplanation>> {
    let Some(explanation) = reader.explain(task).await? else {
        return Ok(None);
    };
    let source = match &explanation.reason {
        NotRunningReason::InWaitQueue { limit, capacity: Some(capacity), held, .. }
            if *capacity == 0 || held > capacity =>
        {
            let limits = reader.limits().await?;
            limits.into_iter().find(|known| known.name == *limit).map(|known| known.source)
        }
        _ => None,
    };
    let is_told = matches!(
        explanation.reason,
        NotRunningReason::Finished
            | NotRunningReason::InInbox { is_served: false }
            | NotRunningReason::InWaitQueue { wait_reason: WaitReason::NoWorker, .. }
    );
    let task = match is_told || explanation.queue_paused_at.is_some() {
        // Whoever may not read payloads is told the rest.
        true => match reader.task(task).await {
            Err(error) if error.kind() == ErrorKind::Refused => None,
            read => read?,
        },
        false => None,
    };
    Ok(Some(TaskExplanation { explanation, now: reader.now().await?, source, task }))
}

impl TaskExplanation {
    /// One line, without its end.
    pub(crate) fn summary(&self, global: &Global) -> String {
        let Explanation { task, state, queue_paused_at: paused_at, .. } = &self.explanation;
        let paused = match (paused_at, &self.task) {
            (Some(at), Some(task)) => self.describe_queue_pause(global, *at, &task.queue),
            _ => String::new(),
        };
        format!("task {task} is {state}: {}{paused}", self.describe_reason(global))
    }

    /// All that is known: since when, how long still, and the holders of the limit it waits for.
    pub(crate) fn details(&self, global: &Global) -> String {
        let Explanation { reason, reason_since: since, estimated_wait_ms: estimate_ms, .. } =
            &self.explanation;
        let mut text = self.summary(global);
        if let Some(since) = since {
            let ago = format_duration((self.now - since).max(0));
            text.push_str(&format!(", since {ago} ({})", format_date(*since)));
        }
        if let Some(ms) = estimate_ms {
            text.push_str(&format!("; it starts in about {}", format_duration(*ms)));
        }
        text.push('\n');
        if let NotRunningReason::InWaitQueue { holders, .. } = reason {
            for holder in holders {
                text.push_str(&format!("  {}\n", format_holder(holder, self.now)));
            }
        }
        text
    }

    /// Who holds the first slot of the limit it waits for, and until when at least.
    pub(crate) fn first_holder(&self) -> Option<String> {
        match &self.explanation.reason {
            NotRunningReason::InWaitQueue { holders, .. } => {
                Some(format_holder(holders.first()?, self.now))
            }
            _ => None,
        }
    }

    fn is_paused(&self) -> bool {
        self.explanation.queue_paused_at.is_some()
    }

    /// What runs goes on in a paused queue; what waits cannot start.
    fn describe_queue_pause(&self, global: &Global, at: Millis, queue: &str) -> String {
        let ago = format_duration((self.now - at).max(0));
        let resume = global.command_line(&["queue", "resume", queue]);
        format!("; queue {queue:?} is paused for {ago}, `{resume}` lets it go on")
    }

    fn describe_reason(&self, global: &Global) -> String {
        let in_future = |at: Millis| format_duration((at - self.now).max(0));
        match &self.explanation.reason {
            NotRunningReason::NotDue { run_at } => {
                format!("it is due in {} ({})", in_future(*run_at), format_date(*run_at))
            }
            // Nobody claims from a paused queue, so nobody is missed there.
            NotRunningReason::Ready { .. } if self.is_paused() => "it is ready".to_owned(),
            NotRunningReason::InInbox { .. } if self.is_paused() => "it is at the gate".to_owned(),
            NotRunningReason::InInbox { is_served } => match &self.task {
                Some(task) if !is_served => {
                    format!(
                        "it is at the gate, and {}",
                        describe_unserved(global, &task.queue, &task.kind)
                    )
                }
                _ => "it is at the gate; the next claim of any worker looks at it".to_owned(),
            },
            NotRunningReason::InWaitQueue {
                limit,
                paused_by: Some(halt),
                queue_position: place,
                ..
            } => describe_pause_cause(global, limit, *halt, *place),
            NotRunningReason::InWaitQueue {
                limit,
                capacity,
                held,
                wait_reason: class,
                queue_position: place,
                delay_ms,
                ..
            } => {
                let class = match (class, &self.task) {
                    (WaitReason::NoWorker, _) if self.is_paused() => String::new(),
                    (WaitReason::NoWorker, Some(task)) => format!(
                        " and is passed over: {}",
                        describe_unserved(global, &task.queue, &task.kind)
                    ),
                    (class, _) => describe_wait_reason(*class).to_owned(),
                };
                let apart = match delay_ms {
                    0 => String::new(),
                    _ => {
                        format!(
                            "; tasks of this job start at least {} apart",
                            format_duration(*delay_ms)
                        )
                    }
                };
                format!("{}{class}{apart}", self.describe_waiting(limit, *capacity, *held, *place))
            }
            NotRunningReason::Ready {
                queue,
                kind,
                is_served,
                is_in_day_window: is_open,
                tasks_ahead: ahead,
            } => describe_ready(global, queue, kind, *is_served, *is_open, *ahead),
            NotRunningReason::Running { worker, expires_at, slots } => {
                let slots: Vec<String> = slots
                    .iter()
                    .map(|slot| format!("{} slot {}", slot.name, slot.number))
                    .collect();
                let slots = if slots.is_empty() { "no slots".to_owned() } else { slots.join(", ") };
                format!(
                    "it runs on worker {worker}, lease ends in {} unless renewed, holds {slots}",
                    in_future(*expires_at)
                )
            }
            NotRunningReason::Finished if self.explanation.state == TaskState::Completed => {
                "it has ended well".to_owned()
            }
            NotRunningReason::Finished => {
                match self.task.as_ref().and_then(|task| task.error.as_deref()) {
                    Some(error) => format!("it has ended; its last error: {error}"),
                    None => "it has ended".to_owned(),
                }
            }
        }
    }

    /// A limit without room: paused, lowered, or held by others.
    fn describe_waiting(
        &self,
        limit: &str,
        capacity: Option<u32>,
        held: u32,
        place: u64,
    ) -> String {
        let by = self.source.map_or_else(String::new, |source| format!(" (set by {source})"));
        match capacity {
            Some(0) if held == 0 => {
                format!("paused: limit {limit} is 0{by}; it stands at place {place} in the line")
            }
            Some(capacity) if held > capacity => format!(
                "draining: {held} held, {capacity} allowed by limit {limit}{by}; it stands at \
                 place {place} in the line"
            ),
            _ => {
                let of = capacity.map_or_else(String::new, |capacity| format!(" of {capacity}"));
                format!("it stands at place {place} in the line of {limit} ({held}{of} slots held)")
            }
        }
    }
}

/// The binary serves its own kinds only: nobody is sent to start a worker that cannot help.
fn describe_unserved(global: &Global, queue: &str, kind: &str) -> String {
    let mut words = vec!["worker", "--queues", queue];
    words.extend(kinds::permission_flag(kind).into_iter().flatten());
    let start = global.command_line(&words);
    let help = match kinds::NAMES.contains(&kind) {
        true => format!("start one with `{start}`"),
        false => "start a worker that has a handler for it".to_owned(),
    };
    format!("no live worker serves kind {kind:?} in queue {queue:?}; {help}")
}

fn describe_ready(
    global: &Global,
    queue: &str,
    kind: &str,
    is_served: bool,
    is_open: bool,
    ahead: u64,
) -> String {
    if !is_served {
        return format!("it is ready, and {}", describe_unserved(global, queue, kind));
    }
    let who = format!("kind {kind:?} in queue {queue:?}");
    if !is_open {
        return format!("it is ready, and kind {kind:?} is outside its hours");
    }
    match ahead {
        0 => format!("it is the next of {who}; the workers that serve it are full"),
        _ => format!(
            "it is ready behind {} of {who}; the workers that serve it are full",
            counted(ahead, "task")
        ),
    }
}

/// A workflow or a job that goes no further, and what can be done.
fn describe_pause_cause(global: &Global, limit: &str, halt: PauseCause, place: u64) -> String {
    let (what, of) = limit.split_once(':').unwrap_or(("", limit));
    let command = |verb: &str| global.command_line(&[what, verb, of]);
    let stands = format!("it stands at place {place} in the line of {limit}");
    match halt {
        PauseCause::FailedStep(step) => format!(
            "{stands}, which has halted: task {step} has failed; `{}` tries it anew, `{}` goes on \
             without it, `{}` ends the workflow",
            command("resume"),
            command("skip"),
            command("cancel")
        ),
        PauseCause::Operator => {
            format!("{stands}, which is paused; `{}` lets it go on", command("resume"))
        }
    }
}

fn describe_wait_reason(class: WaitReason) -> &'static str {
    match class {
        WaitReason::Queued => "",
        WaitReason::Reserving => " and collects its slots one after another, before all others",
        WaitReason::WaitingToReserve => {
            " and will collect its slots one after another when nobody else does"
        }
        WaitReason::TooHeavy => " and is passed over: it takes more slots than the limit has",
        WaitReason::NoWorker => " and is passed over: no live worker serves its queue and kind",
    }
}
