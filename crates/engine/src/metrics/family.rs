//! One reading of all metrics, and its form as a text that Prometheus reads.

use std::fmt::Write as _;
use std::sync::Arc;

use super::about::{ALL, About, Sort};
use super::buckets::Buckets;

/// A metric with its numbers.
#[derive(Debug)]
pub struct Family {
    /// What it is.
    pub about: &'static About,
    /// Its numbers, one for each combination of labels.
    pub series: Vec<Series>,
}

/// One number of a metric.
#[derive(Debug)]
pub struct Series {
    /// The values of the labels, in the order of their names.
    pub labels: Vec<Arc<str>>,
    /// The number.
    pub value: Value,
}

/// A number, or many in buckets.
#[derive(Debug)]
pub enum Value {
    /// Of a counter or a gauge.
    Number(f64),
    /// Of a histogram.
    Buckets(Buckets),
}

/// A reading under way: every metric is in it, most of them without numbers at first.
#[derive(Debug)]
pub(super) struct Reading(Vec<Family>);

impl Reading {
    pub(super) fn new() -> Self {
        Self(ALL.iter().map(|about| Family { about, series: Vec::new() }).collect())
    }

    pub(super) fn number(&mut self, about: &About, labels: &[&str], number: f64) {
        self.add(about, labels, Value::Number(number));
    }

    pub(super) fn buckets(&mut self, about: &About, labels: &[&str], buckets: &Buckets) {
        self.add(about, labels, Value::Buckets(buckets.clone()));
    }

    pub(super) fn families(self) -> Vec<Family> {
        self.0
    }

    fn add(&mut self, about: &About, labels: &[&str], value: Value) {
        debug_assert_eq!(about.labels.len(), labels.len(), "{}", about.name);
        let labels = labels.iter().map(|label| Arc::from(*label)).collect();
        if let Some(family) = self.0.iter_mut().find(|family| family.about.name == about.name) {
            family.series.push(Series { labels, value });
        }
    }
}

/// The text form of Prometheus, version 0.0.4.
pub(super) fn text(families: &[Family]) -> String {
    let mut out = String::with_capacity(16 << 10);
    for Family { about, series } in families {
        let (name, sort) = (about.name, about.sort.as_str());
        // Writing into a string does not fail.
        let _ = writeln!(out, "# HELP {name} {}\n# TYPE {name} {sort}", about.help);
        series.iter().for_each(|series| put(&mut out, about, series));
    }
    out
}

fn put(out: &mut String, about: &About, series: &Series) {
    let name = about.name;
    match &series.value {
        Value::Number(number) => {
            let _ = writeln!(out, "{name}{} {number}", labels(about, series, None));
        }
        Value::Buckets(buckets) => {
            for (bound, count) in buckets.cumulative() {
                let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() };
                let labels = labels(about, series, Some(&bound));
                let _ = writeln!(out, "{name}_bucket{labels} {count}");
            }
            let labels = labels(about, series, None);
            let _ = writeln!(out, "{name}_sum{labels} {}", buckets.sum());
            let _ = writeln!(out, "{name}_count{labels} {}", buckets.count());
        }
    }
    debug_assert_eq!(
        about.sort == Sort::Histogram,
        matches!(series.value, Value::Buckets(_)),
        "{name}"
    );
}

fn labels(about: &About, series: &Series, bound: Option<&str>) -> String {
    let named = about.labels.iter().copied().zip(series.labels.iter().map(|label| &**label));
    let pairs: Vec<String> = named
        .chain(bound.map(|bound| ("le", bound)))
        .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
        .collect();
    if pairs.is_empty() { String::new() } else { format!("{{{}}}", pairs.join(",")) }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::super::about::{CLAIM_SIZE, JOB_TASKS};
    use super::super::buckets::SIZES;
    use super::*;

    #[test]
    fn the_text_has_every_metric_and_escapes_what_labels_say() {
        let mut reading = Reading::new();
        reading.number(&JOB_TASKS, &["a\"b\\c\nd"], 3.0);
        let mut sizes = Buckets::new(SIZES);
        [1.0, 7.0, 5000.0].into_iter().for_each(|size| sizes.observe(size));
        reading.buckets(&CLAIM_SIZE, &[], &sizes);
        let text = text(&reading.families());
        for about in ALL {
            assert!(text.contains(&format!("# HELP {} {}\n", about.name, about.help)));
            assert!(text.contains(&format!("# TYPE {} {}\n", about.name, about.sort.as_str())));
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
