//! Why a task is not running, in words.

use tidegate_core::inspect::{Explanation, Reason, TaskView};
use tidegate_core::tables::Class;
use tidegate_core::{ErrorKind, Halt, Inspect, Millis, Result, Source, State, TaskId};
use tidegate_measure::table::counted;

use crate::cli::Global;
use crate::commands::concurrency::holder_words;
use crate::kinds;
use crate::output::{date, duration};

/// What the store says about a task, and what a person wants to know beside it.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) explanation: Explanation,
    pub(crate) now: Millis,
    /// Who set the limit that leaves it no room.
    source: Option<Source>,
    /// The task itself, where more is told of it.
    task: Option<TaskView>,
}

/// Asks why a task is not running; none if there is no such task.
pub(crate) async fn ask(inspect: &dyn Inspect, task: TaskId) -> Result<Option<Told>> {
    let Some(explanation) = inspect.explain(task).await? else {
        return Ok(None);
    };
    let source = match &explanation.reason {
        Reason::InLine { limit, capacity: Some(capacity), held, .. }
            if *capacity == 0 || held > capacity =>
        {
            let limits = inspect.limits().await?;
            limits.into_iter().find(|known| known.name == *limit).map(|known| known.source)
        }
        _ => None,
    };
    let is_told = matches!(
        explanation.reason,
        Reason::Ended
            | Reason::AtGate { is_served: false }
            | Reason::InLine { class: Class::NoWorker, .. }
    );
    let task = match is_told || explanation.paused_at.is_some() {
        // Whoever may not read payloads is told the rest.
        true => match inspect.task(task).await {
            Err(error) if error.kind() == ErrorKind::Refused => None,
            read => read?,
        },
        false => None,
    };
    Ok(Some(Told { explanation, now: inspect.now().await?, source, task }))
}

impl Told {
    /// One line, without its end.
    pub(crate) fn words(&self, global: &Global) -> String {
        let Explanation { task, state, paused_at, .. } = &self.explanation;
        let paused = match (paused_at, &self.task) {
            (Some(at), Some(task)) => self.paused(global, *at, &task.queue),
            _ => String::new(),
        };
        format!("task {task} is {state}: {}{paused}", self.why(global))
    }

    /// All that is known: since when, how long still, and the holders of the limit it waits for.
    pub(crate) fn all_words(&self, global: &Global) -> String {
        let Explanation { reason, since, estimate_ms, .. } = &self.explanation;
        let mut text = self.words(global);
        if let Some(since) = since {
            let ago = duration((self.now - since).max(0));
            text.push_str(&format!(", since {ago} ({})", date(*since)));
        }
        if let Some(ms) = estimate_ms {
            text.push_str(&format!("; it starts in about {}", duration(*ms)));
        }
        text.push('\n');
        if let Reason::InLine { holders, .. } = reason {
            for holder in holders {
                text.push_str(&format!("  {}\n", holder_words(holder, self.now)));
            }
        }
        text
    }

    /// Who holds the first slot of the limit it waits for, and until when at least.
    pub(crate) fn first_holder(&self) -> Option<String> {
        match &self.explanation.reason {
            Reason::InLine { holders, .. } => Some(holder_words(holders.first()?, self.now)),
            _ => None,
        }
    }

    fn is_paused(&self) -> bool {
        self.explanation.paused_at.is_some()
    }

    /// What runs goes on in a paused queue; what waits cannot start.
    fn paused(&self, global: &Global, at: Millis, queue: &str) -> String {
        let ago = duration((self.now - at).max(0));
        let resume = global.command(&["queue", "resume", queue]);
        format!("; queue {queue:?} is paused for {ago}, `{resume}` lets it go on")
    }

