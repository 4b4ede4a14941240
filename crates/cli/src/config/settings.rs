//! Every setting there is. This table is the one place that names a setting's key, variable, flag,
//! default and meaning: the file, the variables, `tidegate config` and the reference page all go
//! by it.

use tidegate_core::bounds::{BATCH_MAX, DURATION_MS_MAX};

use super::shape::Shape;

/// The variable that names the file.
pub(crate) const FILE_VARIABLE: &str = "TIDEGATE_CONFIG";

/// Handlers that may run at once in one process.
const CONCURRENCY: Shape = Shape::Number { low: 1, high: 100_000 };

/// Which setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Store,
    Log,
    RunConcurrency,
    WorkerConcurrency,
    WorkerClaimBatch,
    WorkerQueues,
    WorkerKinds,
    WorkerMetrics,
    LeaseSeconds,
    Limits,
    HttpAllow,
    ExecAllow,
}

/// One setting.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) key: Key,
    /// Its key in the file, with the sections it stands in.
    pub(crate) name: &'static str,
    pub(crate) variable: &'static str,
    /// Its flag, behind the commands that take it.
    pub(crate) flag: Option<&'static str>,
    pub(crate) shape: Shape,
    /// As a variable would say it.
    pub(crate) default: &'static str,
    /// The default in words, where the value does not speak for itself.
    pub(crate) default_words: Option<&'static str>,
    /// One sentence.
    pub(crate) meaning: &'static str,
    /// A value, as it stands in the file; for limits, the lines of their section.
    pub(crate) example: &'static str,
}

/// All of them, in the order of the file.
pub(crate) const SETTINGS: [Setting; 12] = [
    Setting {
        key: Key::Store,
        name: "store",
        variable: "TIDEGATE_STORE",
        flag: Some("--store"),
        shape: Shape::Store,
        default: "sqlite:tidegate.db",
        default_words: None,
        meaning: "Where the tasks are; `bench` takes only what the flag or the variable names.",
        example: "\"sqlite:tasks.db\"",
    },
    Setting {
        key: Key::Log,
        name: "log",
        variable: "TIDEGATE_LOG",
        flag: None,
        shape: Shape::Log,
        default: "warn",
        default_words: None,
        meaning: "What is told on stderr about the engine's work: a level (`error`, `warn`, \
                  `info`, `debug`, `trace`), or one for each part of the program.",
        example: "\"info\"",
    },
    Setting {
        key: Key::RunConcurrency,
        name: "run.concurrency",
        variable: "TIDEGATE_RUN_CONCURRENCY",
        flag: Some("run --concurrency"),
        shape: CONCURRENCY,
        default: "64",
        default_words: None,
        meaning: "Tasks that run at once in a `tidegate run`.",
        example: "64",
    },
    Setting {
        key: Key::WorkerConcurrency,
        name: "worker.concurrency",
        variable: "TIDEGATE_WORKER_CONCURRENCY",
        flag: Some("worker --concurrency"),
        shape: CONCURRENCY,
        default: "16",
        default_words: None,
        meaning: "Tasks that run at once in a `tidegate worker`.",
        example: "50",
    },
    Setting {
        key: Key::WorkerClaimBatch,
        name: "worker.claim_batch",
        variable: "TIDEGATE_WORKER_CLAIM_BATCH",
        flag: Some("worker --claim-batch"),
        shape: Shape::Number { low: 1, high: BATCH_MAX as i64 },
        default: "100",
        default_words: None,
        meaning: "Tasks that a `tidegate worker` takes in one claim.",
        example: "100",
    },
    Setting {
        key: Key::WorkerQueues,
        name: "worker.queues",
        variable: "TIDEGATE_WORKER_QUEUES",
        flag: Some("worker --queues"),
        shape: Shape::Queues,
        default: "",
        default_words: Some("the queues of its kinds"),
        meaning: "Queues that a `tidegate worker` claims from.",
        example: "[\"default\", \"mail\"]",
    },
    Setting {
        key: Key::WorkerKinds,
        name: "worker.kinds",
        variable: "TIDEGATE_WORKER_KINDS",
        flag: Some("worker --kinds"),
        shape: Shape::Kinds,
        default: "",
        default_words: Some("all built-in kinds"),
        meaning: "Kinds that a `tidegate worker` serves.",
        example: "[\"noop\", \"http\"]",
    },
    Setting {
        key: Key::WorkerMetrics,
        name: "worker.metrics",
        variable: "TIDEGATE_WORKER_METRICS",
        flag: Some("worker --metrics"),
        shape: Shape::Address,
        default: "",
        default_words: Some("nowhere"),
        meaning: "Where a `tidegate worker` shows its metrics to Prometheus: an address with a port, or \
                  a port of the own machine.",
        example: "\"127.0.0.1:9464\"",
    },
    Setting {
        key: Key::LeaseSeconds,
        name: "concurrency.default_lease_duration_secs",
        variable: "TIDEGATE_CONCURRENCY_DEFAULT_LEASE_DURATION_SECS",
        flag: Some("worker --lease"),
        shape: Shape::Number { low: 1, high: DURATION_MS_MAX / 1000 },
        default: "30",
        default_words: None,
        meaning: "Seconds that the store waits for a sign of life of `worker` and `run` before it \
                  gives a task to somebody else; leases are renewed while a handler runs, so it \
                  need not be as long as a task takes.",
        example: "30",
    },
    Setting {
        key: Key::Limits,
        name: "concurrency.limits",
        variable: "TIDEGATE_CONCURRENCY_LIMITS",
        flag: None,
        shape: Shape::Limits,
        default: "",
        default_words: None,
        meaning: "Tasks that run at once over all workers, by group or by a whole name such as \
                  `job:nightly`; 0 pauses.",
        example: "partner = 10\n\"job:nightly\" = 2",
    },
    Setting {
        key: Key::HttpAllow,
        name: "http.allow",
        variable: "TIDEGATE_HTTP_ALLOW",
        flag: Some("worker, run --http-allow"),
        shape: Shape::Words,
        default: "",
        default_words: None,
        meaning: "Hosts that tasks of kind `http` may call.",
        example: "[\"api.example.org\"]",
    },
    Setting {
        key: Key::ExecAllow,
        name: "exec.allow",
        variable: "TIDEGATE_EXEC_ALLOW",
        flag: Some("worker, run --exec-allow"),
        shape: Shape::Words,
        default: "",
        default_words: None,
        meaning: "Programs that tasks of kind `exec` may start.",
        example: "[\"echo\"]",
    },
];

