//! Whether the server can be reached, as far as the answers to this process show.

use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_core::{Error, ErrorKind};
use tokio::sync::Notify;

/// Shared by all connections of a store. A connection attempt that was sent into a silent network never
/// gets an answer. So the first answer that any connection gets after an outage makes all attempts that
/// are under way start again, instead of waiting for their own timeouts.
#[derive(Debug, Default)]
pub(super) struct Network {
    is_unreachable: AtomicBool,
    reachable_again: Notify,
}

impl Network {
    /// Records that a connection attempt failed. A server that refuses a connection, for example because it has
    /// too many, was reached.
    pub(super) fn record_failed_attempt(&self, error: &Error) {
        if error.kind() == ErrorKind::Unavailable {
            self.record_outage();
        }
    }

    /// Records that a request got no answer, and neither did any other.
    pub(super) fn record_outage(&self) {
        self.is_unreachable.store(true, Ordering::Relaxed);
    }

    /// The server has answered.
    pub(super) fn record_answer(&self) {
        // The load keeps the cache line shared: almost every call finds that nothing was lost.
        if self.is_unreachable.load(Ordering::Relaxed)
            && self.is_unreachable.swap(false, Ordering::Relaxed)
        {
            self.reachable_again.notify_waiters();
        }
    }

    /// Waits until the server answers after an outage. The wait begins when this is called, not when
    /// the future is first polled.
    pub(super) fn wait_until_reachable(&self) -> impl Future<Output = ()> + '_ {
        self.reachable_again.notified()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use poll_once::is_ready;

    mod poll_once {
        use std::pin::pin;
        use std::task::{Context, Poll, Waker};

        pub(super) fn is_ready(future: impl Future<Output = ()>) -> bool {
            let mut context = Context::from_waker(Waker::noop());
            matches!(pin!(future).poll(&mut context), Poll::Ready(()))
        }
    }

    #[test]
    fn reply_without_outage_wakes_no_connection_attempt() {
        let network = Network::default();
        let returned = network.wait_until_reachable();
        network.record_answer();
        assert!(!is_ready(returned));
    }

    #[test]
    fn connection_rejected_by_server_is_not_an_outage() {
        let network = Network::default();
        network.record_failed_attempt(&Error::new(ErrorKind::Refused, "too many connections"));
        let returned = network.wait_until_reachable();
        network.record_answer();
        assert!(!is_ready(returned));
        network.record_failed_attempt(&Error::new(ErrorKind::Unavailable, "no route"));
        let returned = network.wait_until_reachable();
        network.record_answer();
        assert!(is_ready(returned));
    }

    #[test]
    fn first_reply_after_outage_wakes_pending_connection_attempts() {
        let network = Network::default();
        network.record_outage();
        let (first, second) = (network.wait_until_reachable(), network.wait_until_reachable());
        network.record_answer();
        assert!(is_ready(first) && is_ready(second));
        let later = network.wait_until_reachable();
        network.record_answer();
        assert!(!is_ready(later));
    }
}
