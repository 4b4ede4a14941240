//! A live view in the terminal. One task looks at the store, a thread reads the keys, and the loop
//! here draws: a store that does not answer does not hold up a key.

mod draw;
mod panels;
mod screen;
mod terminal;
#[cfg(test)]
mod tests;
mod view;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use ratatui::crossterm::event::Event;
use tidegate_core::StoreReader;
use tidegate_engine::{ShutdownPhase, shutdown_on_signals, time};
use tokio::sync::{mpsc, watch};

use self::screen::{KeyAction, Screen};
use self::terminal::{RawTerminal, read_keys};
use self::view::{Detail, View, ViewRequest, read_detail, read_view};

/// How long after the interval a look may take before it is told.
const STORE_TIMEOUT: Duration = Duration::from_secs(3);

/// Waiting tasks that are read at most, however tall the terminal is.
const WAITERS_MAX: u32 = 500;

/// What was read.
#[derive(Debug)]
enum ViewUpdate {
    All(tidegate_core::Result<View>),
    Detail(tidegate_core::Result<Detail>),
}

/// Shows the store until somebody leaves or a signal ends it.
pub(crate) async fn run(
    inspect: Arc<dyn StoreReader>,
    store: String,
    interval: Duration,
) -> anyhow::Result<()> {
    // A store that cannot be read at all is an error like any other, told on the plain screen.
    let view = read_view(&*inspect, ViewRequest { limit: None, rows: WAITERS_MAX }).await?;
    let mut screen = Screen::new(store);
    screen.update(&view);
    let shutdown = shutdown_on_signals()?;
    let (ask, asks) = watch::channel(ViewRequest::default());
    let (sender, news) = mpsc::channel(1);
    let eyes = tokio::spawn(poll_store(inspect, interval, asks, sender));
    let taken = RawTerminal::enter().context("take over the terminal")?;
    let top = App {
        terminal: taken,
        view,
        screen,
        view_request: ask,
        updates: news,
        keys: read_keys(),
        interval,
    };
    let shown = tokio::select! {
        shown = top.show() => shown,
        () = shutdown.wait_for_phase(ShutdownPhase::Draining) => Ok(()),
    };
    eyes.abort();
    shown
}

/// Looks again and again; in between it follows the mark from limit to limit.
async fn poll_store(
    inspect: Arc<dyn StoreReader>,
    interval: Duration,
    mut asks: watch::Receiver<ViewRequest>,
    news: mpsc::Sender<ViewUpdate>,
) {
    loop {
        let next = time::now() + interval;
        loop {
            let detail = tokio::select! {
                () = time::sleep_until(next) => break,
                changed = asks.changed() => changed.map(|()| *asks.borrow_and_update()),
            };
            let Ok(ViewRequest { limit, rows }) = detail else { return };
            let Some(limit) = limit else { continue };
            let closer = read_detail(&*inspect, limit, rows).await;
            if news.send(ViewUpdate::Detail(closer)).await.is_err() {
                return;
            }
        }
        let ask = *asks.borrow_and_update();
        if news.send(ViewUpdate::All(read_view(&*inspect, ask).await)).await.is_err() {
            return;
        }
    }
}

/// The loop that draws, and what it draws from.
struct App {
    terminal: RawTerminal,
    view: View,
    screen: Screen,
    view_request: watch::Sender<ViewRequest>,
    updates: mpsc::Receiver<ViewUpdate>,
    keys: mpsc::Receiver<io::Result<Event>>,
    interval: Duration,
}

impl App {
    async fn show(mut self) -> anyhow::Result<()> {
        let mut answered = time::now();
        loop {
            self.draw()?;
            let overdue = time::now().max(answered + self.interval + STORE_TIMEOUT);
            tokio::select! {
                event = self.keys.recv() => {
                    let event = event.context("read the keys")?;
                    if self.handle_events(event)? == KeyAction::Quit {
                        return Ok(());
                    }
                }
                news = self.updates.recv() => {
                    answered = time::now();
                    self.apply_update(news.context("the look at the store broke off")?);
                }
                () = time::sleep_until(overdue + Duration::from_millis(500)) => {
                    let since = (time::now() - answered).as_secs();
                    self.screen.error =
                        Some(format!("the store has not answered for {since} s; still waiting"));
                }
            }
        }
    }

    fn draw(&mut self) -> anyhow::Result<()> {
        let (view, screen) = (&self.view, &mut self.screen);
        let drawn = self.terminal.0.draw(|frame| draw::draw(frame, view, screen));
        let height = drawn.context("draw on the terminal")?.area.height;
        let rows = u32::from(height).min(WAITERS_MAX);
        let ask = ViewRequest { limit: self.screen.selected_limit(&self.view), rows };
        self.view_request.send_if_modified(|old| std::mem::replace(old, ask) != ask);
        Ok(())
    }

    /// All that was typed is taken before the next drawing: a key held down does not pile up.
    fn handle_events(&mut self, first: io::Result<Event>) -> anyhow::Result<KeyAction> {
        let mut next = Some(first);
        while let Some(event) = next {
            // A new size needs no more than the next drawing.
            if let Event::Key(key) = event.context("read the keys")?
                && self.screen.handle_key(key, &self.view) == KeyAction::Quit
            {
                return Ok(KeyAction::Quit);
            }
            next = self.keys.try_recv().ok();
        }
        Ok(KeyAction::Continue)
    }

    fn apply_update(&mut self, news: ViewUpdate) {
        match news {
            ViewUpdate::All(Ok(view)) => {
                self.screen.update(&view);
                self.view = view;
            }
            ViewUpdate::Detail(Ok(detail)) => self.view.detail = Some(detail),
            ViewUpdate::All(Err(error)) | ViewUpdate::Detail(Err(error)) => {
                let error = anyhow::Error::from(error);
                let trouble = format!("cannot read the store, still trying: {error:#}");
                self.screen.error = Some(trouble);
            }
        }
    }
}
