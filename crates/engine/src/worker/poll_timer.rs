//! When to ask for work: on hints of the store, and now and then without one.
//!
//! Hints say that something *may* have become claimable, and some stores cannot tell whose
//! change it was: an idle fleet could wake itself for ever with its own empty claims. So each
//! empty claim after a hint lets the next hint wait a little longer, up to a fraction of the
//! poll interval; one quiet moment, or one claim that found something, and hints count at
//! once again.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use tidegate_core::Store;

use crate::time;

const NOTIFICATION_DELAY_MIN: Duration = Duration::from_millis(1);

pub(crate) struct PollTimer {
    store: Arc<dyn Store>,
    poll_interval: Duration,
    notification: Option<BoxFuture<'static, ()>>,
    is_notified: bool,
    /// When to ask next, hint or not.
    poll_at: Instant,
    notification_delay: Duration,
    last_empty_claim_at: Option<Instant>,
}

impl fmt::Debug for PollTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wake").field("hinted", &self.is_notified).finish_non_exhaustive()
    }
}

impl PollTimer {
    pub(crate) fn new(store: Arc<dyn Store>, poll_interval: Duration) -> Self {
        let poll_at = time::now() + time::jittered(poll_interval);
        let notification_delay = Duration::ZERO;
        Self {
            store,
            poll_interval,
            notification: None,
            is_notified: false,
            poll_at,
            notification_delay,
            last_empty_claim_at: None,
        }
    }

    /// Returns when it is time to ask.
    pub(crate) async fn wait_until_due(&mut self) {
        if !self.is_notified {
            let ask_at = self.poll_at;
            tokio::select! {
                () = poll_fn(|context| self.poll_notification(context)) => self.on_notification(),
                () = time::sleep_until(ask_at) => return,
            }
        }
        time::sleep_until(self.poll_at).await;
    }

    /// A claim is about to be sent. Hints are listened to from before the claim: what becomes
    /// claimable just after it must not go unnoticed.
    pub(crate) fn on_claim_sent(&mut self) {
        self.is_notified = false;
        self.poll_at = time::now() + time::jittered(self.poll_interval);
        if self.notification.is_none() {
            let mut context = Context::from_waker(Waker::noop());
            self.is_notified = self.poll_notification(&mut context).is_ready();
        }
    }

    /// What a claim found.
    pub(crate) fn on_claim_reply(&mut self, found_tasks: bool) {
        if found_tasks {
            self.notification_delay = Duration::ZERO;
            self.last_empty_claim_at = None;
        } else {
            self.last_empty_claim_at = Some(time::now());
        }
        if self.is_notified {
            self.on_notification();
        }
    }

    fn on_notification(&mut self) {
        self.is_notified = true;
        let now = time::now();
        let Some(empty_at) = self.last_empty_claim_at else {
            self.poll_at = now;
            return;
        };
        let longest = self.poll_interval / 8;
        self.notification_delay =
            match now - empty_at > (4 * self.notification_delay).max(NOTIFICATION_DELAY_MIN) {
                true => Duration::ZERO,
                false => (2 * self.notification_delay)
                    .clamp(NOTIFICATION_DELAY_MIN.min(longest), longest),
            };
        self.poll_at = self.poll_at.min(now.max(empty_at + self.notification_delay));
    }

    fn poll_notification(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let store = &self.store;
        let changed = self.notification.get_or_insert_with(|| {
            let store = store.clone();
            Box::pin(async move { store.wait_for_notification().await })
        });
        let polled = Pin::new(changed).poll(context);
        if polled.is_ready() {
            self.notification = None;
        }
        polled
    }
}
