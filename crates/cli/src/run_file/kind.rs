//! What a file says about a kind.

use tidegate_core::bounds::{ATTEMPTS_MAX, CRASHES_MAX, DURATION_MS_MAX};
use tidegate_core::{DayWindow, Kind};

use super::fields::Fields;
use super::plan::check_name;
use super::sections::Section;
use super::source::{Result, SourceText};
use crate::kinds;

const KEYS: [&str; 11] = [
    "name",
    "queue",
    "max_attempts",
    "max_crashes",
    "timeout_ms",
    "backoff_ms",
    "backoff_ms_max",
    "window_start",
    "window_end",
    "remove_on_completed_days",
    "remove_on_failed_days",
];

/// What a `[[kind]]` changes. What it does not name stays as the store has it: it may be what
/// another file said.
#[derive(Debug, Clone)]
pub(crate) struct KindChange {
    name: String,
    queue: Option<String>,
    max_attempts: Option<u32>,
    max_crashes: Option<u32>,
    timeout_ms: Option<i64>,
    backoff_ms: Option<i64>,
    backoff_ms_max: Option<i64>,
    window: Option<DayWindow>,
    remove_on_completed_days: Option<u32>,
    remove_on_failed_days: Option<u32>,
}

impl KindChange {
    pub(crate) fn read(source: SourceText<'_>, section: &Section<'_>) -> Result<Self> {
        let fields = Fields::from_node(source, "kind", section.node, &KEYS)?;
        let name = fields.required_text("name")?;
        if !kinds::NAMES.contains(&&*name) {
            return Err(
                fields.error_at("name", super::unknown_word_message("kind", &name, &kinds::NAMES))
            );
        }
        let queue = fields.text("queue")?;
        queue.as_deref().map_or(Ok(()), |queue| check_name(&fields, "queue", queue))?;
        let number = |key: &str, least, most| -> Result<Option<u32>> {
            Ok(fields.number(key, least, most)?.map(|number| number as u32))
        };
        let duration = |key: &str| fields.number(key, 1, DURATION_MS_MAX);
        let change = Self {
            queue,
            max_attempts: number("max_attempts", 1, i64::from(ATTEMPTS_MAX))?,
            max_crashes: number("max_crashes", 1, i64::from(CRASHES_MAX))?,
            timeout_ms: duration("timeout_ms")?,
            backoff_ms: duration("backoff_ms")?,
            backoff_ms_max: duration("backoff_ms_max")?,
            window: read_window(&fields)?,
            remove_on_completed_days: number("remove_on_completed_days", 0, 36_500)?,
            remove_on_failed_days: number("remove_on_failed_days", 0, 36_500)?,
            name,
        };
        let mut kind = Kind::new(change.name.as_str());
        change.apply(&mut kind);
        kind.check().map_err(|error| fields.error(error.to_string()))?;
        Ok(change)
    }

    pub(crate) fn applies_to(&self, kind: &Kind) -> bool {
        *kind.name == *self.name
    }

    /// Changes the kind, if it is the one that is meant.
    pub(crate) fn apply(&self, kind: &mut Kind) {
        if !self.applies_to(kind) {
            return;
        }
        kind.queue = self.queue.as_deref().map_or_else(|| kind.queue.clone(), Into::into);
        kind.max_attempts = self.max_attempts.unwrap_or(kind.max_attempts);
        kind.max_crashes = self.max_crashes.unwrap_or(kind.max_crashes);
        kind.timeout_ms = self.timeout_ms.or(kind.timeout_ms);
        kind.backoff.base_ms = self.backoff_ms.unwrap_or(kind.backoff.base_ms);
        kind.backoff.cap_ms = self.backoff_ms_max.unwrap_or(kind.backoff.cap_ms);
        kind.day_window = self.window.or(kind.day_window);
        kind.remove_on_completed_days =
            self.remove_on_completed_days.or(kind.remove_on_completed_days);
        kind.remove_on_failed_days = self.remove_on_failed_days.or(kind.remove_on_failed_days);
    }
}

fn read_window(fields: &Fields<'_>) -> Result<Option<DayWindow>> {
    match (fields.text("window_start")?, fields.text("window_end")?) {
        (None, None) => Ok(None),
        (Some(start), Some(end)) => DayWindow::parse(&start, &end)
            .map(Some)
            .map_err(|error| fields.error_at("window_start", error.to_string())),
        _ => Err(fields.error("`window_start` and `window_end` go together")),
    }
}
