//! Every setting there is. This table is the one place that names a setting's key, variable, flag,
//! default and meaning: the file, the variables, `tidegate config` and the reference page all go
//! by it.

use tidegate_core::bounds::{BATCH_MAX, DURATION_MS_MAX};

use super::value_type::ValueType;

/// The variable that names the file.
pub(crate) const FILE_VARIABLE: &str = "TIDEGATE_CONFIG";

/// Handlers that may run at once in one process.
const CONCURRENCY_RANGE: ValueType = ValueType::Number { low: 1, high: 100_000 };

const PERCENT_RANGE: ValueType = ValueType::Number { low: 0, high: 100 };

/// A timeout in milliseconds. Zero would mean that nothing is ever waited for.
const TIMEOUT_RANGE: ValueType = ValueType::Number { low: 1, high: i32::MAX as i64 };

/// Which setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Store,
    Log,
    Profile,
    RunConcurrency,
    WorkerConcurrency,
    WorkerWorkers,
    WorkerMaxConcurrentTasks,
    WorkerClaimBatch,
    WorkerPollInterval,
    WorkerFreeCapacityLow,
    WorkerMemoryHigh,
    WorkerLatencyHigh,
    WorkerQueues,
    WorkerKinds,
    WorkerMetrics,
    LeaseSeconds,
    Limits,
    PostgresConnect,
    PostgresPoolWait,
    PostgresRequest,
    PostgresHeartbeat,
    PostgresRead,
    PostgresMaintenance,
    PostgresTcpKeepalive,
    PostgresTcpUser,
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
    /// Other variables that say the same; the first of all that says something counts.
    pub(crate) aliases: &'static [&'static str],
    /// Its flag, behind the commands that take it.
    pub(crate) flag: Option<&'static str>,
    pub(crate) value_type: ValueType,
    /// As a variable would say it.
    pub(crate) default: &'static str,
    /// The default in words, where the value does not speak for itself.
    pub(crate) default_description: Option<&'static str>,
    /// One sentence.
    pub(crate) description: &'static str,
    /// A value, as it stands in the file; for limits, the lines of their section.
    pub(crate) example: &'static str,
}