impl Setting {
    /// The setting of a key in the file.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        SETTINGS.iter().find(|setting| setting.name == name)
    }

    /// The section it stands in, and its key there.
    pub(crate) fn place(&self) -> (&'static str, &'static str) {
        self.name.rsplit_once('.').unwrap_or(("", self.name))
    }

    /// The lines of an example inside of its section.
    pub(crate) fn lines(&self) -> String {
        match self.shape {
            Shape::Limits => format!("\n[{}]\n{}", self.name, self.example),
            _ => format!("{} = {}", self.place().1, self.example),
        }
    }

    /// An example that is a whole file.
    pub(crate) fn sample(&self) -> String {
        match (self.place().0, self.shape) {
            ("", _) | (_, Shape::Limits) => self.lines().trim_start().to_owned(),
            (section, _) => format!("[{section}]\n{}", self.lines()),
        }
    }
}

/// The sections of the file, in order.
pub(crate) fn sections() -> Vec<&'static str> {
    let mut sections: Vec<&str> = SETTINGS.iter().map(|setting| setting.place().0).collect();
    sections.dedup();
    sections.retain(|section| !section.is_empty());
    sections
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order_and_its_names_go_together() {
        assert!(SETTINGS.windows(2).all(|pair| pair[0].key < pair[1].key), "as the keys are");
        assert_eq!(sections(), ["run", "worker", "concurrency", "http", "exec"]);
        for setting in &SETTINGS {
            let name = setting.name.replace('.', "_").to_uppercase();
            assert_eq!(setting.variable, format!("TIDEGATE_{name}"));
            assert!(setting.meaning.ends_with('.'), "{}", setting.name);
        }
    }
}
