use tidegate_engine::metrics::descriptors::{ALL, MetricDescriptor};

use super::table_row;

/// Every metric, in the order of the table.
pub(crate) fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    page.push_str(&table_row(&["name", "sort", "labels", "whose", "what"]));
    page.push_str("|---|---|---|---|---|\n");
    ALL.iter().for_each(|descriptor| page.push_str(&metric_row(descriptor)));
    page
}

fn metric_row(descriptor: &MetricDescriptor) -> String {
    let labels: Vec<String> = descriptor.labels.iter().map(|label| format!("`{label}`")).collect();
    let name = format!("`{}`", descriptor.name);
    table_row(&[
        &name,
        descriptor.metric_type.as_str(),
        &labels.join(", "),
        descriptor.scope.as_str(),
        descriptor.help,
    ])
}

const INTRODUCTION: &str = "\
# Metrics

`tidegate worker --metrics 9464` shows these at `http://127.0.0.1:9464/metrics`, in the text form of \
Prometheus. `--otlp URL` sends the same by OTLP, where the binary is built with the feature `otel`. A program \
that has a worker of its own gets them from `tidegate_engine::Metrics`. [deploy] has alert rules, a \
dashboard, and what to do when an alert fires.

[deploy]: ../../deploy/README.md

**Whose** a number is says how to put those of several processes together. `worker`: each process counts \
its own, so `sum` them. `store`: every process reads the same from the store, so take the `max`.

What is read from the store is read in the background, every 5 s or less often where the store takes \
long to answer; `tidegate_sample_age_seconds` says how old it is. Nothing is read when somebody asks for \
the metrics.

Names of limits and jobs come from whoever submits, so only some have series of their own; all others share \
one with the name `other`. Of the limits that are read from the store these are 100 groups and 100 jobs: the \
busiest, and those that wait longest. Of jobs in a worker they are the 100 that started most lately \
(`tidegate_job_tasks_total`) or of which most run (`tidegate_job_in_flight_tasks`). Of limits in a worker \
(`tidegate_concurrency_acquisition_total`, `tidegate_concurrency_wait_seconds`) they are the 20 busiest groups \
and the 20 busiest jobs. A counter whose name is no longer among them stays for two minutes as it is, and what \
the name does goes to `other`. Workflows have no series. No label carries the id of a task or a part of a \
payload.

";
