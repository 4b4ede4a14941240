//! Whole screens, as they are drawn. `TIDEGATE_BLESS=1` writes them.

use std::collections::BTreeMap;
use std::path::Path;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use tidegate_core::reader::{JobView, QueueView, SlotHolder, WaiterView, WorkerView};
use tidegate_core::tables::WaitReason;
use tidegate_core::{CapacitySource, Limit, LimitId, Millis, TaskId, TaskState, WorkerId};

use super::draw::draw;
use super::screen::{KeyAction, Panel, Screen};
use super::view::{Detail, View};

const NOW: Millis = 1_900_000_000_000;

fn limit(id: i64, name: &str, capacity: Option<u32>, held: u32, waiting: u32) -> Limit {
    let limit = Limit::new(LimitId(id), name, capacity, CapacitySource::Submit, 1, None);
    Limit { held, waiting, parked_total: i64::from(waiting) * 3, ..limit }
}

fn worker_id(number: u32) -> WorkerId {
    WorkerId(format!("01890000-0000-7000-8000-{number:012}").into())
}

fn holder(slot: u32) -> SlotHolder {
    let is_running = slot != 2;
    SlotHolder {
        slot,
        task: TaskId(100 + i64::from(slot)),
        kind: "call".into(),
        worker: is_running.then(|| worker_id(slot % 2)),
        expires_at: is_running.then_some(NOW + 1000 * i64::from(slot) + 500),
    }
}

fn waiter(place: i64) -> WaiterView {
    WaiterView {
        task: TaskId(200 + place),
        kind: "call".into(),
        queue: "default".into(),
        wait_reason: WaitReason::Queued,
        weight: 1,
        due_at: NOW - 90_000,
    }
}

fn tasks(counts: &[(TaskState, u64)]) -> BTreeMap<TaskState, u64> {
    counts.iter().copied().collect()
}

fn view() -> View {
    let counts = [(TaskState::Pending, 3), (TaskState::Blocked, 12), (TaskState::Completed, 4000)];
    let queue = |name: &str, paused_at| QueueView {
        name: name.into(),
        paused_at,
        workers: 2,
        tasks: tasks(&counts[..2]),
    };
    let job = |name: &str, done| JobView {
        name: name.into(),
        concurrency: Some(8),
        min_concurrency: 0,
        priority: 0,
        delay_ms: 0,
        paused: false,
        weight: 1,
        tasks: tasks(&[(TaskState::Processing, 10), (TaskState::Completed, done)]),
    };
    let worker = |number| WorkerView {
        id: worker_id(number),
        alive_until: NOW + 29_000,
        queues: vec!["default".into(), "mail".into()],
        kinds: vec!["call".into()],
        running: 5,
        report: None,
        registered_capacities: Default::default(),
    };
    View {
        now: NOW + 123,
        counts: tasks(&counts),
        limits: vec![
            limit(1, "group:partner", Some(10), 4, 12),
            limit(2, "group:closed", Some(0), 0, 1),
            limit(3, "job:nightly", None, 7, 0),
            limit(4, "group:\u{1b}[2J\u{202e}evil\n你好", Some(3), 3, 0),
        ],
        detail: Some(Detail {
            limit: LimitId(1),
            holders: (0..4).map(holder).collect(),
            waiters: (1..=12).map(waiter).collect(),
        }),
        queues: vec![queue("default", None), queue("mail", Some(NOW - 3_700_000))],
        jobs: vec![job("nightly", 30), job("weekly", 0)],
        workers: vec![worker(0), worker(1)],
    }
}

fn screen() -> Screen {
    Screen::new("sqlite:tidegate.db".to_owned())
}

fn render_screen(width: u16, height: u16, view: &View, screen: &mut Screen) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    terminal.draw(|frame| draw(frame, view, screen)).expect("draw");
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(|y| format!("{}\n", line(y).trim_end())).collect()
}

