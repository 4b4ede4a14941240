//! What a limit would admit or block if it were set.

use serde::Serialize;
use tidegate_core::reader::{TaskFilter, TaskView, WaiterView};
use tidegate_core::tables::WaitReason;
use tidegate_core::{Limit, LimitScope, TaskId, TaskState};
use tidegate_measure::table::counted;
use tidegate_store::StoreHandle;

use crate::output::{or_dash, print, print_json};

/// Tasks that are looked at.
const TASKS_READ_MAX: u32 = 10_000;

/// Tasks that are named.
const TASKS_LISTED_MAX: usize = 10;

/// What would happen.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Effect {
    limit: String,
    /// The capacity now; none where it is unlimited.
    before: Option<u32>,
    capacity: u32,
    /// Slots held now. What runs keeps them.
    held: u32,
    /// How many must come back before the next task starts.
    draining: u32,
    /// Tasks that would start, in order.
    admits: Vec<TaskId>,
    /// Tasks that could start now and would wait.
    blocks: Vec<TaskId>,
    /// Tasks that take more slots than there would be.
    too_heavy: Vec<TaskId>,
    /// Tasks that would go on waiting.
    waiting: u64,
}

pub(super) async fn show(
    opened: &StoreHandle,
    name: String,
    capacity: u32,
    json: bool,
) -> anyhow::Result<()> {
    let limits = opened.reader.limits().await?;
    let effect = match limits.iter().find(|limit| *limit.name == *name && limit.capacity.is_some())
    {
        Some(limit) => {
            let line = opened.reader.waiters(limit.id, TASKS_READ_MAX).await?;
            effect_of_change(limit, capacity, &line)
        }
        None => {
            effect_of_new_limit(name.clone(), capacity, &tasks_under_limit(opened, &name).await?)
        }
    };
    if json { print_json([&effect]) } else { Ok(print(&effect.describe())?) }
}

/// A limit that is there has a line. Tasks further down the line are counted as waiting.
fn effect_of_change(limit: &Limit, capacity: u32, line: &[WaiterView]) -> Effect {
    let mut effect = Effect {
        limit: limit.name.to_string(),
        before: limit.capacity,
        capacity,
        held: limit.held,
        draining: limit.held.saturating_sub(capacity),
        ..Effect::default()
    };
    let weight =
        |waiter: &WaiterView| if limit.scope() == LimitScope::Group { waiter.weight } else { 1 };
    let mut free = capacity.saturating_sub(limit.held);
    let mut is_moving = true;
    // Who is passed over for want of a worker waits whatever the limit is.
    for waiter in line.iter().filter(|waiter| waiter.wait_reason != WaitReason::NoWorker) {
        let weight = weight(waiter);
        if capacity > 0 && weight > capacity {
            effect.too_heavy.push(waiter.task);
            continue;
        }
        // The first that does not fit keeps its place before all others.
        is_moving &= weight <= free;
        if is_moving {
            free -= weight;
            effect.admits.push(waiter.task);
        }
    }
    let moved = effect.admits.len() + effect.too_heavy.len();
    effect.waiting = u64::from(limit.waiting).saturating_sub(moved as u64);
    effect
}

/// Where there is no limit, what runs is adopted and what is ready passes the gate again.
fn effect_of_new_limit(name: String, capacity: u32, tasks: &[TaskView]) -> Effect {
    let is_group = LimitScope::from_limit_name(&name) == Some(LimitScope::Group);
    let weight = |task: &TaskView| if is_group { task.weight } else { 1 };
    let running = tasks.iter().filter(|task| task.state == TaskState::Processing);
    let held = running.map(weight).sum();
    let mut free = capacity.saturating_sub(held);
    let mut effect = Effect {
        limit: name,
        capacity,
        held,
        draining: held.saturating_sub(capacity),
        ..Effect::default()
    };
    for task in tasks.iter().filter(|task| task.state == TaskState::Pending) {
        let weight = weight(task);
        if capacity > 0 && weight > capacity {
            effect.too_heavy.push(task.id);
        } else if weight <= free {
            free -= weight;
            effect.admits.push(task.id);
        } else {
            free = 0;
            effect.blocks.push(task.id);
        }
    }
    effect
}

async fn tasks_under_limit(opened: &StoreHandle, name: &str) -> anyhow::Result<Vec<TaskView>> {
    let mut filter = TaskFilter {
        states: vec![TaskState::Pending, TaskState::Processing],
        tasks_max: TASKS_READ_MAX,
        ..TaskFilter::default()
    };
    let of = name.split_once(':').map(|(_, of)| of.to_owned());
    match LimitScope::from_limit_name(name) {
        Some(LimitScope::Job) => filter.job = of,
        Some(LimitScope::Workflow) => filter.workflow = of,
        _ => filter.group = of,
    }
    Ok(opened.reader.tasks(filter).await?)
}

impl Effect {
    fn describe(&self) -> String {
        let Self { limit, capacity, held, .. } = self;
        let mut text = format!(
            "{limit} would be {capacity} instead of {}; {held} held\n",
            self.before.map_or_else(|| "unlimited".to_owned(), |before| before.to_string())
        );
        if self.draining > 0 {
            let slots = counted(self.draining.into(), "slot");
            text.push_str(&format!(
                "  drains: {slots} more must come back before the next task starts; what runs is \
                 not touched\n"
            ));
        }
        for (verb, tasks) in
            [("admits", &self.admits), ("blocks", &self.blocks), ("too heavy", &self.too_heavy)]
        {
            if !tasks.is_empty() {
                text.push_str(&format!("  {verb}: {}\n", list_tasks(tasks)));
            }
        }
        if self.waiting > 0 {
            text.push_str(&format!("  {} would go on waiting\n", counted(self.waiting, "task")));
        }
        text.push_str("nothing was changed; other limits of these tasks are not looked at\n");
        text
    }
}

fn list_tasks(tasks: &[TaskId]) -> String {
    let names: Vec<String> =
        tasks.iter().take(TASKS_LISTED_MAX).map(|task| or_dash(Some(task))).collect();
    let more = tasks.len().saturating_sub(TASKS_LISTED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{} ({}{more})", counted(tasks.len() as u64, "task"), names.join(", "))
}
