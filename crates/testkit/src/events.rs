//! Captures the `tracing` events of the store crate, and the spans of its requests.
//!
//! The store runs on threads of its own, so the subscriber is the global one of the process. Tests that
//! look at events rely on cargo-nextest, which runs each test in its own process.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Metadata, Subscriber};

/// How long [`Events::wait_for`] waits at most.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// One captured event.
#[derive(Debug, Clone)]
pub struct Event {
    /// Its level.
    pub level: Level,
    /// Its message and its fields, as `name=value`.
    pub text: String,
}

/// The events of this process, from the first call of [`Events::capture`] on.
#[derive(Debug, Clone, Default)]
pub struct Events(Arc<Inner>);

/// The target of the spans of requests.
const REQUEST: &str = "tidegate_store::request";

#[derive(Debug, Default)]
struct Inner {
    events: Mutex<Vec<Event>>,
    /// The fields of each request, as `name=value`. The id of its span is its place, counted from 1.
    requests: Mutex<Vec<String>>,
    added: Notify,
}

impl Events {
    /// Installs the subscriber, once per process.
    pub fn capture() -> Self {
        static EVENTS: OnceLock<Events> = OnceLock::new();
        let install = || {
            let events = Self::default();
            let capture = Capture(events.clone());
            tracing::subscriber::set_global_default(capture).expect("no other subscriber");
            events
        };
        EVENTS.get_or_init(install).clone()
    }

    /// Returns the events of a level so far.
    pub fn of_level(&self, level: Level) -> Vec<Event> {
        self.events().iter().filter(|event| event.level == level).cloned().collect()
    }

    /// Waits for an event of a level whose text contains `part`.
    pub async fn wait_for(&self, level: Level, part: &str) -> Event {
        let wait = async {
            loop {
                let added = self.0.added.notified();
                let found =
                    self.of_level(level).into_iter().find(|event| event.text.contains(part));
                match found {
                    Some(event) => return event,
                    None => added.await,
                }
            }
        };
        let found = tokio::time::timeout(WAIT_MAX, wait).await;
        found.unwrap_or_else(|_| panic!("no {level} event with {part:?}: {:?}", self.events()))
    }

    /// Returns the fields of the spans of requests so far, as `name=value`.
    pub fn requests(&self) -> Vec<String> {
        self.request_texts().clone()
    }

    fn request_texts(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        self.0.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Capture(Events);

impl Subscriber for Capture {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        if metadata.is_event() {
            return metadata.target().starts_with("tidegate_store");
        }
        metadata.target() == REQUEST
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut text = Text(String::new());
        attributes.record(&mut text);
        let mut requests = self.0.request_texts();
        requests.push(text.0);
        Id::from_u64(requests.len() as u64)
    }

    fn record(&self, id: &Id, fields: &Record<'_>) {
        let mut requests = self.0.request_texts();
        let mut text = Text(std::mem::take(&mut requests[id.into_u64() as usize - 1]));
        fields.record(&mut text);
        requests[id.into_u64() as usize - 1] = text.0;
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        let level = *event.metadata().level();
        self.0.events().push(Event { level, text: text.0 });
        self.0.0.added.notify_waiters();
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let space = if self.0.is_empty() { "" } else { " " };
        write!(self.0, "{space}{}={value:?}", field.name()).expect("a string takes all text");
    }
}
