//! What a person has chosen to see, and what keys do to it.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tidegate_core::LimitId;

use super::view::{Rate, View};

/// Rows that a page is, where nothing has been drawn yet.
const PAGE_ROWS: usize = 10;

/// What is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Panel {
    Limits,
    Queues,
    Jobs,
    Workers,
}

impl Panel {
    pub(super) const ALL: [Self; 4] = [Self::Limits, Self::Queues, Self::Jobs, Self::Workers];

    /// What its rows are told apart by.
    fn names(self, view: &View) -> Vec<&str> {
        match self {
            Self::Limits => view.limits.iter().map(|limit| &*limit.name).collect(),
            Self::Queues => view.queues.iter().map(|queue| &*queue.name).collect(),
            Self::Jobs => view.jobs.iter().map(|job| &*job.name).collect(),
            Self::Workers => view.workers.iter().map(|worker| &*worker.id.0).collect(),
        }
    }

    fn turned(self, by: usize) -> Self {
        Self::ALL[(self as usize + by) % Self::ALL.len()]
    }
}

/// The row with the mark. Who chose one stays with it wherever it goes; who chose none is always
/// at the first.
#[derive(Debug, Default)]
struct Mark {
    at: usize,
    name: Option<String>,
    /// The first row that is shown.
    first: usize,
    /// Rows that were shown.
    page: usize,
}

/// The state of the screen.
#[derive(Debug)]
pub(super) struct Screen {
    pub(super) store: String,
    pub(super) panel: Panel,
    marks: [Mark; 4],
    pub(super) rate: Rate,
    /// Why what is shown is old.
    pub(super) trouble: Option<String>,
}

/// What a key asks of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    Stay,
    Quit,
}

impl Screen {
    pub(super) fn new(store: String) -> Self {
        let marks = Default::default();
        Self { store, panel: Panel::Limits, marks, rate: Rate::default(), trouble: None }
    }

    /// A new look has come.
    pub(super) fn see(&mut self, view: &View) {
        self.rate.note(view);
        self.trouble = None;
        for panel in Panel::ALL {
            self.marks[panel as usize].settle(&panel.names(view));
        }
    }

    /// A key was pressed.
    pub(super) fn press(&mut self, key: KeyEvent, view: &View) -> Wish {
        if key.kind == KeyEventKind::Release {
            return Wish::Stay;
        }
        let is_interrupt =
            key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
        if is_interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
            return Wish::Quit;
        }
        match key.code {
            KeyCode::Tab | KeyCode::Right | KeyCode::Char('l') => self.panel = self.panel.turned(1),
            KeyCode::BackTab | KeyCode::Left | KeyCode::Char('h') => {
                self.panel = self.panel.turned(Panel::ALL.len() - 1);
            }
            code => self.move_mark(code, view),
        }
        Wish::Stay
    }

    fn move_mark(&mut self, code: KeyCode, view: &View) {
        let mark = &mut self.marks[self.panel as usize];
        let page = if mark.page == 0 { PAGE_ROWS } else { mark.page };
        let to = match code {
            KeyCode::Up | KeyCode::Char('k') => mark.at.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => mark.at + 1,
            KeyCode::PageUp => mark.at.saturating_sub(page),
            KeyCode::PageDown => mark.at + page,
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => usize::MAX,
            _ => return,
        };
        mark.put(to, &self.panel.names(view));
    }

    /// The limit whose holders and line are shown.
    pub(super) fn limit(&self, view: &View) -> Option<LimitId> {
        view.limits.get(self.marks[Panel::Limits as usize].at).map(|limit| limit.id)
    }

    /// The row with the mark.
    pub(super) fn marked(&self, panel: Panel) -> usize {
        self.marks[panel as usize].at
    }

    /// The first row to show where `page` fit, so that the mark is among them.
    pub(super) fn scroll(&mut self, panel: Panel, page: usize, rows: usize) -> usize {
        let mark = &mut self.marks[panel as usize];
        mark.page = page;
        let lowest = (mark.at + 1).saturating_sub(page);
        // No room is left empty while rows are out of sight.
        let highest = mark.at.min(rows.saturating_sub(page)).max(lowest);
        mark.first = mark.first.clamp(lowest, highest);
        mark.first
    }
}

impl Mark {
    fn put(&mut self, to: usize, names: &[&str]) {
        self.at = to.min(names.len().saturating_sub(1));
        self.name = names.get(self.at).map(|name| (*name).to_owned());
    }

    fn settle(&mut self, names: &[&str]) {
        let found = names.iter().position(|name| Some(*name) == self.name.as_deref());
        let kept = if self.name.is_some() { self.at } else { 0 };
        self.at = found.unwrap_or(kept.min(names.len().saturating_sub(1)));
    }
}
