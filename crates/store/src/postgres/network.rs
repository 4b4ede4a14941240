//! Whether the server can be reached, as far as the answers to this process show.

use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_core::{Error, ErrorKind};
use tokio::sync::Notify;

/// Shared by all connections of a store. A connection attempt that was sent into a silent network never
/// gets an answer. So the first answer that any connection gets after an outage makes all attempts that
/// are under way start again, instead of waiting for their own timeouts.
#[derive(Debug, Default)]
pub(super) struct Network {
    is_lost: AtomicBool,
    returned: Notify,
}

impl Network {
    /// Records that a connection attempt failed. A server that refuses a connection, for example because it has
    /// too many, was reached.
    pub(super) fn note_failed_attempt(&self, error: &Error) {
        if error.kind() == ErrorKind::Unavailable {
            self.note_lost();
        }
    }

    /// Records that a request got no answer, and neither did any other.
    pub(super) fn note_lost(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
    }

    /// The server has answered.
    pub(super) fn note_answer(&self) {
        // The load keeps the cache line shared: almost every call finds that nothing was lost.
        if self.is_lost.load(Ordering::Relaxed) && self.is_lost.swap(false, Ordering::Relaxed) {
            self.returned.notify_waiters();
        }
    }

    /// Waits until the server answers after an outage. The wait begins when this is called, not when
    /// the future is first polled.
    pub(super) fn returned(&self) -> impl Future<Output = ()> + '_ {
        self.returned.notified()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_noop::is_ready;

    mod futures_noop {
        use std::pin::pin;
        use std::task::{Context, Poll, Waker};

        pub(super) fn is_ready(future: impl Future<Output = ()>) -> bool {
            let mut context = Context::from_waker(Waker::noop());
            matches!(pin!(future).poll(&mut context), Poll::Ready(()))
        }
    }

    #[test]
    fn answer_without_an_outage_wakes_no_attempt() {
        let network = Network::default();
        let returned = network.returned();
        network.note_answer();
        assert!(!is_ready(returned));
    }

    #[test]
    fn connection_that_the_server_refuses_is_no_outage() {
        let network = Network::default();
        network.note_failed_attempt(&Error::new(ErrorKind::Refused, "too many connections"));
        let returned = network.returned();
        network.note_answer();
        assert!(!is_ready(returned));
        network.note_failed_attempt(&Error::new(ErrorKind::Unavailable, "no route"));
        let returned = network.returned();
        network.note_answer();
        assert!(is_ready(returned));
    }

    #[test]
    fn first_answer_after_an_outage_wakes_attempts_that_were_under_way() {
        let network = Network::default();
        network.note_lost();
        let (first, second) = (network.returned(), network.returned());
        network.note_answer();
        assert!(is_ready(first) && is_ready(second));
        let later = network.returned();
        network.note_answer();
        assert!(!is_ready(later));
    }
}
