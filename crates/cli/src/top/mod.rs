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
use tidegate_core::Inspect;
use tidegate_engine::{Phase, signals, time};
use tokio::sync::{mpsc, watch};

use self::screen::{Screen, Wish};
use self::terminal::{Taken, keys};
use self::view::{Ask, Detail, View, look, look_closer};

/// How long after the interval a look may take before it is told.
const PATIENCE: Duration = Duration::from_secs(3);

/// Waiting tasks that are read at most, however tall the terminal is.
const LINE_MAX: u32 = 500;

/// What was read.
#[derive(Debug)]
enum News {
    All(tidegate_core::Result<View>),
    Detail(tidegate_core::Result<Detail>),
}

/// Shows the store until somebody leaves or a signal ends it.
pub(crate) async fn run(
    inspect: Arc<dyn Inspect>,
    store: String,
    interval: Duration,
) -> anyhow::Result<()> {
    // A store that cannot be read at all is an error like any other, told on the plain screen.
    let view = look(&*inspect, Ask { limit: None, rows: LINE_MAX }).await?;
    let mut screen = Screen::new(store);
    screen.see(&view);
    let shutdown = signals()?;
    let (ask, asks) = watch::channel(Ask::default());
    let (sender, news) = mpsc::channel(1);
    let eyes = tokio::spawn(watch_store(inspect, interval, asks, sender));
    let taken = Taken::take().context("take over the terminal")?;
    let top = Top { taken, view, screen, ask, news, keys: keys(), interval };
    let shown = tokio::select! {
        shown = top.show() => shown,
        () = shutdown.reached(Phase::Draining) => Ok(()),
    };
    eyes.abort();
    shown
}

/// Looks again and again; in between it follows the mark from limit to limit.
async fn watch_store(
    inspect: Arc<dyn Inspect>,
    interval: Duration,
    mut asks: watch::Receiver<Ask>,
    news: mpsc::Sender<News>,
) {
    loop {
        let next = time::now() + interval;
        loop {
            let detail = tokio::select! {
                () = time::sleep_until(next) => break,
                changed = asks.changed() => changed.map(|()| *asks.borrow_and_update()),
            };
            let Ok(Ask { limit, rows }) = detail else { return };
            let Some(limit) = limit else { continue };
            let closer = look_closer(&*inspect, limit, rows).await;
            if news.send(News::Detail(closer)).await.is_err() {
                return;
            }
        }
        let ask = *asks.borrow_and_update();
        if news.send(News::All(look(&*inspect, ask).await)).await.is_err() {
            return;
        }
    }
}

/// The loop that draws, and what it draws from.
struct Top {
    taken: Taken,
    view: View,
    screen: Screen,
    ask: watch::Sender<Ask>,
    news: mpsc::Receiver<News>,
    keys: mpsc::Receiver<io::Result<Event>>,
    interval: Duration,
}

impl Top {
    async fn show(mut self) -> anyhow::Result<()> {
        let mut answered = time::now();
        loop {
            self.draw()?;
            let overdue = time::now().max(answered + self.interval + PATIENCE);
            tokio::select! {
                event = self.keys.recv() => {
                    let event = event.context("read the keys")?;
                    if self.take_events(event)? == Wish::Quit {
                        return Ok(());
                    }
                }
                news = self.news.recv() => {
                    answered = time::now();
                    self.take_news(news.context("the look at the store broke off")?);
                }
                () = time::sleep_until(overdue + Duration::from_millis(500)) => {
                    let since = (time::now() - answered).as_secs();
                    self.screen.trouble =
                        Some(format!("the store has not answered for {since} s; still waiting"));
                }
            }
        }
    }

    fn draw(&mut self) -> anyhow::Result<()> {
        let (view, screen) = (&self.view, &mut self.screen);
        let drawn = self.taken.0.draw(|frame| draw::draw(frame, view, screen));
        let height = drawn.context("draw on the terminal")?.area.height;
        let rows = u32::from(height).min(LINE_MAX);
        let ask = Ask { limit: self.screen.limit(&self.view), rows };
        self.ask.send_if_modified(|old| std::mem::replace(old, ask) != ask);
        Ok(())
    }

    /// All that was typed is taken before the next drawing: a key held down does not pile up.
    fn take_events(&mut self, first: io::Result<Event>) -> anyhow::Result<Wish> {
        let mut next = Some(first);
        while let Some(event) = next {
            // A new size needs no more than the next drawing.
            if let Event::Key(key) = event.context("read the keys")?
                && self.screen.press(key, &self.view) == Wish::Quit
            {
                return Ok(Wish::Quit);
            }
            next = self.keys.try_recv().ok();
        }
        Ok(Wish::Stay)
    }

    fn take_news(&mut self, news: News) {
        match news {
            News::All(Ok(view)) => {
                self.screen.see(&view);
                self.view = view;
            }
            News::Detail(Ok(detail)) => self.view.detail = Some(detail),
            News::All(Err(error)) | News::Detail(Err(error)) => {
                let error = anyhow::Error::from(error);
                let trouble = format!("cannot read the store, still trying: {error:#}");
                self.screen.trouble = Some(trouble);
            }
        }
    }
}
