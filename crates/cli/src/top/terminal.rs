//! The terminal: taken over, given back whatever happens, and its keys.

use std::io;
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::terminal::is_raw_mode_enabled;
use tokio::sync::mpsc;

/// How soon the thread that reads keys sees that nobody wants them.
const KEY_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Keys that may wait.
const KEYS_BUFFERED_MAX: usize = 64;

/// The terminal in raw mode, on its other screen. It is given back when this is dropped, and before
/// the words of a panic.
#[derive(Debug)]
pub(super) struct RawTerminal(pub(super) DefaultTerminal);

impl RawTerminal {
    pub(super) fn enter() -> io::Result<Self> {
        let taken = ratatui::try_init().map(Self);
        if taken.is_err() {
            let _ = ratatui::try_restore();
        }
        taken
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing back.
        let _ = self.0.show_cursor();
        // A panic has given it back before its words: once more would put the cursor over them.
        if is_raw_mode_enabled().unwrap_or(true) {
            let _ = ratatui::try_restore();
        }
    }
}

/// What is typed. A thread of its own waits for it, which ends soon after the receiver is gone.
pub(super) fn read_keys() -> mpsc::Receiver<io::Result<Event>> {
    let (sender, receiver) = mpsc::channel(KEYS_BUFFERED_MAX);
    std::thread::spawn(move || {
        while !sender.is_closed() {
            let event = match event::poll(KEY_POLL_INTERVAL) {
                Ok(false) => continue,
                Ok(true) => event::read(),
                Err(error) => Err(error),
            };
            let is_last = event.is_err();
            if sender.blocking_send(event).is_err() || is_last {
                return;
            }
        }
    });
    receiver
}
