//! A worker that is watched: its metrics, where they are shown, and what is read for them.

use std::net::SocketAddr;

use tidegate_engine::metrics::Sampler;
use tidegate_engine::{Metrics, Shutdown};
use tidegate_store::StoreHandle;
use tokio::task::JoinSet;

use super::metrics_server::MetricsServer;
#[cfg(feature = "otel")]
use crate::otel::Exporter;
use crate::stderr::print_message;

/// What goes on beside the worker; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Telemetry {
    pub(crate) metrics: Metrics,
    #[cfg(feature = "otel")]
    exporter: Option<Exporter>,
    _tasks: JoinSet<()>,
}

impl Telemetry {
    /// Shows metrics at an address and sends them to a collector. Without either the store is still
    /// watched where the log has room for what is seen. None where nobody looks.
    pub(crate) async fn start(
        address: Option<SocketAddr>,
        collector: Option<String>,
        opened: &StoreHandle,
        shutdown: &Shutdown,
    ) -> anyhow::Result<Option<Self>> {
        if address.is_none() && collector.is_none() && !Sampler::is_logging_enabled() {
            return Ok(None);
        }
        let metrics = Metrics::new();
        let mut beside = JoinSet::new();
        if let Some(address) = address {
            let endpoint = MetricsServer::bind(address).await?;
            print_message!("metrics at http://{}/metrics", endpoint.address()?);
            beside.spawn(endpoint.serve(metrics.clone(), shutdown.clone()));
        }
        #[cfg(feature = "otel")]
        let exporter = collector.map(|url| Exporter::new(metrics.clone(), &url)).transpose()?;
        #[cfg(feature = "otel")]
        exporter.iter().for_each(|exporter| drop(beside.spawn(exporter.clone().run())));
        let sampler = Sampler::new(&metrics, opened.reader.clone());
        beside.spawn(sampler.run(shutdown.clone()));
        Ok(Some(Self {
            metrics,
            #[cfg(feature = "otel")]
            exporter,
            _tasks: beside,
        }))
    }

    /// The worker has ended: the last numbers are sent.
    pub(crate) async fn shut_down(self) {
        #[cfg(feature = "otel")]
        if let Some(mut exporter) = self.exporter
            && let Err(error) = exporter.export().await
        {
            print_message!(
                "warning: the collector does not take the last metrics: {}",
                error.message()
            );
        }
    }
}