/// All of them, in the order of the file.
pub(crate) const SETTINGS: [Setting; 27] = [
    Setting {
        key: Key::Store,
        name: "store",
        variable: "TIDEGATE_STORE",
        aliases: &[],
        flag: Some("--store"),
        value_type: ValueType::Store,
        default: "sqlite:tidegate.db",
        default_description: None,
        description: "Where the tasks are; `bench` takes only what the flag or the variable names.",
        example: "\"sqlite:tasks.db\"",
    },
    Setting {
        key: Key::Log,
        name: "log",
        variable: "TIDEGATE_LOG",
        aliases: &[],
        flag: None,
        value_type: ValueType::Log,
        default: "warn",
        default_description: None,
        description: "What is told on stderr about the engine's work: a level (`error`, `warn`, \
                  `info`, `debug`, `trace`), or one for each part of the program.",
        example: "\"info\"",
    },
    Setting {
        key: Key::Profile,
        name: "profile",
        variable: "TIDEGATE_PROFILE",
        aliases: &["TIDEGATE_ENV"],
        flag: Some("worker, config --profile"),
        value_type: ValueType::Profile,
        default: "",
        default_description: None,
        description: "Sets how many workers a `tidegate worker` is, and how many tasks each runs, where \
                  nothing else does: `production` 100 x 5, `staging` 20 x 3, `development` 5 x 2.",
        example: "\"production\"",
    },
    Setting {
        key: Key::RunConcurrency,
        name: "run.concurrency",
        variable: "TIDEGATE_RUN_CONCURRENCY",
        aliases: &[],
        flag: Some("run --concurrency"),
        value_type: CONCURRENCY_RANGE,
        default: "64",
        default_description: None,
        description: "Tasks that run at once in a `tidegate run`.",
        example: "64",
    },
    Setting {
        key: Key::WorkerConcurrency,
        name: "worker.concurrency",
        variable: "TIDEGATE_WORKER_CONCURRENCY",
        aliases: &["WORKER_CONCURRENCY"],
        flag: None,
        value_type: CONCURRENCY_RANGE,
        default: "16",
        default_description: None,
        description: "Tasks that run at once in a `tidegate worker`, for each of its \
                  [workers](#workerworkers).",
        example: "50",
    },
    Setting {
        key: Key::WorkerWorkers,
        name: "worker.workers",
        variable: "TIDEGATE_WORKER_WORKERS",
        aliases: &["TIDEGATE_WORKERS", "WORKERS"],
        flag: None,
        value_type: CONCURRENCY_RANGE,
        default: "1",
        default_description: None,
        description: "How many workers a `tidegate worker` counts as: `worker.concurrency` tasks run at \
                  once for each. They share one id, one heartbeat and one claim.",
        example: "4",
    },
    Setting {
        key: Key::WorkerMaxConcurrentTasks,
        name: "worker.max_concurrent_tasks",
        variable: "TIDEGATE_WORKER_MAX_CONCURRENT_TASKS",
        aliases: &["TIDEGATE_MAX_CONCURRENT_TASKS", "MAX_CONCURRENT_TASKS"],
        flag: Some("worker --concurrency"),
        value_type: ValueType::Number { low: 0, high: 100_000 },
        default: "0",
        default_description: Some("0, which is workers times concurrency"),
        description: "Tasks that run at the same time in a `tidegate worker`. It has precedence over \
                  `worker.workers` and `worker.concurrency`, also over those of a profile.",
        example: "1000",
    },
    Setting {
        key: Key::WorkerClaimBatch,
        name: "worker.claim_batch",
        variable: "TIDEGATE_WORKER_CLAIM_BATCH",
        aliases: &["TIDEGATE_CLAIM_BATCH_SIZE", "CLAIM_BATCH_SIZE"],
        flag: Some("worker --claim-batch"),
        value_type: ValueType::Number { low: 1, high: BATCH_MAX as i64 },
        default: "100",
        default_description: None,
        description: "Tasks that a `tidegate worker` takes in one claim.",
        example: "100",
    },
    Setting {
        key: Key::WorkerPollInterval,
        name: "worker.poll_interval_ms",
        variable: "TIDEGATE_WORKER_POLL_INTERVAL_MS",
        aliases: &["TIDEGATE_POLL_INTERVAL_MS", "POLL_INTERVAL_MS"],
        flag: Some("worker --poll-interval"),
        value_type: ValueType::Number { low: 1, high: DURATION_MS_MAX },
        default: "1000",
        default_description: None,
        description: "Milliseconds, give or take a quarter, after which an idle `tidegate worker` asks for \
                  work that nobody told it about; the store wakes it for the rest. Below 1000 every \
                  poll is sent, so it bounds how long a task waits if PostgreSQL's notice of it is \
                  lost; from 1000 on a worker that hears the notices sends one every 5 s at least.",
        example: "1000",
    },
    Setting {
        key: Key::WorkerFreeCapacityLow,
        name: "worker.permits_low_percent",
        variable: "TIDEGATE_WORKER_PERMITS_LOW_PERCENT",
        aliases: &[],
        flag: None,
        value_type: PERCENT_RANGE,
        default: "10",
        default_description: None,
        description: "With fewer percent of its permits free a `tidegate worker` of 20 or more takes no \
                  more batches, but one task every 10 ms.",
        example: "10",
    },
    Setting {
        key: Key::WorkerMemoryHigh,
        name: "worker.memory_high_percent",
        variable: "TIDEGATE_WORKER_MEMORY_HIGH_PERCENT",
        aliases: &[],
        flag: None,
        value_type: PERCENT_RANGE,
        default: "80",
        default_description: None,
        description: "With more percent of the memory in use (of the control group if it has a limit, else \
                  of the machine) a `tidegate worker` uses half of its permits.",
        example: "80",
    },
    Setting {
        key: Key::WorkerLatencyHigh,
        name: "worker.latency_high_ms",
        variable: "TIDEGATE_WORKER_LATENCY_HIGH_MS",
        aliases: &[],
        flag: None,
        value_type: ValueType::Number { low: 1, high: DURATION_MS_MAX },
        default: "500",
        default_description: None,
        description: "Where the store's calls or the starts of handlers take more milliseconds a `tidegate \
                  worker` leaves 30 % of its permits unused; how long tasks run does not count.",
        example: "500",
    },
    Setting {
        key: Key::WorkerQueues,
        name: "worker.queues",
        variable: "TIDEGATE_WORKER_QUEUES",
        aliases: &[],
        flag: Some("worker --queues"),
        value_type: ValueType::Queues,
        default: "",
        default_description: Some("the queues of its kinds"),
        description: "Queues that a `tidegate worker` claims from.",
        example: "[\"default\", \"mail\"]",
    },
    Setting {
        key: Key::WorkerKinds,
        name: "worker.kinds",
        variable: "TIDEGATE_WORKER_KINDS",
        aliases: &[],
        flag: Some("worker --kinds"),
        value_type: ValueType::Kinds,
        default: "",
        default_description: Some("all built-in kinds"),
        description: "Kinds that a `tidegate worker` serves.",
        example: "[\"noop\", \"http\"]",
    },
    Setting {
        key: Key::WorkerMetrics,
        name: "worker.metrics",
        variable: "TIDEGATE_WORKER_METRICS",
        aliases: &[],
        flag: Some("worker --metrics"),
        value_type: ValueType::Address,
        default: "",
        default_description: Some("nowhere"),
        description: "Where a `tidegate worker` shows its metrics to Prometheus: an address with a port, or \
                  a port of the own machine.",
        example: "\"127.0.0.1:9464\"",
    },
    Setting {
        key: Key::LeaseSeconds,
        name: "concurrency.default_lease_duration_secs",
        variable: "TIDEGATE_CONCURRENCY_DEFAULT_LEASE_DURATION_SECS",
        aliases: &[],
        flag: Some("worker --lease"),
        value_type: ValueType::Number { low: 1, high: DURATION_MS_MAX / 1000 },
        default: "30",
        default_description: None,
        description: "Seconds that the store waits for a sign of life of `worker` and `run` before it \
                  gives a task to somebody else; leases are renewed while a handler runs, so it \
                  need not be as long as a task takes.",
        example: "30",
    },
    Setting {
        key: Key::Limits,
        name: "concurrency.limits",
        variable: "TIDEGATE_CONCURRENCY_LIMITS",
        aliases: &[],
        flag: None,
        value_type: ValueType::Limits,
        default: "",
        default_description: None,
        description: "Tasks that run at once over all workers, by group or by a whole name such as \
                  `job:nightly`; 0 pauses.",
        example: "partner = 10\n\"job:nightly\" = 2",
    },
    Setting {
        key: Key::PostgresConnect,
        name: "postgres.connect_timeout_ms",
        variable: "TIDEGATE_POSTGRES_CONNECT_TIMEOUT_MS",
        aliases: &[],
        flag: None,
        value_type: TIMEOUT_RANGE,
        default: "10000",
        default_description: None,
        description: "Milliseconds for opening a connection to PostgreSQL, with TLS and \
                  authentication; each of several hosts has an equal part. The URL parameter \
                  `connect_timeout` has precedence.",
        example: "10000",
    },
    Setting {
        key: Key::PostgresPoolWait,
        name: "postgres.pool_wait_timeout_ms",
        variable: "TIDEGATE_POSTGRES_POOL_WAIT_TIMEOUT_MS",
        aliases: &[],
        flag: None,
        value_type: TIMEOUT_RANGE,
        default: "10000",
        default_description: None,
        description: "Milliseconds that a call waits for a free connection of the pool.",
        example: "10000",
    },
    Setting {
        key: Key::PostgresRequest,
        name: "postgres.request_timeout_ms",
        variable: "TIDEGATE_POSTGRES_REQUEST_TIMEOUT_MS",
        aliases: &[],
        flag: None,
        value_type: TIMEOUT_RANGE,
        default: "10000",
        default_description: None,
        description: "Milliseconds for one transaction. If PostgreSQL does not answer in time, the \
                  call fails and the connection is closed.",
        example: "10000",
    },
    Setting {
        key: Key::PostgresHeartbeat,
        name: "postgres.heartbeat_timeout_ms",
        variable: "TIDEGATE_POSTGRES_HEARTBEAT_TIMEOUT_MS",
        aliases: &[],
        flag: None,
        value_type: TIMEOUT_RANGE,
        default: "5000",
        default_description: None,
        description: "Milliseconds for one transaction of a heartbeat; a third of the lease applies \
                  if that is shorter.",
        example: "5000",
    },
    Setting {
        key: Key::PostgresRead,
        name: "postgres.read_timeout_ms",
        variable: "TIDEGATE_POSTGRES_READ_TIMEOUT_MS",
        aliases: &[],
        flag: None,
        value_type: TIMEOUT_RANGE,
        default: "300000",
        default_description: None,
        description: "Milliseconds for one read of whole tables, as for lists and metrics.",
        example: "300000",
    },
    Setting {
        key: Key::PostgresMaintenance,
        name: "postgres.maintenance_timeout_ms",
        variable: "TIDEGATE_POSTGRES_MAINTENANCE_TIMEOUT_MS",
        aliases: &[],
        flag: None,
        value_type: TIMEOUT_RANGE,
        default: "3600000",
        default_description: None,
        description: "Milliseconds for one transaction of a migration, a repair or a prune.",
        example: "3600000",
    },
    Setting {
        key: Key::PostgresTcpKeepalive,
        name: "postgres.tcp_keepalive_ms",
        variable: "TIDEGATE_POSTGRES_TCP_KEEPALIVE_MS",
        aliases: &[],
        flag: None,
        value_type: TIMEOUT_RANGE,
        default: "10000",
        default_description: None,
        description: "Milliseconds without traffic after which the first TCP keepalive probe is \
                  sent; the URL parameter `keepalives_idle` has precedence.",
        example: "10000",
    },
    Setting {
        key: Key::PostgresTcpUser,
        name: "postgres.tcp_user_timeout_ms",
        variable: "TIDEGATE_POSTGRES_TCP_USER_TIMEOUT_MS",
        aliases: &[],
        flag: None,
        value_type: TIMEOUT_RANGE,
        default: "10000",
        default_description: None,
        description: "Milliseconds that sent data may stay unacknowledged before the connection is \
                  closed; the URL parameter `tcp_user_timeout` has precedence.",
        example: "10000",
    },
    Setting {
        key: Key::HttpAllow,
        name: "http.allow",
        variable: "TIDEGATE_HTTP_ALLOW",
        aliases: &[],
        flag: Some("worker, run --http-allow"),
        value_type: ValueType::Strings,
        default: "",
        default_description: None,
        description: "Hosts that tasks of kind `http` may call.",
        example: "[\"api.example.org\"]",
    },
    Setting {
        key: Key::ExecAllow,
        name: "exec.allow",
        variable: "TIDEGATE_EXEC_ALLOW",
        aliases: &[],
        flag: Some("worker, run --exec-allow"),
        value_type: ValueType::Strings,
        default: "",
        default_description: None,
        description: "Programs that tasks of kind `exec` may start.",
        example: "[\"echo\"]",
    },
];

