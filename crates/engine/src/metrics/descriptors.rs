//! Every metric there is. This table is the one place that names a metric, its labels and its
//! meaning: the endpoint, OpenTelemetry and the reference page all go by it.

/// What is known of a metric before anything is measured.
#[derive(Debug, PartialEq, Eq)]
pub struct MetricDescriptor {
    /// Its name, with its unit and, for a counter, `_total`.
    pub name: &'static str,
    /// What its numbers are.
    pub metric_type: MetricType,
    /// Whose number it is.
    pub scope: MetricScope,
    /// The names of its labels. None carries an id or a payload, and none is `job` or `instance`: those
    /// are what Prometheus itself calls whom it asks.
    pub labels: &'static [&'static str],
    /// One sentence.
    pub help: &'static str,
}

/// What the numbers of a metric are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricType {
    /// It only grows, from the start of the process.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Numbers sorted into buckets.
    Histogram,
}

impl MetricType {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Whose number it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricScope {
    /// This process counts its own: those of a fleet are added up.
    Worker,
    /// What the store holds for all: every process says the same, and the largest is taken.
    Store,
}

impl MetricScope {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Store => "store",
        }
    }
}

macro_rules! metric_descriptors {
    ($($metric_type:ident $scope:ident $constant:ident = $name:literal [$($label:literal),*] $help:literal;)+) => {
        $(pub(super) const $constant: MetricDescriptor = MetricDescriptor {
            name: $name,
            metric_type: MetricType::$metric_type,
            scope: MetricScope::$scope,
            labels: &[$($label),*],
            help: $help,
        };)+

        /// All of them, in the order of the page.
        pub const ALL: &[MetricDescriptor] = &[$($constant),+];
    };
}

