//! A terminal to run the binary in: a real one for the binary, and one that can be read here.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, Termios, Winsize, tcgetattr, tcsetwinsize};

/// No wait of a test is longer.
const WAIT_TIMEOUT: Duration = Duration::from_secs(30);

/// What the binary has drawn so far.
struct ScreenState {
    parser: Mutex<vt100::Parser>,
    changed: Condvar,
}

impl ScreenState {
    fn parser(&self) -> MutexGuard<'_, vt100::Parser> {
        self.parser.lock().expect("nobody panics with it")
    }
}

/// A terminal with a program in it.
pub(crate) struct Terminal {
    controller: File,
    /// The program's side. It stays open, so that what was written last can be read.
    terminal_side: OwnedFd,
    modes_before: Termios,
    screen_state: Arc<ScreenState>,
    pid: Pid,
    ended: Receiver<ExitStatus>,
    has_ended: bool,
}

impl Terminal {
    /// Starts the program in a terminal of this size.
    pub(crate) fn start(command: &Command, columns: u16, rows: u16) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags).expect("open a terminal");
        grantpt(&ours).expect("grant it");
        unlockpt(&ours).expect("unlock it");
        let terminal_side = ioctl_tiocgptpeer(&ours, flags).expect("open the other side");
        tcsetwinsize(&ours, size(columns, rows)).expect("set its size");
        let modes_before = tcgetattr(&terminal_side).expect("its modes");
        let mut child = in_terminal(command, &terminal_side).spawn().expect("start the program");
        let pid = Pid::from_child(&child);
        let (sender, ended) = mpsc::channel();
        thread::spawn(move || sender.send(child.wait().expect("wait for the program")));
        let controller = File::from(ours);
        let screen_state = Arc::new(ScreenState {
            parser: Mutex::new(vt100::Parser::new(rows, columns, 0)),
            changed: Condvar::new(),
        });
        spawn_reader(controller.try_clone().expect("share the terminal"), screen_state.clone());
        Self { controller, terminal_side, modes_before, screen_state, pid, ended, has_ended: false }
    }

    /// Types.
    pub(crate) fn type_in(&mut self, keys: &str) {
        self.controller.write_all(keys.as_bytes()).expect("type");
    }

    /// Sends a signal to the program.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).expect("send a signal");
    }

    /// Changes the size, as a person does who pulls at the window.
    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        // The picture changes first: the program may draw at once. It stays large enough for vt100,
        // which panics on a few columns; what the program draws has its place from the top left.
        self.screen_state.parser().screen_mut().set_size(rows.max(5), columns.max(20));
        tcsetwinsize(&self.controller, size(columns, rows)).expect("set the size");
    }

    /// Waits until the screen shows all of these; gives what it shows.
    #[track_caller]
    pub(crate) fn wait_for_text(&self, texts: &[&str]) -> String {
        self.wait_until(&format!("{texts:?}"), |screen| {
            let contents = screen.contents();
            texts.iter().all(|text| contents.contains(text))
        })
    }

    /// Waits until the screen is as wanted; gives what it shows.
    #[track_caller]
    pub(crate) fn wait_until(
        &self,
        what: &str,
        is_good: impl Fn(&vt100::Screen) -> bool,
    ) -> String {
        let (parser, timeout) = self
            .screen_state
            .changed
            .wait_timeout_while(self.screen_state.parser(), WAIT_TIMEOUT, |parser| {
                !is_good(parser.screen())
            })
            .expect("nobody panics with it");
        let contents = parser.screen().contents();
        drop(parser);
        assert!(!timeout.timed_out(), "waited for {what}; the screen shows:\n{contents}");
        contents
    }

    /// Waits for the end of the program, which must leave the terminal as it was.
    #[track_caller]
    pub(crate) fn end(&mut self) -> ExitStatus {
        let status = self.ended.recv_timeout(WAIT_TIMEOUT).expect("the program ends");
        self.has_ended = true;
        let is_back = |screen: &vt100::Screen| !screen.alternate_screen() && !screen.hide_cursor();
        self.wait_until("the plain screen and its cursor", is_back);
        assert_eq!(self.modes().local_modes, self.modes_before.local_modes);
        assert_eq!(self.modes().input_modes, self.modes_before.input_modes);
        assert_eq!(self.modes().output_modes, self.modes_before.output_modes);
        status
    }

    /// Whether the program has taken the terminal over.
    pub(crate) fn is_full_screen(&self) -> bool {
        let is_raw = !self.modes().local_modes.contains(LocalModes::ICANON);
        is_raw && self.screen_state.parser().screen().alternate_screen()
    }

    fn modes(&self) -> Termios {
        tcgetattr(&self.terminal_side).expect("the modes of the terminal")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if !self.has_ended && self.ended.try_recv().is_err() {
            let _ = kill_process(self.pid, Signal::KILL);
        }
    }
}

/// `setsid --ctty` makes the terminal the program's own, as a shell in a window has it: a change of
/// the size is told by a signal, and no other terminal can be reached.
fn in_terminal(command: &Command, theirs: &OwnedFd) -> Command {
    let side = || Stdio::from(theirs.try_clone().expect("share the terminal"));
    let mut inside = Command::new("setsid");
    inside.arg("--ctty").arg(command.get_program()).args(command.get_args());
    inside.current_dir(command.get_current_dir().expect("a folder"));
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => inside.env(name, value),
            None => inside.env_remove(name),
        };
    }
    inside.env("TERM", "xterm-256color").stdin(side()).stdout(side()).stderr(side());
    inside
}

fn spawn_reader(mut ours: File, picture: Arc<ScreenState>) {
    thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = ours.read(&mut bytes) {
            picture.parser().process(&bytes[..length]);
            picture.changed.notify_all();
        }
    });
}

fn size(columns: u16, rows: u16) -> Winsize {
    Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 }
}
