//! Wake-ups: a LISTEN on a connection of its own. A hint only: callers poll as well.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_postgres::{AsyncMessage, Config, NoTls};

/// How long a listener that lost its connection waits before it tries again; while there is
/// none, callers are woken at this pace.
const PACE: Duration = Duration::from_millis(250);

pub(super) struct Changed {
    config: Config,
    notify: Arc<Notify>,
    listener: OnceLock<Listener>,
}

/// Ends the task when the store is dropped.
struct Listener(tokio::task::JoinHandle<()>);

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Changed {
    pub(super) fn new(config: Config) -> Self {
        Self { config, notify: Arc::new(Notify::new()), listener: OnceLock::new() }
    }

    /// Something changed here; nobody in this process has to wait for the server to say so.
    pub(super) fn here(&self) {
        self.notify.notify_waiters();
    }

    /// The first caller starts the listener.
    pub(super) async fn wait(&self) {
        let changed = self.notify.notified();
        self.listener.get_or_init(|| {
            let (config, notify) = (self.config.clone(), self.notify.clone());
            Listener(tokio::spawn(async move {
                loop {
                    listen(&config, &notify).await;
                    notify.notify_waiters();
                    let _ = tokio::time::timeout(PACE, std::future::pending::<()>()).await;
                }
            }))
        });
        changed.await;
    }
}

/// Listens until the connection is lost.
async fn listen(config: &Config, notify: &Notify) {
    let Ok((client, mut connection)) = config.connect(NoTls).await else {
        return;
    };
    let mut messages = std::pin::pin!(std::future::poll_fn(move |cx| {
        loop {
            match std::task::ready!(connection.poll_message(cx)) {
                Some(Ok(AsyncMessage::Notification(_))) => notify.notify_waiters(),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return std::task::Poll::Ready(()),
            }
        }
    }));
    let listen = client.batch_execute("LISTEN tidegate");
    tokio::select! {
        () = &mut messages => return,
        listening = listen => if listening.is_err() { return },
    }
    // What changed before the LISTEN took effect.
    notify.notify_waiters();
    messages.await;
    drop(client);
}
