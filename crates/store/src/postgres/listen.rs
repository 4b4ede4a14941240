//! Wake-ups: a LISTEN on a connection of its own. A hint only: callers poll as well.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use deadpool_postgres::Pool;
use tokio::sync::Notify;
use tokio_postgres::{AsyncMessage, Config, NoTls};

use super::floors::Floors;

/// How long a listener that lost its connection waits before it tries again; while there is
/// none, callers are woken at this pace.
const PACE: Duration = Duration::from_millis(250);

/// Notices of one process are at least so far apart. At its commit a notice locks out those of
/// all others, so there is not one per transaction.
const APART: Duration = Duration::from_millis(10);

const NOTIFY: &str = include_str!("queries/notify.sql");

pub(super) struct Changed {
    config: Config,
    pool: Pool,
    floors: Arc<Floors>,
    /// Somebody else should look.
    news: Arc<Notify>,
    notify: Arc<Notify>,
    listener: OnceLock<Background>,
    teller: OnceLock<Background>,
}

/// Ends the task when the store is dropped.
struct Background(tokio::task::JoinHandle<()>);

impl Drop for Background {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Changed {
    pub(super) fn new(config: Config, pool: Pool, floors: Arc<Floors>) -> Self {
        Self {
            config,
            pool,
            floors,
            news: Arc::default(),
            notify: Arc::default(),
            listener: OnceLock::new(),
            teller: OnceLock::new(),
        }
    }

    /// Tells other processes soon that something changed.
    pub(super) fn tell(&self) {
        self.news.notify_one();
        self.teller.get_or_init(|| {
            let (pool, news) = (self.pool.clone(), self.news.clone());
            Background(tokio::spawn(async move {
                loop {
                    news.notified().await;
                    if let Ok(client) = pool.get().await {
                        // A notice that is lost costs a poll.
                        let _ = client.batch_execute(NOTIFY).await;
                    }
                    pause(APART).await;
                }
            }))
        });
    }

    /// Something changed here; nobody in this process has to wait for the server to say so.
    pub(super) fn here(&self) {
        self.notify.notify_waiters();
    }

    /// The first caller starts the listener.
    pub(super) async fn wait(&self) {
        let changed = self.notify.notified();
        self.listener.get_or_init(|| {
            let config = self.config.clone();
            let (floors, notify) = (self.floors.clone(), self.notify.clone());
            let wake = move || {
                floors.ask();
                notify.notify_waiters();
            };
            Background(tokio::spawn(async move {
                loop {
                    listen(&config, &wake).await;
                    wake();
                    pause(PACE).await;
                }
            }))
        });
        changed.await;
    }
}

#[expect(clippy::disallowed_methods, reason = "a pace in the background; nothing depends on it")]
async fn pause(length: Duration) {
    tokio::time::sleep(length).await;
}

/// Listens until the connection is lost.
async fn listen(config: &Config, wake: &(dyn Fn() + Send + Sync)) {
    let Ok((client, mut connection)) = config.connect(NoTls).await else {
        return;
    };
    let mut messages = std::pin::pin!(std::future::poll_fn(move |cx| {
        loop {
            match std::task::ready!(connection.poll_message(cx)) {
                Some(Ok(AsyncMessage::Notification(_))) => wake(),
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
    wake();
    messages.await;
    drop(client);
}
