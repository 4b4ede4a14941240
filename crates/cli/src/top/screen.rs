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
    fn row_names(self, view: &View) -> Vec<&str> {
        match self {
            Self::Limits => view.limits.iter().map(|limit| &*limit.name).collect(),
            Self::Queues => view.queues.iter().map(|queue| &*queue.name).collect(),
            Self::Jobs => view.jobs.iter().map(|job| &*job.name).collect(),
            Self::Workers => view.workers.iter().map(|worker| &*worker.id.0).collect(),
        }
    }

    fn cycled(self, by: usize) -> Self {
        Self::ALL[(self as usize + by) % Self::ALL.len()]
    }
}

/// The row with the mark. Who chose one stays with it wherever it goes; who chose none is always
/// at the first.
#[derive(Debug, Default)]
struct Selection {
    row: usize,
    name: Option<String>,
    /// The first row that is shown.
    first_shown: usize,
    /// Rows that were shown.
    page: usize,
}

/// The state of the screen.
#[derive(Debug)]
pub(super) struct Screen {
    pub(super) store: String,
    pub(super) panel: Panel,
    selections: [Selection; 4],
    pub(super) rate: Rate,
    /// Why what is shown is old.
    pub(super) error: Option<String>,
}

/// What a key asks of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyAction {
    Continue,
    Quit,
}

impl Screen {
    pub(super) fn new(store: String) -> Self {
        let selections = Default::default();
        Self { store, panel: Panel::Limits, selections, rate: Rate::default(), error: None }
    }

    /// A new look has come.
    pub(super) fn update(&mut self, view: &View) {
        self.rate.update(view);
        self.error = None;
        for panel in Panel::ALL {
            self.selections[panel as usize].restore(&panel.row_names(view));
        }
    }

    /// A key was pressed.
    pub(super) fn handle_key(&mut self, key: KeyEvent, view: &View) -> KeyAction {
        if key.kind == KeyEventKind::Release {
            return KeyAction::Continue;
        }
        let is_interrupt =
            key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
        if is_interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
            return KeyAction::Quit;
        }
        match key.code {
            KeyCode::Tab | KeyCode::Right | KeyCode::Char('l') => self.panel = self.panel.cycled(1),
            KeyCode::BackTab | KeyCode::Left | KeyCode::Char('h') => {
                self.panel = self.panel.cycled(Panel::ALL.len() - 1);
            }
            code => self.move_selection(code, view),
        }
        KeyAction::Continue
    }

    fn move_selection(&mut self, code: KeyCode, view: &View) {
        let mark = &mut self.selections[self.panel as usize];
        let page = if mark.page == 0 { PAGE_ROWS } else { mark.page };
        let to = match code {
            KeyCode::Up | KeyCode::Char('k') => mark.row.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => mark.row + 1,
            KeyCode::PageUp => mark.row.saturating_sub(page),
            KeyCode::PageDown => mark.row + page,
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => usize::MAX,
            _ => return,
        };
        mark.select(to, &self.panel.row_names(view));
    }

    /// The limit whose holders and line are shown.
    pub(super) fn selected_limit(&self, view: &View) -> Option<LimitId> {
        view.limits.get(self.selections[Panel::Limits as usize].row).map(|limit| limit.id)
    }

    /// The row with the mark.
    pub(super) fn selected_row(&self, panel: Panel) -> usize {
        self.selections[panel as usize].row
    }

    /// The first row to show where `page` fit, so that the mark is among them.
    pub(super) fn scroll(&mut self, panel: Panel, page: usize, rows: usize) -> usize {
        let mark = &mut self.selections[panel as usize];
        mark.page = page;
        let lowest = (mark.row + 1).saturating_sub(page);
        // No room is left empty while rows are out of sight.
        let highest = mark.row.min(rows.saturating_sub(page)).max(lowest);
        mark.first_shown = mark.first_shown.clamp(lowest, highest);
        mark.first_shown
    }
}

impl Selection {
    fn select(&mut self, to: usize, names: &[&str]) {
        self.row = to.min(names.len().saturating_sub(1));
        self.name = names.get(self.row).map(|name| (*name).to_owned());
    }

    fn restore(&mut self, names: &[&str]) {
        let found = names.iter().position(|name| Some(*name) == self.name.as_deref());
        let kept = if self.name.is_some() { self.row } else { 0 };
        self.row = found.unwrap_or(kept.min(names.len().saturating_sub(1)));
    }
}
