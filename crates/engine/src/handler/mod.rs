//! Handlers: the code that runs tasks of one kind.

mod context;
mod failure;
mod kind_config;

use std::fmt;
use std::sync::Arc;

use futures_util::future::{BoxFuture, ready};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_core::Outcome;
use tidegate_core::bounds::PAYLOAD_BYTES_MAX;

pub use context::Context;
pub use failure::Failure;
pub use kind_config::KindConfig;

use crate::Task;

/// A handler with a type of its own. The attribute [`task`](macro@crate::task) writes one from
/// a function.
pub trait Handler: Send + Sync + 'static {
    /// The kind it handles.
    const KIND: &'static str;
    /// What its tasks carry.
    type Payload: DeserializeOwned + Send;
    /// What it returns; kept as the task's result.
    type Output: Serialize;

    /// How its tasks are treated. Default: every default.
    fn config() -> KindConfig {
        KindConfig::new(Self::KIND)
    }

    /// Runs one attempt.
    fn run(
        &self,
        context: Context,
        payload: Self::Payload,
    ) -> impl Future<Output = Result<Self::Output, Failure>> + Send;

    /// A task for this handler.
    fn task(payload: &Self::Payload) -> Task
    where
        Self::Payload: Serialize,
    {
        Task::new(Self::KIND, payload)
    }
}

/// What a handler function may return: any `Result` whose error becomes a [`Failure`].
pub trait IntoResult {
    /// The result of the task.
    type Output;

    /// The same with a failure for the error.
    fn into_result(self) -> Result<Self::Output, Failure>;
}

impl<T, E: Into<Failure>> IntoResult for Result<T, E> {
    type Output = T;

    fn into_result(self) -> Result<T, Failure> {
        self.map_err(Into::into)
    }
}

/// A handler without its types.
#[derive(Clone)]
pub(crate) struct ErasedHandler(
    Arc<dyn Fn(Context, Vec<u8>) -> BoxFuture<'static, Outcome> + Send + Sync>,
);

impl fmt::Debug for ErasedHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Invoke")
    }
}

impl ErasedHandler {
    pub(crate) fn from_function<P, R, F, Fut>(function: F) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        R: IntoResult + 'static,
        R::Output: Serialize,
        F: Fn(Context, P) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = R> + Send + 'static,
    {
        Self(Arc::new(move |context, payload| match parse_payload(&context, &payload) {
            Ok(payload) => {
                let run = function(context, payload);
                Box::pin(async move { outcome_of_result(run.await.into_result()) })
            }
            Err(unreadable) => Box::pin(ready(unreadable)),
        }))
    }

    pub(crate) fn from_handler<H: Handler>(handler: H) -> Self {
        let handler = Arc::new(handler);
        Self(Arc::new(move |context, payload| match parse_payload(&context, &payload) {
            Ok(payload) => {
                let handler = handler.clone();
                Box::pin(async move { outcome_of_result(handler.run(context, payload).await) })
            }
            Err(unreadable) => Box::pin(ready(unreadable)),
        }))
    }

    pub(crate) fn call(&self, context: Context, payload: Vec<u8>) -> BoxFuture<'static, Outcome> {
        (self.0)(context, payload)
    }
}

/// A payload that does not fit never will: no attempt after the first can help.
fn parse_payload<P: DeserializeOwned>(context: &Context, payload: &[u8]) -> Result<P, Outcome> {
    serde_json::from_slice(payload).map_err(|cause| {
        let error = format!("the payload does not fit kind {:?}: {cause}", context.kind());
        Failure::fatal(error).into_outcome()
    })
}

fn outcome_of_result<T: Serialize>(result: Result<T, Failure>) -> Outcome {
    match result {
        Ok(value) => serialize_result(&value).unwrap_or_else(Failure::into_outcome),
        Err(failure) => failure.into_outcome(),
    }
}

fn serialize_result<T: Serialize>(result: &T) -> Result<Outcome, Failure> {
    let result = serde_json::to_vec(result).map_err(|cause| {
        Failure::fatal(format!("the result cannot be written as JSON: {cause}"))
    })?;
    if result.len() > PAYLOAD_BYTES_MAX {
        return Err(Failure::fatal(format!(
            "the result has {} bytes; at most {PAYLOAD_BYTES_MAX} are kept",
            result.len()
        )));
    }
    Ok(Outcome::Completed(result))
}
