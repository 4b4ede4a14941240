//! The metrics of a worker in the form of OTLP: the same numbers under the same names.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
    ResourceMetrics, ScopeMetrics, Sum, metric, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use tidegate_engine::metrics::descriptors::MetricType;
use tidegate_engine::metrics::{HistogramCounts, MetricFamily, MetricSeries, MetricValue};
use tidegate_engine::{Metrics, time};
use tonic::transport::{Channel, Endpoint};

use super::SERVICE_NAME;
use crate::stderr::print_message;

/// Between two exports.
const EXPORT_INTERVAL: Duration = Duration::from_secs(10);

/// How long a collector may take to answer.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends metrics to a collector.
#[derive(Debug, Clone)]
pub(crate) struct Exporter {
    metrics: Metrics,
    client: MetricsServiceClient<Channel>,
    /// What tells this process from others.
    instance: String,
    began_ns: u64,
}

impl Exporter {
    pub(crate) fn new(metrics: Metrics, url: &str) -> anyhow::Result<Self> {
        let endpoint = Endpoint::from_shared(url.to_owned()).context("read --otlp")?;
        let client = MetricsServiceClient::new(endpoint.timeout(EXPORT_TIMEOUT).connect_lazy());
        let instance = tidegate_engine::id::new_worker_id().to_string();
        Ok(Self { metrics, client, instance, began_ns: now_ns() })
    }

    /// Exports now and then. A collector that is away is told of once, until it is back.
    pub(crate) async fn run(mut self) {
        let mut is_away = false;
        loop {
            time::sleep(EXPORT_INTERVAL).await;
            let outcome = self.export().await;
            if let (Err(error), false) = (&outcome, is_away) {
                print_message!(
                    "warning: the collector does not take the metrics: {}",
                    error.message()
                );
            }
            is_away = outcome.is_err();
        }
    }

    /// Exports once.
    pub(crate) async fn export(&mut self) -> Result<(), tonic::Status> {
        let now_ns = now_ns();
        let metric = |family: &MetricFamily| self.metric(family, now_ns);
        let families = self.metrics.snapshot();
        let metrics = families.iter().filter(|family| !family.series.is_empty()).map(metric);
        let scope = InstrumentationScope { name: SERVICE_NAME.to_owned(), ..Default::default() };
        let attributes =
            vec![label("service.name", SERVICE_NAME), label("service.instance.id", &self.instance)];
        let request = ExportMetricsServiceRequest {
            resource_metrics: vec![ResourceMetrics {
                resource: Some(Resource { attributes, ..Default::default() }),
                scope_metrics: vec![ScopeMetrics {
                    scope: Some(scope),
                    metrics: metrics.collect(),
                    ..Default::default()
                }],
                ..Default::default()
            }],
        };
        self.client.export(request).await.map(drop)
    }

    fn metric(&self, MetricFamily { descriptor, series }: &MetricFamily, now_ns: u64) -> Metric {
        let temporality = AggregationTemporality::Cumulative.into();
        let labelled = |series: &MetricSeries| {
            let names = descriptor.labels.iter().zip(&series.labels);
            names.map(|(name, value)| label(name, value)).collect::<Vec<_>>()
        };
        let number = |series: &MetricSeries, number: f64| NumberDataPoint {
            attributes: labelled(series),
            start_time_unix_nano: self.began_ns,
            time_unix_nano: now_ns,
            value: Some(number_data_point::Value::AsDouble(number)),
            ..Default::default()
        };
        let (mut numbers, mut histograms) = (Vec::new(), Vec::new());
        for series in series {
            match &series.value {
                MetricValue::Number(value) => numbers.push(number(series, *value)),
                MetricValue::Histogram(buckets) => {
                    histograms.push(self.histogram(buckets, labelled(series), now_ns));
                }
            }
        }
        let data = match descriptor.metric_type {
            MetricType::Gauge => metric::Data::Gauge(Gauge { data_points: numbers }),
            MetricType::Counter => metric::Data::Sum(Sum {
                data_points: numbers,
                aggregation_temporality: temporality,
                is_monotonic: true,
            }),
            MetricType::Histogram => metric::Data::Histogram(Histogram {
                data_points: histograms,
                aggregation_temporality: temporality,
            }),
        };
        Metric {
            name: descriptor.name.to_owned(),
            description: descriptor.help.to_owned(),
            data: Some(data),
            ..Default::default()
        }
    }

    fn histogram(
        &self,
        buckets: &HistogramCounts,
        attributes: Vec<KeyValue>,
        now_ns: u64,
    ) -> HistogramDataPoint {
        HistogramDataPoint {
            attributes,
            start_time_unix_nano: self.began_ns,
            time_unix_nano: now_ns,
            count: buckets.count(),
            sum: Some(buckets.sum()),
            bucket_counts: buckets.counts().to_vec(),
            explicit_bounds: buckets.bounds().to_vec(),
            ..Default::default()
        }
    }
}

fn label(name: &str, value: &str) -> KeyValue {
    let value = AnyValue { value: Some(any_value::Value::StringValue(value.to_owned())) };
    KeyValue { key: name.to_owned(), value: Some(value), ..Default::default() }
}

/// A date for the collector; nothing here depends on it.
#[expect(clippy::disallowed_methods, reason = "OTLP wants dates of this machine")]
fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
