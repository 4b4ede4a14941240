//! Draws a view. Nothing here reads a store, a clock or a key.

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use tidegate_core::TaskState;
use tidegate_measure::table::printable;

use super::panels::{self, List};
use super::screen::{Panel, Screen};
use super::view::View;
use crate::output::format_date;

const HELP: &str = "q quit  Tab panel  arrows row";

/// From this height on all lists are shown, below it the chosen one alone.
const ALL_HEIGHT_MIN: u16 = 15;

/// What the first column has in any case, the others as far as there is room.
const NAME_WIDTH_MIN: u16 = 12;

/// What any other column has at most: an id of a worker fits, a list of a hundred queues is cut.
const COLUMN_WIDTH_MAX: usize = 36;

/// Between two columns.
const COLUMN_GAP: u16 = 2;

/// Draws all of it, as far as there is room.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View, screen: &mut Screen) {
    let Rect { width, height, .. } = frame.area();
    let header_height = if height >= 8 { 2 } else { height.saturating_sub(2).min(1) };
    let footer_height = height.saturating_sub(3).min(1);
    let body_height = height - header_height - footer_height;
    for (y, line) in header(view, screen).into_iter().take(header_height.into()).enumerate() {
        frame.render_widget(line, Rect::new(0, y as u16, width, 1));
    }
    body(frame, view, screen, Rect::new(0, header_height, width, body_height));
    if footer_height > 0 {
        frame.render_widget(footer(screen), Rect::new(0, height - 1, width, 1));
    }
}

fn header(view: &View, screen: &Screen) -> [Line<'static>; 2] {
    let store = printable(&screen.store);
    let now = format_date(view.now - view.now.rem_euclid(1000));
    let first = format!("tidegate top  {now}  {store}");
    let count = |state: &TaskState| {
        format!("{} {}", view.counts.get(state).copied().unwrap_or(0), state.as_str())
    };
    let rate = screen.rate.per_second.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}"));
    // The rate stands first: it is what changes, and a narrow terminal cuts the end.
    let counts: Vec<String> = std::iter::once(format!("{rate} finished/s"))
        .chain(TaskState::ALL.iter().map(count))
        .collect();
    [Line::styled(first, Modifier::BOLD), Line::raw(counts.join("  "))]
}

fn footer(screen: &Screen) -> Line<'static> {
    match &screen.error {
        Some(trouble) => Line::styled(printable(trouble), Modifier::REVERSED),
        None => Line::styled(HELP, Modifier::DIM),
    }
}

/// Where a list is drawn: a panel, or the holders and the line of the chosen limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Section {
    Panel(Panel),
    Detail,
}

fn body(frame: &mut Frame<'_>, view: &View, screen: &mut Screen, area: Rect) {
    let parts = visible_sections(area.height, screen.panel);
    let wants: Vec<usize> = parts.iter().map(|part| wanted_height(*part, view)).collect();
    let mut y = area.y;
    for (part, height) in parts.iter().zip(distribute_height(area.height, &wants)) {
        let place = Rect::new(area.x, y, area.width, height);
        match part {
            Section::Panel(panel) => draw_panel(frame, view, screen, *panel, place),
            Section::Detail => draw_detail(frame, view, screen, place),
        }
        y += height;
    }
}

fn visible_sections(height: u16, chosen: Panel) -> Vec<Section> {
    let with_detail = |panel: Panel| {
        let detail = (panel == Panel::Limits && height >= 6).then_some(Section::Detail);
        std::iter::once(Section::Panel(panel)).chain(detail)
    };
    if height >= ALL_HEIGHT_MIN {
        return Panel::ALL.into_iter().flat_map(with_detail).collect();
    }
    with_detail(chosen).collect()
}

/// Lines for the rows and their heads. An empty list says so in a row.
fn wanted_height(part: Section, view: &View) -> usize {
    let rows = match part {
        Section::Panel(panel) => panels::row_count(panel, view),
        Section::Detail if view.limits.is_empty() => return 0,
        Section::Detail => view.detail.as_ref().map_or(0, panels::detail_length),
    };
    rows.max(1) + 1
}

/// Deals out the height, a line to each in turn as long as it wants one.
fn distribute_height(height: u16, wants: &[usize]) -> Vec<u16> {
    let mut given = vec![0_u16; wants.len()];
    let mut left = height;
    while left > 0 && given.iter().zip(wants).any(|(given, want)| usize::from(*given) < *want) {
        for (given, want) in given.iter_mut().zip(wants) {
            if left > 0 && usize::from(*given) < *want {
                *given += 1;
                left -= 1;
            }
        }
    }
    given
}