metric_descriptors! {
    Gauge Worker IN_FLIGHT = "tidegate_worker_in_flight_tasks" []
        "Tasks whose handler runs.";
    Counter Worker TASKS_COMPLETED = "tidegate_worker_tasks_completed_total" ["kind", "outcome"]
        "Attempts that ended, by how they ended.";
    Histogram Worker TASK_DURATION = "tidegate_worker_task_duration_seconds" ["kind"]
        "How long handlers ran.";
    Counter Worker CLAIMS = "tidegate_worker_claims_total" ["result"]
        "Claims: that found tasks, that found none, that failed.";
    Histogram Worker CLAIM_SIZE = "tidegate_worker_claim_size" []
        "Tasks in one claim that found some.";
    Gauge Worker CONCURRENCY = "tidegate_worker_slots" []
        "Handlers that may run at once.";
    Gauge Worker CONCURRENCY_IN_USE = "tidegate_worker_slots_in_use" []
        "Those of them that run.";
    Gauge Worker ACCEPTING = "tidegate_worker_accepting" []
        "Workers of the process that take new tasks.";
    Gauge Worker BACKPRESSURE = "tidegate_worker_backpressure" ["reason"]
        "Workers of the process by why they claim as many tasks as they do; `room` is no backpressure. \
         Every reason is exported, most of them with 0.";
    Histogram Worker WORKER_WAIT = "tidegate_worker_wait_seconds" []
        "How long tasks that were through the gate waited for a worker.";
    Gauge Worker ASYNC_TASKS = "tidegate_worker_async_tasks" []
        "Live tasks of the async runtime.";
    Gauge Worker RESIDENT_MEMORY = "tidegate_worker_resident_memory_bytes" []
        "Resident memory of the process.";
    Histogram Worker HTTP_REQUESTS = "tidegate_http_request_seconds" ["status"]
        "How long calls of the kind `http` took, by the class of the answer; `none` is no answer.";
    Counter Worker JOB_TASKS = "tidegate_job_tasks_total" ["job_name"]
        "Tasks of a job that started.";
    Gauge Worker JOB_IN_FLIGHT = "tidegate_job_in_flight_tasks" ["job_name"]
        "Tasks of a job whose handlers run.";
    Counter Worker ACQUISITIONS = "tidegate_concurrency_acquisition_total" ["limit", "result"]
        "`acquired`: tasks that started with a slot of the limit; `rejected`: times the limit stopped \
         a task, in the whole store since the process looks, so of these the largest is taken.";
    Histogram Worker LIMIT_WAIT = "tidegate_concurrency_wait_seconds" ["limit"]
        "How long tasks waited to get through the gate, by each limit of which they got a slot. A job \
         whose limit has room does not count: its tasks wait for a worker.";
    Counter Worker STORE_REQUESTS = "tidegate_store_requests_total" ["verb", "path", "reason"]
        "Requests to the store, by the path that they took: `fast`, `hand_off` or `general`. The reason says why a request \
         did not take a faster path.";
    Histogram Worker STORE_REQUEST_SECONDS = "tidegate_store_request_seconds" ["verb", "path"]
        "How long requests to the store took.";
    Counter Worker STORE_REQUEST_FAILURES = "tidegate_store_request_failures_total" ["verb"]
        "Requests to the store that failed or were given up; of reads (`read`) only those for the metrics.";
    Gauge Worker CONNECTIONS_IN_USE = "tidegate_store_connections_in_use" []
        "Connections of the pool in use; PostgreSQL only.";
    Gauge Worker CONNECTIONS = "tidegate_store_connections" []
        "Connections that the pool may have; PostgreSQL only.";
    Gauge Worker CONNECTIONS_WAITING = "tidegate_store_connections_waiting" []
        "Calls that wait for a connection; PostgreSQL only.";
    Counter Worker LEASES_EXPIRED = "tidegate_leases_expired_total" []
        "Attempts that this process took back because their lease had run out.";
    Gauge Worker SAMPLE_AGE = "tidegate_sample_age_seconds" []
        "How old the numbers are that are read from the store.";
    Gauge Store TASKS = "tidegate_tasks" ["state"]
        "Tasks by state, as far as they are kept.";
    Gauge Store READY_TASKS = "tidegate_ready_tasks" []
        "Tasks that wait for a worker and for nothing else; counted up to 100,000.";
    Gauge Store LEASES_OVERDUE = "tidegate_leases_overdue" []
        "Expired leases that maintenance has not ended yet; without those left to workers that send heartbeats.";
    Gauge Store WORKERS = "tidegate_workers" []
        "Live workers.";
    Gauge Store WORKERS_WANTED = "tidegate_workers_wanted" []
        "How many more workers such as this would help: tasks that only wait for a worker, those in \
         the lines of jobs included, beyond the free slots of all, over the slots of one.";
    Gauge Store LIMIT_ACTIVE = "tidegate_concurrency_slots_active" ["limit"]
        "Slots of a limit that are held.";
    Gauge Store LIMIT_SLOTS = "tidegate_concurrency_slots_limit" ["limit"]
        "Slots of a limit in all; missing where it is unlimited.";
    Gauge Store LIMIT_WAITING = "tidegate_concurrency_slots_waiting" ["limit"]
        "Tasks in the line of a limit.";
    Gauge Store LIMIT_OLDEST_WAIT = "tidegate_concurrency_oldest_wait_seconds" ["limit"]
        "How long the first in the line of a limit has waited.";
    Gauge Store JOB_ACTIVE = "tidegate_job_slots_active" ["job_name"]
        "Slots of a job that are held.";
    Gauge Store JOB_SLOTS = "tidegate_job_slots_limit" ["job_name"]
        "Slots of a job in all; missing where it is unlimited.";
    Gauge Store JOB_WAITING = "tidegate_job_slots_waiting" ["job_name"]
        "Tasks in the line of a job.";
    Gauge Store JOB_PAUSED = "tidegate_job_paused" ["job_name"]
        "1 where a job is paused.";
    Gauge Store JOB_OLDEST_WAIT = "tidegate_job_oldest_wait_seconds" ["job_name"]
        "How long a task of a job has waited at most: the first in its line, since it was due; or one past it that waits for a worker, since it got there.";
    Gauge Store JOB_IDLE = "tidegate_job_idle_seconds" ["job_name"]
        "How long nothing of a job has run or begun, as far as the process has looked.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_names_are_unique_and_match_their_type() {
        for (at, about) in ALL.iter().enumerate() {
            let name = about.name;
            assert!(ALL[..at].iter().all(|other| other.name != name), "{name} is there twice");
            assert_eq!(
                about.metric_type == MetricType::Counter,
                name.ends_with("_total"),
                "{name}"
            );
            assert!(about.help.ends_with('.'), "{name}");
            let may_be = [
                "kind", "outcome", "result", "reason", "status", "job_name", "limit", "verb",
                "path",
            ];
            let known = |label: &&str| may_be.contains(label) || *label == "state";
            assert!(about.labels.iter().all(known), "{name}: {:?}", about.labels);
        }
    }
}
