//! `tidegate top` in a real terminal, on a store where real tasks run.

use std::process::{Child, Stdio};

use crate::common::{Shell, expect_output, normalize_output};
use crate::pty::Terminal;
use insta::assert_snapshot;
use rustix::process::Signal;
use serde_json::Value;
use tidegate_testkit::postgres::Server;

const HELP: &str = "q quit";
const TROUBLE: &str = "cannot read the store, still trying: ";

/// A worker process. It is killed at the end.
struct Worker(Child);

impl Worker {
    fn start(shell: &Shell) -> Self {
        let mut command = shell.command(&["worker"]);
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("start a worker"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A store with a limit of two that five long tasks want, and another that nobody wants.
fn store() -> Shell {
    let shell = Shell::new();
    let submit = ["submit", "sleep", "--payload", r#"{"ms": 3600000}"#, "--job", "nightly"];
    for _ in 0..5 {
        shell.run_ok(&[&submit[..], &["--group", "partner", "--limit", "2"]].concat());
    }
    shell.run_ok(&["concurrency", "set", "zebra", "--limit", "7"]);
    shell
}

fn top(shell: &Shell, columns: u16, rows: u16) -> Terminal {
    let terminal = Terminal::start(&shell.command(&["top", "--interval", "100ms"]), columns, rows);
    terminal.wait_until("the screen", vt100::Screen::alternate_screen);
    terminal
}

/// Waits until there are rows that begin so and have this in them, all at once: what is read from
/// the terminal may end in the middle of a drawing.
#[track_caller]
fn shows_rows(terminal: &Terminal, rows: &[(String, String)]) {
    let is_there = |contents: &str, (start, part): &(String, String)| {
        contents.lines().any(|line| line.starts_with(&**start) && line.contains(&**part))
    };
    terminal.wait_until(&format!("{rows:?}"), |screen| {
        let contents = screen.contents();
        rows.iter().all(|row| is_there(&contents, row))
    });
}

#[track_caller]
fn quit(mut terminal: Terminal, keys: &str) {
    terminal.type_in(keys);
    assert_eq!(terminal.end().code(), Some(0));
}

#[test]
fn top_shows_running_and_waiting_tasks() {
    let shell = store();
    let _worker = Worker::start(&shell);
    let terminal = top(&shell, 110, 40);
    terminal.wait_for_text(&["2/2", "slot 1", "place 3", "[limits 3]"]);
    assert!(terminal.is_full_screen());
    let status = shell.run_ok(&["concurrency", "status", "group:partner", "--json"]);
    let status: Value = serde_json::from_str(&status).expect("JSON");
    let (holders, line) = (status["holders"].as_array(), status["line"].as_array());
    let (holders, line) = (holders.expect("holders"), line.expect("a line"));
    assert_eq!((holders.len(), line.len()), (2, 3), "{status}");
    let worker = holders[0]["worker"].as_str().expect("a worker");
    let mut rows = vec![
        ("> group:partner".to_owned(), "##########".to_owned()),
        ("  nightly".to_owned(), " 0/5 ".to_owned()),
        ("  default".to_owned(), " 2 ".to_owned()),
        (format!("  {worker}"), " default ".to_owned()),
    ];
    for (slot, holder) in holders.iter().enumerate() {
        let start = format!("  slot {slot} ");
        let parts = [format!(" {} ", holder["task"]), " left ".to_owned(), worker.to_owned()];
        rows.extend(parts.map(|part| (start.clone(), part)));
    }
    for (place, waiter) in line.iter().enumerate() {
        rows.push((format!("  place {} ", place + 1), format!(" {} ", waiter["task"])));
    }
    shows_rows(&terminal, &rows);
    quit(terminal, "q");
}

#[test]
fn top_shows_changes() {
    let shell = store();
    let terminal = top(&shell, 100, 30);
    terminal.wait_for_text(&["no worker lives", "group:partner"]);
    let _worker = Worker::start(&shell);
    terminal.wait_for_text(&[" workers 1", "2/2"]);
    shell.run_ok(&["concurrency", "set", "partner", "--limit", "4"]);
    terminal.wait_for_text(&["4/4", "operator", "slot 3", "place 1"]);
    shell.run_ok(&["queue", "pause", "default"]);
    shows_rows(&terminal, &[("  default".to_owned(), "s  ".to_owned())]);
    quit(terminal, "q");
}

#[test]
fn top_keys_move_selection_and_quit() {
    let shell = store();
    let mut terminal = top(&shell, 100, 30);
    terminal.wait_for_text(&["[limits 3]", HELP]);
    terminal.type_in("j");
    terminal.wait_for_text(&["> group:zebra", "nobody holds it, nobody waits"]);
    terminal.type_in("\x1b[B\x1b[B\x1b[A\x1b[A");
    terminal.wait_for_text(&["> group:partner", "  group:zebra"]);
    terminal.type_in("G");
    terminal.wait_for_text(&["> job:nightly"]);
    terminal.type_in("\t");
    terminal.wait_for_text(&[" limits 3", "[queues 1]", "> default"]);
    terminal.type_in("\t");
    terminal.wait_for_text(&["[jobs 1]", "> nightly"]);
    terminal.type_in("\x1b[Z");
    terminal.wait_for_text(&["[queues 1]"]);
    quit(terminal, "\x1b");
    quit(top(&shell, 100, 30), "\x03");
}

#[test]
fn top_draws_at_any_terminal_size() {
    let shell = store();
    let mut terminal = top(&shell, 100, 30);
    terminal.wait_for_text(&["[limits 3]", " queues 1", " jobs 1", " workers"]);
    for (columns, rows) in [(20, 5), (1, 1), (3, 2), (60, 12)] {
        terminal.resize(columns, rows);
    }
    terminal.wait_until("the limits alone", |screen| {
        let contents = screen.contents();
        contents.contains("[limits 3]") && contents.contains(HELP) && !contents.contains(" queues")
    });
    terminal.resize(130, 50);
    terminal.wait_for_text(&["[limits 3]", " queues 1", " jobs 1", " workers", "no worker lives"]);
    terminal.resize(1, 1);
    terminal.wait_until("a single cell", |screen| screen.contents().trim() == "[");
    // Not by a key: one that comes in the same moment as a new size, crossterm reads with the next.
    terminal.signal(Signal::TERM);
    assert_eq!(terminal.end().code(), Some(0));
}

#[test]
fn top_restores_terminal_on_signal() {
    let shell = store();
    for signal in [Signal::TERM, Signal::INT] {
        let mut terminal = top(&shell, 80, 24);
        terminal.wait_for_text(&[HELP]);
        terminal.signal(signal);
        assert_eq!(terminal.end().code(), Some(0));
    }
}

#[test]
fn top_shows_store_error_and_retries() {
    let shell = store();
    let terminal = top(&shell, 100, 30);
    terminal.wait_for_text(&[HELP, "group:partner"]);
    let database = rusqlite::Connection::open(shell.path("tidegate.db")).expect("open the file");
    database.execute_batch("alter table limits rename to hidden").expect("hide a table");
    terminal.wait_for_text(&[TROUBLE, "group:partner"]);
    database.execute_batch("alter table hidden rename to limits").expect("bring it back");
    terminal.wait_until("the end of the trouble", |screen| screen.contents().contains(HELP));
    quit(terminal, "q");
}

/// Somebody locks a table of the database, then the database is dropped.
#[tokio::test(flavor = "multi_thread")]
async fn top_responds_to_keys_while_store_is_unresponsive() {
    let (shell, database) = (Shell::new(), Server::shared().database());
    let url = database.url();
    shell.run_ok(&["submit", "noop", "--group", "partner", "--limit", "2", "--store", &url]);
    let command = shell.command(&["top", "--interval", "100ms", "--store", &url]);
    let mut terminal = Terminal::start(&command, 100, 30);
    terminal.wait_for_text(&[HELP, "group:partner"]);
    let (client, connection) =
        tokio_postgres::connect(&url, tokio_postgres::NoTls).await.expect("connect");
    let connection = tokio::spawn(connection);
    let lock = "begin; lock table tidegate.limits in access exclusive mode";
    client.batch_execute(lock).await.expect("lock a table");
    terminal.wait_for_text(&["the store has not answered for ", "group:partner"]);
    terminal.type_in("\t");
    terminal.wait_for_text(&["[queues 1]", "the store has not answered for "]);
    client.batch_execute("rollback").await.expect("unlock it");
    terminal.wait_for_text(&[HELP]);
    drop(client);
    connection.await.expect("the connection").expect("close it");
    drop(database);
    terminal.wait_for_text(&[TROUBLE, "group:partner"]);
    quit(terminal, "q");
}

#[test]
fn top_shows_empty_store_and_rejects_missing_one() {
    let shell = Shell::new();
    let mut terminal = Terminal::start(&shell.command(&["top"]), 80, 24);
    assert_eq!(terminal.end().code(), Some(1));
    terminal.wait_for_text(&["error: ", "tidegate.db"]);
    shell.run_ok(&["migrate"]);
    let terminal = top(&shell, 80, 24);
    terminal.wait_for_text(&["no limits", "no queue", "no jobs", "no worker", "0 pending"]);
    quit(terminal, "q");
}

#[test]
fn top_without_terminal_names_list_commands() {
    let told = store().run(&["top"]);
    assert_snapshot!(
        expect_output(1, &[], &normalize_output(&told)),
        @"error: top needs a terminal to draw on; `tidegate concurrency status --json` and the other lists go anywhere"
    );
}
