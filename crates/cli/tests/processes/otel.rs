//! A real collector hears of a submit and of the run that follows, in another process.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use crate::common::Shell;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{Metric, metric, number_data_point};
use opentelemetry_proto::tonic::trace::v1::Span;
use tidegate_engine::metrics::descriptors::ALL;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// Takes what it is sent.
#[derive(Debug, Clone, Default)]
struct Collector {
    spans: Arc<Mutex<Vec<Span>>>,
    metrics: Arc<Mutex<Vec<Metric>>>,
}

impl Collector {
    /// It ends with the process.
    async fn start(&self) -> String {
        let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).expect("listen");
        let address = incoming.local_addr().expect("an address");
        let server = tonic::transport::Server::builder()
            .add_service(TraceServiceServer::new(self.clone()))
            .add_service(MetricsServiceServer::new(self.clone()))
            .serve_with_incoming(incoming);
        tokio::spawn(server);
        format!("http://{address}")
    }

    /// The spans with a name.
    fn spans(&self, name: &str) -> Vec<Span> {
        let spans = self.spans.lock().unwrap();
        spans.iter().filter(|span| span.name == name).cloned().collect()
    }
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let resources = request.into_inner().resource_spans.into_iter();
        let spans = resources.flat_map(|resource| resource.scope_spans);
        self.spans.lock().unwrap().extend(spans.flat_map(|scope| scope.spans));
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Collector {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        let resources = request.into_inner().resource_metrics.into_iter();
        let metrics = resources.flat_map(|resource| resource.scope_metrics);
        *self.metrics.lock().unwrap() = metrics.flat_map(|scope| scope.metrics).collect();
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}

fn text(attributes: &[KeyValue], name: &str) -> Option<String> {
    let found = attributes.iter().find(|pair| pair.key == name)?;
    match found.value.as_ref()?.value.as_ref()? {
        any_value::Value::StringValue(text) => Some(text.clone()),
        _ => None,
    }
}

async fn good(shell: &Arc<Shell>, arguments: &[&str]) -> String {
    let (shell, arguments) = (shell.clone(), arguments.join("\n"));
    let run = move || shell.run_ok(&arguments.split('\n').collect::<Vec<_>>());
    tokio::task::spawn_blocking(run).await.expect("no panic")
}

#[tokio::test(flavor = "multi_thread")]
async fn attempt_span_links_to_submit_span_and_metrics_are_exported() {
    let collector = Collector::default();
    let url = collector.start().await;
    let shell = Arc::new(Shell::new());
    good(&shell, &["submit", "noop", "--otlp", &url]).await;
    good(
        &shell,
        &[
            "submit",
            "exec",
            "--payload",
            "{\"argv\":[\"false\"]}",
            "--max-attempts",
            "1",
            "--otlp",
            &url,
        ],
    )
    .await;
    let [first, second] = &collector.spans("submit")[..] else {
        panic!("{:?}", collector.spans.lock().unwrap())
    };
    assert_ne!(first.trace_id, second.trace_id);
    let worker = ["worker", "--until-idle", "--exec-allow", "false", "--otlp", &url];
    good(&shell, &worker).await;

    let runs = collector.spans("run");
    let run = |of: &Span| runs.iter().find(|run| run.trace_id == of.trace_id).expect("its run");
    for (submit, kind, outcome) in [(first, "noop", "completed"), (second, "exec", "failed")] {
        let run = run(submit);
        assert_eq!(run.parent_span_id, submit.span_id, "{kind}");
        assert_eq!(text(&run.attributes, "kind").as_deref(), Some(kind));
        assert_eq!(text(&run.attributes, "outcome").as_deref(), Some(outcome));
        let is_error = run.status.as_ref().is_some_and(|status| status.code == 2);
        assert_eq!(is_error, outcome == "failed", "{kind}: {:?}", run.status);
    }

    let metrics = collector.metrics.lock().unwrap();
    let sent: BTreeSet<&str> = metrics.iter().map(|metric| &*metric.name).collect();
    assert!(sent.iter().all(|name| ALL.iter().any(|about| about.name == *name)), "{sent:?}");
    let completed = metrics.iter().find(|one| one.name == "tidegate_worker_tasks_completed_total");
    let Some(metric::Data::Sum(sum)) = completed.and_then(|one| one.data.as_ref()) else {
        panic!("{sent:?}")
    };
    assert!(sum.is_monotonic);
    let of = |point: &&opentelemetry_proto::tonic::metrics::v1::NumberDataPoint| {
        text(&point.attributes, "kind").as_deref() == Some("noop")
            && text(&point.attributes, "outcome").as_deref() == Some("completed")
    };
    let number = sum.data_points.iter().find(of).and_then(|point| point.value);
    assert_eq!(number, Some(number_data_point::Value::AsDouble(1.0)));
    let duration = metrics.iter().find(|one| one.name == "tidegate_worker_task_duration_seconds");
    assert!(matches!(duration.and_then(|one| one.data.as_ref()), Some(metric::Data::Histogram(_))));
}

#[test]
fn unreachable_collector_does_not_block_commands() {
    let shell = Shell::new();
    shell.run_ok(&["submit", "noop", "--otlp", "http://127.0.0.1:1"]);
    shell.run_ok(&["worker", "--until-idle", "--otlp", "http://127.0.0.1:1"]);
    let told = shell.run(&["submit", "noop", "--otlp", "https://collector.example"]);
    assert!(told.starts_with("exit 1\n") && told.contains("http://HOST:PORT"), "{told}");
}
