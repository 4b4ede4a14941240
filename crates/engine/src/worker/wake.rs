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

const SPACING_FIRST: Duration = Duration::from_millis(1);

pub(crate) struct Wake {
    store: Arc<dyn Store>,
    poll_interval: Duration,
    changed: Option<BoxFuture<'static, ()>>,
    hinted: bool,
    /// When to ask next, hint or not.
    ask_at: Instant,
    spacing: Duration,
    empty_at: Option<Instant>,
}

impl fmt::Debug for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wake").field("hinted", &self.hinted).finish_non_exhaustive()
    }
}

impl Wake {
    pub(crate) fn new(store: Arc<dyn Store>, poll_interval: Duration) -> Self {
        let ask_at = time::now() + time::jittered(poll_interval);
        let spacing = Duration::ZERO;
        Self { store, poll_interval, changed: None, hinted: false, ask_at, spacing, empty_at: None }
    }

    /// Returns when it is time to ask.
    pub(crate) async fn time_to_ask(&mut self) {
        if !self.hinted {
            let ask_at = self.ask_at;
            tokio::select! {
                () = poll_fn(|context| self.poll_changed(context)) => self.hint(),
                () = time::sleep_until(ask_at) => return,
            }
        }
        time::sleep_until(self.ask_at).await;
    }

    /// A claim is about to be sent. Hints are listened to from before the claim: what becomes
    /// claimable just after it must not go unnoticed.
    pub(crate) fn asking(&mut self) {
        self.hinted = false;
        self.ask_at = time::now() + time::jittered(self.poll_interval);
        if self.changed.is_none() {
            let mut context = Context::from_waker(Waker::noop());
            self.hinted = self.poll_changed(&mut context).is_ready();
        }
    }

    /// What a claim found.
    pub(crate) fn answered(&mut self, found: bool) {
        if found {
            self.spacing = Duration::ZERO;
            self.empty_at = None;
        } else {
            self.empty_at = Some(time::now());
        }
        if self.hinted {
            self.hint();
        }
    }

    fn hint(&mut self) {
        self.hinted = true;
        let now = time::now();
        let Some(empty_at) = self.empty_at else {
            self.ask_at = now;
            return;
        };
        let longest = self.poll_interval / 8;
        self.spacing = match now - empty_at > (4 * self.spacing).max(SPACING_FIRST) {
            true => Duration::ZERO,
            false => (2 * self.spacing).clamp(SPACING_FIRST.min(longest), longest),
        };
        self.ask_at = self.ask_at.min(now.max(empty_at + self.spacing));
    }

    fn poll_changed(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let store = &self.store;
        let changed = self.changed.get_or_insert_with(|| {
            let store = store.clone();
            Box::pin(async move { store.changed().await })
        });
        let polled = Pin::new(changed).poll(context);
        if polled.is_ready() {
            self.changed = None;
        }
        polled
    }
}