    fn why(&self, global: &Global) -> String {
        let in_future = |at: Millis| duration((at - self.now).max(0));
        match &self.explanation.reason {
            Reason::NotDue { run_at } => {
                format!("it is due in {} ({})", in_future(*run_at), date(*run_at))
            }
            // Nobody claims from a paused queue, so nobody is missed there.
            Reason::Ready { .. } if self.is_paused() => "it is ready".to_owned(),
            Reason::AtGate { .. } if self.is_paused() => "it is at the gate".to_owned(),
            Reason::AtGate { is_served } => match &self.task {
                Some(task) if !is_served => {
                    format!("it is at the gate, and {}", unserved(global, &task.queue, &task.kind))
                }
                _ => "it is at the gate; the next claim of any worker looks at it".to_owned(),
            },
            Reason::InLine { limit, halt: Some(halt), place, .. } => {
                halted(global, limit, *halt, *place)
            }
            Reason::InLine { limit, capacity, held, class, place, delay_ms, .. } => {
                let class = match (class, &self.task) {
                    (Class::NoWorker, _) if self.is_paused() => String::new(),
                    (Class::NoWorker, Some(task)) => format!(
                        " and is passed over: {}",
                        unserved(global, &task.queue, &task.kind)
                    ),
                    (class, _) => class_words(*class).to_owned(),
                };
                let apart = match delay_ms {
                    0 => String::new(),
                    _ => {
                        format!("; tasks of this job start at least {} apart", duration(*delay_ms))
                    }
                };
                format!("{}{class}{apart}", self.line(limit, *capacity, *held, *place))
            }
            Reason::Ready { queue, kind, is_served, is_open, ahead } => {
                ready(global, queue, kind, *is_served, *is_open, *ahead)
            }
            Reason::Running { worker, expires_at, slots } => {
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
            Reason::Ended if self.explanation.state == State::Completed => {
                "it has ended well".to_owned()
            }
            Reason::Ended => match self.task.as_ref().and_then(|task| task.error.as_deref()) {
                Some(error) => format!("it has ended; its last error: {error}"),
                None => "it has ended".to_owned(),
            },
        }
    }

    /// A limit without room: paused, lowered, or held by others.
    fn line(&self, limit: &str, capacity: Option<u32>, held: u32, place: u64) -> String {
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
fn unserved(global: &Global, queue: &str, kind: &str) -> String {
    let mut words = vec!["worker", "--queues", queue];
    words.extend(kinds::flag_of(kind).into_iter().flatten());
    let start = global.command(&words);
    let help = match kinds::NAMES.contains(&kind) {
        true => format!("start one with `{start}`"),
        false => "start a worker that has a handler for it".to_owned(),
    };
    format!("no live worker serves kind {kind:?} in queue {queue:?}; {help}")
}

fn ready(
    global: &Global,
    queue: &str,
    kind: &str,
    is_served: bool,
    is_open: bool,
    ahead: u64,
) -> String {
    if !is_served {
        return format!("it is ready, and {}", unserved(global, queue, kind));
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
fn halted(global: &Global, limit: &str, halt: Halt, place: u64) -> String {
    let (what, of) = limit.split_once(':').unwrap_or(("", limit));
    let command = |verb: &str| global.command(&[what, verb, of]);
    let stands = format!("it stands at place {place} in the line of {limit}");
    match halt {
        Halt::Step(step) => format!(
            "{stands}, which has halted: task {step} has failed; `{}` tries it anew, `{}` goes on \
             without it, `{}` ends the workflow",
            command("resume"),
            command("skip"),
            command("cancel")
        ),
        Halt::Operator => {
            format!("{stands}, which is paused; `{}` lets it go on", command("resume"))
        }
    }
}

fn class_words(class: Class) -> &'static str {
    match class {
        Class::Waiting => "",
        Class::Reserving => " and collects its slots one after another, before all others",
        Class::Seat => " and will collect its slots one after another when nobody else does",
        Class::TooHeavy => " and is passed over: it takes more slots than the limit has",
        Class::NoWorker => " and is passed over: no live worker serves its queue and kind",
    }
}