fn draw_panel(frame: &mut Frame<'_>, view: &View, screen: &mut Screen, panel: Panel, place: Rect) {
    let length = panels::row_count(panel, view);
    let page = usize::from(place.height.saturating_sub(1));
    let first = screen.scroll(panel, page.max(1), length);
    let mut list = panels::list(panel, view, first, page);
    let is_chosen = screen.panel == panel;
    list.heads[0] = title(&list.heads[0], length, is_chosen);
    // The mark of the limits is always there: the holders below are those of the limit it marks.
    let is_marked = length > 0 && (is_chosen || panel == Panel::Limits);
    let marked = is_marked.then(|| screen.selected_row(panel).saturating_sub(first));
    render(frame, list, marked, is_chosen, place);
}

fn title(name: &str, length: usize, is_chosen: bool) -> String {
    let count = if length == 0 { String::new() } else { format!(" {length}") };
    if is_chosen { format!("[{name}{count}]") } else { format!(" {name}{count}") }
}

fn draw_detail(frame: &mut Frame<'_>, view: &View, screen: &Screen, place: Rect) {
    let limit = view.limits.iter().find(|limit| Some(limit.id) == screen.selected_limit(view));
    let Some(limit) = limit else { return };
    let page = usize::from(place.height.saturating_sub(1));
    // The mark may have moved on since the last look.
    let mut list = match view.detail.as_ref().filter(|detail| detail.limit == limit.id) {
        Some(detail) => panels::detail(limit, detail, view.now, page),
        None => {
            List { heads: vec![limit.name.to_string()], rows: Vec::new(), empty_text: "looking" }
        }
    };
    list.heads[0].insert(0, ' ');
    render(frame, list, None, false, place);
}

fn render(frame: &mut Frame<'_>, list: List, marked: Option<usize>, bright: bool, place: Rect) {
    let mut lines: Vec<Vec<String>> = vec![list.heads];
    let nothing = list.rows.is_empty().then(|| vec![list.empty_text.to_owned()]);
    lines.extend(list.rows.into_iter().chain(nothing));
    lines.truncate(place.height.into());
    for (at, cells) in lines.iter_mut().enumerate() {
        cells.iter_mut().for_each(|cell| *cell = printable(cell));
        if at > 0 {
            cells[0].insert_str(0, if marked == Some(at - 1) { "> " } else { "  " });
        }
    }
    let columns = column_widths(&lines, place.width);
    for (at, cells) in lines.iter().enumerate() {
        let style = match at {
            0 if bright => Modifier::BOLD | Modifier::REVERSED,
            0 => Modifier::DIM | Modifier::REVERSED,
            _ if bright && marked == Some(at - 1) => Modifier::BOLD,
            _ => Modifier::empty(),
        };
        let line = Rect { y: place.y + at as u16, height: 1, ..place };
        render_line(frame.buffer_mut(), cells, &columns, line, style.into());
    }
}

/// The first cell stands at the left, the others at the right of their columns. A cell that is
/// alone has the whole line.
fn render_line(buffer: &mut Buffer, cells: &[String], columns: &[u16], line: Rect, style: Style) {
    buffer.set_style(line, style);
    if let [alone] = cells {
        buffer.set_stringn(line.x, line.y, alone, line.width.into(), style);
        return;
    }
    let mut x = line.x;
    for (at, (cell, width)) in cells.iter().zip(columns).enumerate() {
        let used = Line::raw(cell).width().min((*width).into()) as u16;
        let start = if at == 0 { x } else { x + width - used };
        buffer.set_stringn(start, line.y, cell, used.into(), style);
        x += width + COLUMN_GAP;
    }
}

/// The widths of the columns that there is room for. The first takes what is left.
fn column_widths(lines: &[Vec<String>], width: u16) -> Vec<u16> {
    let mut columns = Vec::new();
    let mut left = width;
    for column in 1..lines.first().map_or(0, Vec::len) {
        let width_of =
            |cells: &Vec<String>| cells.get(column).map_or(0, |cell| Line::raw(cell).width());
        let widest = lines.iter().map(width_of).max().unwrap_or(0).min(COLUMN_WIDTH_MAX) as u16;
        let rest = left.checked_sub(widest + COLUMN_GAP).filter(|rest| *rest >= NAME_WIDTH_MIN);
        let Some(rest) = rest else { break };
        left = rest;
        columns.push(widest);
    }
    columns.insert(0, left);
    columns
}