#[track_caller]
fn assert_screen(name: &str, made: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/top/screens");
    let path = folder.join(format!("{name}.txt"));
    if std::env::var_os("TIDEGATE_BLESS").is_some() {
        std::fs::write(&path, made).expect("write a screen");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(made == kept, "{name} is drawn differently; TIDEGATE_BLESS=1 writes it:\n{made}");
}

fn press(screen: &mut Screen, view: &View, codes: &[KeyCode]) {
    for code in codes {
        let wish = screen.handle_key(KeyEvent::new(*code, KeyModifiers::NONE), view);
        assert_eq!(wish, KeyAction::Continue, "{code:?}");
    }
}

#[test]
fn screen_matches_snapshot_at_every_size() {
    for (width, height) in [(100, 30), (60, 15), (20, 5)] {
        assert_screen(
            &format!("{width}x{height}"),
            &render_screen(width, height, &view(), &mut screen()),
        );
    }
}

#[test]
fn screen_matches_snapshot_in_other_states() {
    let mut screen = screen();
    press(&mut screen, &view(), &[KeyCode::Down, KeyCode::Tab, KeyCode::Char('j')]);
    screen.error = Some("cannot read the store, still trying: a\nb".to_owned());
    assert_screen("another_limit_and_trouble", &render_screen(100, 30, &view(), &mut screen));
    assert_screen("queues_alone", &render_screen(60, 10, &view(), &mut screen));
    assert_screen("empty", &render_screen(80, 20, &View::default(), &mut self::screen()));
}

#[test]
fn screen_draws_at_any_size() {
    for view in [view(), View::default()] {
        for panel in Panel::ALL {
            let mut screen = screen();
            screen.panel = panel;
            for width in [0, 1, 2, 7, 13, 20, 40] {
                for height in (0..10).chain([17, 18, 19]) {
                    render_screen(width, height, &view, &mut screen);
                }
            }
            render_screen(500, 200, &view, &mut screen);
        }
    }
}

#[test]
fn hostile_name_is_escaped_in_its_cell() {
    let drawn = render_screen(100, 30, &view(), &mut screen());
    assert!(drawn.contains(r"group:\u{1b}[2J\u{202e}evil\n"), "{drawn}");
    let is_plain = |c: char| c == '\n' || !c.is_control();
    assert!(drawn.chars().all(is_plain), "{drawn}");
}

#[test]
fn selection_stays_visible_while_scrolling_many_rows() {
    let name = |number: i64| format!("group:{number:05}");
    let limits = (0..5000).map(|number| limit(number, &name(number), Some(1), 1, 0)).collect();
    let view = View { limits, ..view() };
    let mut screen = screen();
    let mut mark_is_at = |keys: &[KeyCode], number: i64| {
        press(&mut screen, &view, keys);
        let drawn = render_screen(80, 24, &view, &mut screen);
        assert!(drawn.contains(&format!("> {}", name(number))), "{number}:\n{drawn}");
        drawn
    };
    mark_is_at(&[], 0);
    let end = mark_is_at(&[KeyCode::End], 4999);
    assert!(end.contains("  group:04995"), "the last page is full:\n{end}");
    mark_is_at(&[KeyCode::Down, KeyCode::Up], 4998);
    mark_is_at(&[KeyCode::Home, KeyCode::Up], 0);
    mark_is_at(&[KeyCode::Char('j'); 40], 40);
    let page = screen_page(&mut screen, &view);
    press(&mut screen, &view, &[KeyCode::PageDown]);
    assert_eq!(screen.selected_row(Panel::Limits), 40 + page);
}

/// How far the first page down goes.
fn screen_page(screen: &mut Screen, view: &View) -> usize {
    let before = screen.selected_row(Panel::Limits);
    press(screen, view, &[KeyCode::PageDown]);
    let page = screen.selected_row(Panel::Limits) - before;
    press(screen, view, &[KeyCode::PageUp]);
    assert!(page > 1 && screen.selected_row(Panel::Limits) == before);
    page
}

#[test]
fn selection_stays_with_its_limit() {
    let mut view = view();
    let mut screen = screen();
    screen.update(&view);
    view.limits.rotate_right(1);
    screen.update(&view);
    assert_eq!(screen.selected_limit(&view), Some(LimitId(4)), "nobody chose: the first");
    press(&mut screen, &view, &[KeyCode::Down]);
    assert_eq!(screen.selected_limit(&view), Some(LimitId(1)));
    view.limits.reverse();
    screen.update(&view);
    assert_eq!(screen.selected_limit(&view), Some(LimitId(1)));
    view.limits.retain(|limit| limit.id != LimitId(1));
    screen.update(&view);
    assert!(screen.selected_limit(&view).is_some(), "the limit went away");
    view.limits.clear();
    screen.update(&view);
    assert_eq!(screen.selected_limit(&view), None);
    press(&mut screen, &view, &[KeyCode::End, KeyCode::Up, KeyCode::PageDown]);
}

#[test]
fn keys_cycle_panels_and_quit() {
    let mut screen = screen();
    let mut panels = Vec::new();
    for code in [KeyCode::Tab, KeyCode::Tab, KeyCode::Tab, KeyCode::Tab, KeyCode::BackTab] {
        press(&mut screen, &view(), &[code]);
        panels.push(screen.panel);
    }
    use Panel::{Jobs, Limits, Queues, Workers};
    assert_eq!(panels, [Queues, Jobs, Workers, Limits, Workers]);
    press(&mut screen, &view(), &[KeyCode::Char('c'), KeyCode::Enter, KeyCode::F(5)]);
    let leave = [
        KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE),
        KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE),
        KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL),
    ];
    assert!(leave.into_iter().all(|key| screen.handle_key(key, &view()) == KeyAction::Quit));
}
