//! Tasks and workflows: each section may stand for many.

use tidegate_core::bounds::{
    ATTEMPTS_MAX, DURATION_MS_MAX, PAYLOAD_BYTES_MAX, PRIORITY_MAX, TASK_WEIGHT_MAX,
};
use tidegate_core::{NewTask, OnFailure};

use super::fields::Fields;
use super::node::Node;
use super::plan::{Plan, PlannedTask, check_name};
use super::sections::Section;
use super::source::{Result, SourceText};
use crate::kinds;

/// Tasks one file may ask for.
const TASKS_MAX: usize = 1_000_000;

/// Stands for the number of a generated task or workflow, from 1.
const NUMBER_PLACEHOLDER: &str = "{n}";

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
pub(crate) fn add_tasks(
    source: SourceText<'_>,
    section: &Section<'_>,
    plan: &mut Plan,
) -> Result<()> {
    match section.name {
        "workflow" => add_workflow(source, section.node, plan),
        _ => add_task(source, section.node, plan),
    }
}

fn add_task(source: SourceText<'_>, node: Node<'_>, plan: &mut Plan) -> Result<()> {
    let known = [&STEP_KEYS[..], &["job", "workflow"]].concat();
    let fields = Fields::from_node(source, "task", node, &known)?;
    let pattern = TaskTemplate::read(source, &fields, plan)?;
    pattern.expand(&fields, plan, None)
}

fn add_workflow(source: SourceText<'_>, node: Node<'_>, plan: &mut Plan) -> Result<()> {
    let fields = Fields::from_node(source, "workflow", node, &["name", "count", "job", "steps"])?;
    let name = fields.required_text("name")?;
    check_name(&fields, "name", &name)?;
    let count = fields.number("count", 1, TASKS_MAX as i64)?.unwrap_or(1);
    if count > 1 && !name.contains(NUMBER_PLACEHOLDER) {
        let text =
            format!("{count} workflows need {count} names; put {NUMBER_PLACEHOLDER} into the name");
        return Err(fields.error_at("name", text));
    }
    let job = read_job_name(&fields, plan)?;
    let steps = fields.array("steps")?.unwrap_or_default();
    if steps.is_empty() {
        return Err(fields.error("workflow needs `steps`"));
    }
    for number in 1..=count {
        for step in &steps {
            let fields = Fields::from_node(source, "step", *step, &STEP_KEYS)?;
            let mut pattern = TaskTemplate::read(source, &fields, plan)?;
            pattern.task.job.clone_from(&job);
            pattern.task.workflow = Some(name.clone());
            pattern.expand(&fields, plan, Some(number))?;
        }
    }
    Ok(())
}

/// A task that stands for `count` tasks.
struct TaskTemplate {
    task: NewTask,
    payload: String,
    count: i64,
    delay_ms: Option<i64>,
}

impl TaskTemplate {
    fn read(source: SourceText<'_>, fields: &Fields<'_>, plan: &Plan) -> Result<Self> {
        let kind = fields.required_text("kind")?;
        if !kinds::NAMES.contains(&&*kind) {
            return Err(
                fields.error_at("kind", super::unknown_word_message("kind", &kind, &kinds::NAMES))
            );
        }
        let payload = match fields.node("payload") {
            Some(node) => node.json(source)?,
            None => "null".to_owned(),
        };
        let mut task = NewTask::new(kind, payload.as_bytes());
        let named = |key: &str| -> Result<Option<String>> {
            let name = fields.text(key)?;
            name.as_deref().map_or(Ok(()), |name| check_name(fields, key, name))?;
            Ok(name)
        };
        task.queue = named("queue")?;
        task.effective_group = named("group")?;
        task.workflow = named("workflow")?;
        task.job = read_job_name(fields, plan)?;
        task.weight = fields.number("weight", 1, i64::from(TASK_WEIGHT_MAX))?.unwrap_or(1) as u32;
        let priority = i64::from(PRIORITY_MAX);
        task.priority = fields.number("priority", -priority, priority)?.unwrap_or(0) as i32;
        let attempts = fields.number("max_attempts", 1, i64::from(ATTEMPTS_MAX))?;
        task.max_attempts = attempts.map(|attempts| attempts as u32);
        task.timeout_ms = fields.number("timeout_ms", 1, DURATION_MS_MAX)?;
        if let Some(word) = fields.text("on_failure")? {
            task.on_failure = OnFailure::parse(&word).ok_or_else(|| {
                let words = ["halt", "continue"];
                fields.error_at("on_failure", super::unknown_word_message("word", &word, &words))
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
            .map_err(|error| fields.error_at("payload", error.to_string()))?;
        kinds::check_payload(&task.kind, &task.payload, plan.server.is_some())
            .map_err(|text| fields.error_at("payload", text))?;
        if let Some(capacity) = plan.capacity_of(task.group())
            && capacity > 0
            && task.weight > capacity
        {
            let text = format!(
                "a task of weight {} can never run in group {:?}, whose limit is {capacity}",
                task.weight,
                task.group()
            );
            return Err(fields.error_at("weight", text));
        }
        Ok(())
    }

    /// Adds the tasks. Steps go by the number of their workflow.
    fn expand(self, fields: &Fields<'_>, plan: &mut Plan, workflow: Option<i64>) -> Result<()> {
        if plan.tasks.len() + self.count as usize > TASKS_MAX {
            let text = format!("the file asks for more than {TASKS_MAX} tasks; split it");
            return Err(fields.error_at("count", text));
        }
        for number in 1..=self.count {
            let mut task = self.task.clone();
            let number = workflow.unwrap_or(number).to_string();
            task.payload = self.payload.replace(NUMBER_PLACEHOLDER, &number).into_bytes();
            task.workflow = task.workflow.map(|name| name.replace(NUMBER_PLACEHOLDER, &number));
            plan.tasks.push(PlannedTask { task, delay_ms: self.delay_ms });
        }
        Ok(())
    }
}

/// A task's job is one of the file's: a typing error would silently be a job of its own.
fn read_job_name(fields: &Fields<'_>, plan: &Plan) -> Result<Option<String>> {
    let Some(job) = fields.text("job")? else {
        return Ok(None);
    };
    let known: Vec<&str> = plan.jobs.iter().map(|job| &*job.name).collect();
    if known.is_empty() {
        let text = format!("unknown job `{job}`; this file has no [[job]], add one");
        return Err(fields.error_at("job", text));
    }
    if !known.contains(&&*job) {
        return Err(fields.error_at("job", super::unknown_word_message("job", &job, &known)));
    }
    Ok(Some(job))
}
