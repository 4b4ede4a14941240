//! OpenTelemetry: traces and metrics go to a collector by OTLP.

mod metrics;

use anyhow::{Context as _, bail};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::{Layer, Registry};

pub(crate) use metrics::Exporter;

/// What everything that is sent says of its sender.
const SERVICE_NAME: &str = "tidegate";

/// Traces of this process. What is not sent yet is sent when this is dropped.
#[derive(Debug)]
pub(crate) struct Traces {
    provider: SdkTracerProvider,
}

impl Traces {
    /// Sends to a collector from now on. Needs a tokio runtime.
    pub(crate) fn start(url: &str) -> anyhow::Result<Self> {
        check_endpoint(url)?;
        let exporter = SpanExporter::builder().with_tonic().with_endpoint(url).build();
        let exporter = exporter.with_context(|| format!("send traces to {url}"))?;
        let resource = Resource::builder().with_service_name(SERVICE_NAME).build();
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource)
            .build();
        Ok(Self { provider })
    }

    /// What hears of the engine's spans.
    pub(crate) fn layer(&self) -> Box<dyn Layer<Registry> + Send + Sync> {
        let tracer = self.provider.tracer(SERVICE_NAME);
        let own = Targets::new().with_target("tidegate", LevelFilter::INFO);
        Box::new(tracing_opentelemetry::layer().with_tracer(tracer).with_filter(own))
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        // A collector that is away keeps nobody from ending.
        let _ = self.provider.shutdown();
    }
}

/// The collector is on the own machine or network: there is no TLS.
fn check_endpoint(url: &str) -> anyhow::Result<()> {
    if !url.starts_with("http://") {
        bail!("{url:?} is no collector that can be called; --otlp takes http://HOST:PORT, as gRPC");
    }
    Ok(())
}
