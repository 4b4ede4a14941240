//! What a handler returns when it does not complete.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use tidegate_core::Outcome;

use crate::time;

/// Why an attempt did not complete, and what should happen next.
///
/// Every [`std::error::Error`] becomes one by `?`, to be tried again. It is no such error
/// itself, as it may also say "later" or "somebody else".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure(Outcome);

impl Failure {
    /// It went wrong and may go better: tried again after the kind's back-off.
    pub fn retryable(error: impl fmt::Display) -> Self {
        Self::failed(error, true, None)
    }

    /// It went wrong and always will: the task fails for good.
    pub fn fatal(error: impl fmt::Display) -> Self {
        Self::failed(error, false, None)
    }

    /// It went wrong; tried again after `delay`.
    pub fn retry_in(error: impl fmt::Display, delay: Duration) -> Self {
        Self::failed(error, true, Some(time::millis(delay)))
    }

    /// Nothing went wrong, it is too early: called again after `delay`. Costs no attempt.
    pub fn snooze(delay: Duration) -> Self {
        Self(Outcome::Snoozed { delay_ms: time::millis(delay) })
    }

    /// Gives the attempt back, to be run again by whoever has room. Costs no attempt.
    pub fn release() -> Self {
        Self(Outcome::Released)
    }

    /// Stopped because it was asked to: see [`Context::cancelled`](crate::Context::cancelled).
    /// Where a worker that ends or loses its lease has asked, the attempt is given back.
    pub fn cancelled() -> Self {
        Self(Outcome::Cancelled)
    }

    pub(crate) fn into_outcome(self) -> Outcome {
        self.0
    }

    fn failed(error: impl fmt::Display, retryable: bool, retry_in_ms: Option<i64>) -> Self {
        Self(Outcome::Failed { error: error.to_string(), retryable, retry_in_ms })
    }
}

impl<E: Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::retryable(error_with_causes(&error))
    }
}

/// The error and its causes as one sentence.
fn error_with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    #[derive(Debug)]
    struct OuterError(std::num::ParseIntError);

    impl fmt::Display for OuterError {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("read the amount")
        }
    }

    impl Error for OuterError {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn error_becomes_retryable_failure_with_its_causes() {
        let failure = (|| -> Result<(), Failure> {
            "x".parse::<i32>().map_err(OuterError)?;
            Ok(())
        })();
        let Err(Failure(Outcome::Failed { error, retryable: true, retry_in_ms: None })) = failure
        else {
            panic!("{failure:?}")
        };
        assert_snapshot!(error, @"read the amount: invalid digit found in string");
    }
}
