//! What a run file means.

use std::collections::BTreeMap;

use tidegate_core::bounds::{
    CAPACITY_MAX, DURATION_MS_MAX, JOB_WEIGHT_MAX, NAME_BYTES_MAX, PRIORITY_MAX,
};
use tidegate_core::{JobSpec, Kind, LimitScope, NewTask, check_capacity, name};

use super::fields::Fields;
use super::kind::KindChange;
use super::sections::Section;
use super::source::{Result, SourceText};
use super::tasks;

/// Everything a run file asks for, checked.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Names this content: the same file continues, a changed one begins anew.
    pub(crate) run_id: String,
    /// The server to start beside the run.
    pub(crate) server: Option<ServerPlan>,
    /// Capacities by group.
    pub(crate) limits: Vec<(String, u32)>,
    /// What it changes of the kinds.
    pub(crate) kinds: Vec<KindChange>,
    /// Jobs.
    pub(crate) jobs: Vec<JobSpec>,
    /// Tasks, in order; those of one workflow follow each other.
    pub(crate) tasks: Vec<PlannedTask>,
}

/// A task, and how long after the submit it is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlannedTask {
    pub(crate) task: NewTask,
    pub(crate) delay_ms: Option<i64>,
}

/// A small HTTP server for examples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ServerPlan {
    /// With more calls at once than this it answers 503. Default: any number.
    pub(crate) calls_max: Option<u32>,
    /// The quickest answer. Default: 20 ms.
    pub(crate) answer_ms_min: u64,
    /// The slowest answer. Default: 80 ms.
    pub(crate) answer_ms_max: u64,
    /// Every so many calls it answers 500, so that there is something to try again. Default:
    /// never.
    pub(crate) fail_every: Option<u32>,
    /// Decides how long each answer takes. Default: 0.
    pub(crate) seed: u64,
}

/// Turns the sections of a file into a plan.
pub(crate) fn build_plan(source: SourceText<'_>, sections: Vec<Section<'_>>) -> Result<Plan> {
    let mut plan = Plan {
        run_id: format!("{:016x}", fingerprint(source.text.as_bytes())),
        server: None,
        limits: Vec::new(),
        kinds: Vec::new(),
        jobs: Vec::new(),
        tasks: Vec::new(),
    };
    let mut works = Vec::new();
    for section in sections {
        match section.name {
            "server" => plan.server = Some(read_server(source, &section)?),
            "limit" => plan.limits.push(read_limit(source, &section)?),
            "kind" => plan.kinds.push(KindChange::read(source, &section)?),
            "job" => plan.jobs.push(read_job(source, &section)?),
            _ => works.push(section),
        }
    }
    for section in works {
        tasks::add_tasks(source, &section, &mut plan)?;
    }
    Ok(plan)
}

impl Plan {
    /// The capacity this file gives a group.
    pub(crate) fn capacity_of(&self, group: &str) -> Option<u32> {
        self.limits.iter().rev().find(|(name, _)| name == group).map(|(_, capacity)| *capacity)
    }

    /// The kinds it has settings for: as they were, with the changes of the file.
    pub(crate) fn kinds(&self, known: Vec<Kind>) -> Vec<Kind> {
        let named = |kind: &Kind| self.kinds.iter().any(|change| change.applies_to(kind));
        let mut kinds: Vec<Kind> = known.into_iter().filter(named).collect();
        for kind in &mut kinds {
            self.kinds.iter().for_each(|change| change.apply(kind));
        }
        kinds
    }

    /// The queues its tasks line up in.
    pub(crate) fn queues(&self, kinds: &[Kind]) -> Vec<String> {
        let of_kind: BTreeMap<&str, &str> =
            kinds.iter().map(|kind| (&*kind.name, &*kind.queue)).collect();
        let queue = |planned: &PlannedTask| {
            let kind_queue = of_kind.get(&*planned.task.kind).copied().unwrap_or("default");
            planned.task.queue.clone().unwrap_or_else(|| kind_queue.to_owned())
        };
        let mut queues: Vec<String> = self.tasks.iter().map(queue).collect();
        queues.sort();
        queues.dedup();
        queues
    }
}

/// FNV-1a: tells contents apart, and stays the same from version to version.
fn fingerprint(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

fn read_server(source: SourceText<'_>, section: &Section<'_>) -> Result<ServerPlan> {
    let known = ["calls_max", "answer_ms_min", "answer_ms_max", "fail_every"];
    let fields = Fields::from_node(source, "server", section.node, &known)?;
    let answer_ms_min = fields.number("answer_ms_min", 0, 60_000)?.unwrap_or(20);
    let answer_ms_max = fields.number("answer_ms_max", answer_ms_min, 60_000)?;
    Ok(ServerPlan {
        calls_max: fields.number("calls_max", 1, 10_000)?.map(|calls| calls as u32),
        answer_ms_min: answer_ms_min as u64,
        answer_ms_max: answer_ms_max.unwrap_or(answer_ms_min.max(80)) as u64,
        fail_every: fields.number("fail_every", 2, 1_000_000)?.map(|calls| calls as u32),
        seed: 0,
    })
}

fn read_limit(source: SourceText<'_>, section: &Section<'_>) -> Result<(String, u32)> {
    let fields = Fields::from_node(source, "limit", section.node, &["group", "capacity"])?;
    let group = fields.required_text("group")?;
    check_name(&fields, "group", &group)?;
    let capacity = fields
        .number("capacity", i64::MIN, i64::MAX)?
        .ok_or_else(|| fields.error("limit needs `capacity`; 0 pauses the group"))?;
    let capacity = check_capacity(&LimitScope::Group.limit_name(&group), capacity)
        .map_err(|error| fields.error_at("capacity", error.to_string()))?;
    Ok((group, capacity))
}

fn read_job(source: SourceText<'_>, section: &Section<'_>) -> Result<JobSpec> {
    let known = ["name", "concurrency", "min_concurrency", "weight", "priority", "delay_ms"];
    let fields = Fields::from_node(source, "job", section.node, &known)?;
    let name = fields.required_text("name")?;
    check_name(&fields, "name", &name)?;
    let concurrency = fields.number("concurrency", 0, CAPACITY_MAX)?;
    let weight = fields.number("weight", 1, i64::from(JOB_WEIGHT_MAX))?.unwrap_or(1);
    let priority_max = i64::from(PRIORITY_MAX);
    let priority = fields.number("priority", -priority_max, priority_max)?.unwrap_or(0);
    let job = JobSpec {
        name,
        concurrency: concurrency.map(|n| n as u32),
        min_concurrency: fields.number("min_concurrency", 0, CAPACITY_MAX)?.unwrap_or(0) as u32,
        weight: weight as u32,
        priority: priority as i32,
        delay_ms: fields.number("delay_ms", 0, DURATION_MS_MAX)?.unwrap_or(0),
    };
    job.check().map_err(|error| fields.error_at("min_concurrency", error.to_string()))?;
    Ok(job)
}

/// Checks the name that a key holds. Room is left for the number that generators put in.
pub(crate) fn check_name(fields: &Fields<'_>, key: &str, text: &str) -> Result<()> {
    const ROOM: usize = 16;
    if text.len() > NAME_BYTES_MAX - ROOM {
        let most = NAME_BYTES_MAX - ROOM;
        let text = format!("`{key}` has {} bytes; at most {most} are allowed", text.len());
        return Err(fields.error_at(key, text));
    }
    name::check(key, text).map_err(|error| fields.error_at(key, error.to_string()))
}