impl Setting {
    /// The setting of a key.
    pub(crate) fn by_key(key: Key) -> &'static Self {
        &SETTINGS[key as usize]
    }

    /// The setting of a key in the file.
    pub(crate) fn by_name(name: &str) -> Option<&'static Self> {
        SETTINGS.iter().find(|setting| setting.name == name)
    }

    /// The variables that say it, the strongest first.
    pub(crate) fn variables(&self) -> impl Iterator<Item = &'static str> + use<> {
        [self.variable].into_iter().chain(self.aliases.iter().copied())
    }

    /// The section it stands in, and its key there.
    pub(crate) fn section_and_key(&self) -> (&'static str, &'static str) {
        self.name.rsplit_once('.').unwrap_or(("", self.name))
    }

    /// The lines of an example inside of its section.
    pub(crate) fn example_lines(&self) -> String {
        match self.value_type {
            ValueType::Limits => format!("\n[{}]\n{}", self.name, self.example),
            _ => format!("{} = {}", self.section_and_key().1, self.example),
        }
    }

    /// An example that is a whole file.
    pub(crate) fn example_file(&self) -> String {
        match (self.section_and_key().0, self.value_type) {
            ("", _) | (_, ValueType::Limits) => self.example_lines().trim_start().to_owned(),
            (section, _) => format!("[{section}]\n{}", self.example_lines()),
        }
    }
}

/// The sections of the file, in order.
pub(crate) fn section_names() -> Vec<&'static str> {
    let mut sections: Vec<&str> =
        SETTINGS.iter().map(|setting| setting.section_and_key().0).collect();
    sections.dedup();
    sections.retain(|section| !section.is_empty());
    sections
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_table_is_ordered_and_names_are_consistent() {
        assert!(SETTINGS.windows(2).all(|pair| pair[0].key < pair[1].key), "as the keys are");
        assert!(SETTINGS.iter().all(|setting| Setting::by_key(setting.key).key == setting.key));
        assert_eq!(section_names(), ["run", "worker", "concurrency", "postgres", "http", "exec"]);
        for setting in &SETTINGS {
            let name = setting.name.replace('.', "_").to_uppercase();
            assert_eq!(setting.variable, format!("TIDEGATE_{name}"));
            assert!(setting.description.ends_with('.'), "{}", setting.name);
        }
    }
}
