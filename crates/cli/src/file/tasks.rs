//! Tasks and workflows: each section may stand for many.

use tidegate_core::bounds::{
    ATTEMPTS_MAX, DURATION_MS_MAX, PAYLOAD_BYTES_MAX, PRIORITY_MAX, WEIGHT_MAX,
};
use tidegate_core::{NewTask, OnFailure};

use super::fields::Fields;
use super::node::Node;
use super::plan::{Plan, PlannedTask, checked_name};
use super::sections::Section;
use super::source::{Result, Source};
use crate::kinds;

/// Tasks one file may ask for.
const TASKS_MAX: usize = 1_000_000;

/// Stands for the number of a generated task or workflow, from 1.
const NUMBER: &str = "{n}";

const STEP_KEYS: [&str; 11] = [
    "kind",
    "count",
    "payload",
    "queue",
    "group",
    "weight",
    "priority",
    "delay_ms",
    "max_attempts",
    "timeout_ms",
    "on_failure",
];

/// Adds what a `[[task]]` or `[[workflow]]` stands for.
pub(crate) fn add(source: Source<'_>, section: &Section<'_>, plan: &mut Plan) -> Result<()> {
    match section.name {
        "workflow" => workflow(source, section.node, plan),
        _ => task(source, section.node, plan),
    }
}

fn task(source: Source<'_>, node: Node<'_>, plan: &mut Plan) -> Result<()> {
    let known = [&STEP_KEYS[..], &["job", "workflow"]].concat();
    let fields = Fields::of(source, "task", node, &known)?;
    let pattern = Pattern::read(source, &fields, plan)?;
    pattern.expand(&fields, plan, None)
}

fn workflow(source: Source<'_>, node: Node<'_>, plan: &mut Plan) -> Result<()> {
    let fields = Fields::of(source, "workflow", node, &["name", "count", "job", "steps"])?;
    let name = fields.required_text("name")?;
    checked_name(&fields, "name", &name)?;
    let count = fields.number("count", 1, TASKS_MAX as i64)?.unwrap_or(1);
    if count > 1 && !name.contains(NUMBER) {
        let text = format!("{count} workflows need {count} names; put {NUMBER} into the name");
        return Err(fields.fault_at("name", text));
    }
    let job = job(&fields, plan)?;
    let steps = fields.array("steps")?.unwrap_or_default();
    if steps.is_empty() {
        return Err(fields.fault("workflow needs `steps`"));
    }
    for number in 1..=count {
        for step in &steps {
            let fields = Fields::of(source, "step", *step, &STEP_KEYS)?;
            let mut pattern = Pattern::read(source, &fields, plan)?;
            pattern.task.job.clone_from(&job);
            pattern.task.workflow = Some(name.clone());
            pattern.expand(&fields, plan, Some(number))?;
        }
    }
    Ok(())
}

/// A task that stands for `count` tasks.
struct Pattern {
    task: NewTask,
    payload: String,
    count: i64,
    delay_ms: Option<i64>,
}

impl Pattern {
    fn read(source: Source<'_>, fields: &Fields<'_>, plan: &Plan) -> Result<Self> {
        let kind = fields.required_text("kind")?;
        if !kinds::NAMES.contains(&&*kind) {
            return Err(fields.fault_at("kind", super::unknown("kind", &kind, &kinds::NAMES)));
        }
        let payload = match fields.node("payload") {
            Some(node) => node.json(source)?,
            None => "null".to_owned(),
        };
        let mut task = NewTask::new(kind, payload.as_bytes());
        let named = |key: &str| -> Result<Option<String>> {
            let name = fields.text(key)?;
            name.as_deref().map_or(Ok(()), |name| checked_name(fields, key, name))?;
            Ok(name)
        };
        task.queue = named("queue")?;
        task.group = named("group")?;
        task.workflow = named("workflow")?;
        task.job = job(fields, plan)?;
        task.weight = fields.number("weight", 1, i64::from(WEIGHT_MAX))?.unwrap_or(1) as u32;
        let priority = i64::from(PRIORITY_MAX);
        task.priority = fields.number("priority", -priority, priority)?.unwrap_or(0) as i32;
        let attempts = fields.number("max_attempts", 1, i64::from(ATTEMPTS_MAX))?;
        task.max_attempts = attempts.map(|attempts| attempts as u32);
        task.timeout_ms = fields.number("timeout_ms", 1, DURATION_MS_MAX)?;
        if let Some(word) = fields.text("on_failure")? {
            task.on_failure = OnFailure::parse(&word).ok_or_else(|| {
                let words = ["halt", "continue"];
                fields.fault_at("on_failure", super::unknown("word", &word, &words))
            })?;
        }
        let pattern = Self {
            task,
            payload,
            count: fields.number("count", 1, TASKS_MAX as i64)?.unwrap_or(1),
            delay_ms: fields.number("delay_ms", 0, DURATION_MS_MAX)?,
        };
        pattern.check(fields, plan)?;
        Ok(pattern)
    }

    fn check(&self, fields: &Fields<'_>, plan: &Plan) -> Result<()> {
        let task = &self.task;
        task.check(PAYLOAD_BYTES_MAX)
            .map_err(|error| fields.fault_at("payload", error.to_string()))?;
        kinds::check(&task.kind, &task.payload, plan.server.is_some())
            .map_err(|text| fields.fault_at("payload", text))?;
        if let Some(capacity) = plan.capacity_of(task.group())
            && capacity > 0
            && task.weight > capacity
        {
            let text = format!(
                "a task of weight {} can never run in group {:?}, whose limit is {capacity}",
                task.weight,
                task.group()
            );
            return Err(fields.fault_at("weight", text));
        }
        Ok(())
    }

    /// Adds the tasks. Steps go by the number of their workflow.
    fn expand(self, fields: &Fields<'_>, plan: &mut Plan, workflow: Option<i64>) -> Result<()> {
        if plan.tasks.len() + self.count as usize > TASKS_MAX {
            let text = format!("the file asks for more than {TASKS_MAX} tasks; split it");
            return Err(fields.fault_at("count", text));
        }
        for number in 1..=self.count {
            let mut task = self.task.clone();
            let number = workflow.unwrap_or(number).to_string();
            task.payload = self.payload.replace(NUMBER, &number).into_bytes();
            task.workflow = task.workflow.map(|name| name.replace(NUMBER, &number));
            plan.tasks.push(PlannedTask { task, delay_ms: self.delay_ms });
        }
        Ok(())
    }
}

/// A task's job is one of the file's: a typing error would silently be a job of its own.
fn job(fields: &Fields<'_>, plan: &Plan) -> Result<Option<String>> {
    let Some(job) = fields.text("job")? else {
        return Ok(None);
    };
    let known: Vec<&str> = plan.jobs.iter().map(|job| &*job.name).collect();
    if known.is_empty() {
        let text = format!("unknown job `{job}`; this file has no [[job]], add one");
        return Err(fields.fault_at("job", text));
    }
    if !known.contains(&&*job) {
        return Err(fields.fault_at("job", super::unknown("job", &job, &known)));
    }
    Ok(Some(job))
}
