//! One reading of all metrics, and its form as a text that Prometheus reads.

use std::fmt::Write as _;
use std::sync::Arc;

use super::descriptors::{ALL, MetricDescriptor, MetricType};
use super::histogram::HistogramCounts;

/// A metric with its numbers.
#[derive(Debug)]
pub struct MetricFamily {
    /// What it is.
    pub descriptor: &'static MetricDescriptor,
    /// Its numbers, one for each combination of labels.
    pub series: Vec<MetricSeries>,
}

/// One number of a metric.
#[derive(Debug)]
pub struct MetricSeries {
    /// The values of the labels, in the order of their names.
    pub labels: Vec<Arc<str>>,
    /// The number.
    pub value: MetricValue,
}

/// A number, or many in buckets.
#[derive(Debug)]
pub enum MetricValue {
    /// Of a counter or a gauge.
    Number(f64),
    /// Of a histogram.
    Histogram(HistogramCounts),
}

/// A reading under way: every metric is in it, most of them without numbers at first.
#[derive(Debug)]
pub(super) struct MetricSnapshot(Vec<MetricFamily>);

impl MetricSnapshot {
    pub(super) fn new() -> Self {
        Self(
            ALL.iter()
                .map(|about| MetricFamily { descriptor: about, series: Vec::new() })
                .collect(),
        )
    }

    pub(super) fn add_number(
        &mut self,
        descriptor: &MetricDescriptor,
        labels: &[&str],
        value: f64,
    ) {
        self.add_series(descriptor, labels, MetricValue::Number(value));
    }

    pub(super) fn add_histogram(
        &mut self,
        descriptor: &MetricDescriptor,
        labels: &[&str],
        histogram: &HistogramCounts,
    ) {
        self.add_series(descriptor, labels, MetricValue::Histogram(histogram.clone()));
    }

    pub(super) fn into_families(self) -> Vec<MetricFamily> {
        self.0
    }

    fn add_series(&mut self, descriptor: &MetricDescriptor, labels: &[&str], value: MetricValue) {
        debug_assert_eq!(descriptor.labels.len(), labels.len(), "{}", descriptor.name);
        let labels = labels.iter().map(|label| Arc::from(*label)).collect();
        if let Some(family) =
            self.0.iter_mut().find(|family| family.descriptor.name == descriptor.name)
        {
            family.series.push(MetricSeries { labels, value });
        }
    }
}

/// The text form of Prometheus, version 0.0.4.
pub(super) fn encode_text(families: &[MetricFamily]) -> String {
    let mut out = String::with_capacity(16 << 10);
    for MetricFamily { descriptor: about, series } in families {
        let (name, sort) = (about.name, about.metric_type.as_str());
        // Writing into a string does not fail.
        let _ = writeln!(out, "# HELP {name} {}\n# TYPE {name} {sort}", about.help);
        series.iter().for_each(|series| write_series(&mut out, about, series));
    }
    out
}

fn write_series(out: &mut String, descriptor: &MetricDescriptor, series: &MetricSeries) {
    let name = descriptor.name;
    match &series.value {
        MetricValue::Number(number) => {
            let _ = writeln!(out, "{name}{} {number}", format_labels(descriptor, series, None));
        }
        MetricValue::Histogram(buckets) => {
            for (bound, count) in buckets.cumulative_counts() {
                let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() };
                let labels = format_labels(descriptor, series, Some(&bound));
                let _ = writeln!(out, "{name}_bucket{labels} {count}");
            }
            let labels = format_labels(descriptor, series, None);
            let _ = writeln!(out, "{name}_sum{labels} {}", buckets.sum());
            let _ = writeln!(out, "{name}_count{labels} {}", buckets.count());
        }
    }
    debug_assert_eq!(
        descriptor.metric_type == MetricType::Histogram,
        matches!(series.value, MetricValue::Histogram(_)),
        "{name}"
    );
}

fn format_labels(
    descriptor: &MetricDescriptor,
    series: &MetricSeries,
    upper_bound: Option<&str>,
) -> String {
    let named = descriptor.labels.iter().copied().zip(series.labels.iter().map(|label| &**label));
    let pairs: Vec<String> = named
        .chain(upper_bound.map(|bound| ("le", bound)))
        .map(|(name, value)| format!("{name}=\"{}\"", escape_label_value(value)))
        .collect();
    if pairs.is_empty() { String::new() } else { format!("{{{}}}", pairs.join(",")) }
}

fn escape_label_value(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::super::descriptors::{CLAIM_SIZE, JOB_TASKS};
    use super::super::histogram::TASK_COUNT_BOUNDS;
    use super::*;

    #[test]
    fn encoded_text_has_every_metric_and_escapes_labels() {
        let mut reading = MetricSnapshot::new();
        reading.add_number(&JOB_TASKS, &["a\"b\\c\nd"], 3.0);
        let mut sizes = HistogramCounts::new(TASK_COUNT_BOUNDS);
        [1.0, 7.0, 5000.0].into_iter().for_each(|size| sizes.observe(size));
        reading.add_histogram(&CLAIM_SIZE, &[], &sizes);
        let text = encode_text(&reading.into_families());
        for about in ALL {
            assert!(text.contains(&format!("# HELP {} {}\n", about.name, about.help)));
            assert!(text.contains(&format!(
                "# TYPE {} {}\n",
                about.name,
                about.metric_type.as_str()
            )));
        }
        assert!(
            text.contains("tidegate_job_tasks_total{job_name=\"a\\\"b\\\\c\\nd\"} 3\n"),
            "{text}"
        );
        assert!(text.contains("tidegate_worker_claim_size_bucket{le=\"10\"} 2\n"), "{text}");
        assert!(text.contains("tidegate_worker_claim_size_bucket{le=\"+Inf\"} 3\n"), "{text}");
        assert!(text.contains("tidegate_worker_claim_size_sum 5008\n"), "{text}");
        assert!(text.contains("tidegate_worker_claim_size_count 3\n"), "{text}");
    }
}
