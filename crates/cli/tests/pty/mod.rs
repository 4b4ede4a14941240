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
const PATIENCE: Duration = Duration::from_secs(30);

/// What the binary has drawn so far.
struct Picture {
    parser: Mutex<vt100::Parser>,
    changed: Condvar,
}

impl Picture {
    fn parser(&self) -> MutexGuard<'_, vt100::Parser> {
        self.parser.lock().expect("nobody panics with it")
    }
}

/// A terminal with a program in it.
pub(crate) struct Terminal {
    ours: File,
    /// The program's side. It stays open, so that what was written last can be read.
    theirs: OwnedFd,
    before: Termios,
    picture: Arc<Picture>,
    pid: Pid,
    ended: Receiver<ExitStatus>,
    is_over: bool,
}

impl Terminal {
    /// Starts the program in a terminal of this size.
    pub(crate) fn start(command: &Command, columns: u16, rows: u16) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags).expect("open a terminal");
        grantpt(&ours).expect("grant it");
        unlockpt(&ours).expect("unlock it");
        let theirs = ioctl_tiocgptpeer(&ours, flags).expect("open the other side");
        tcsetwinsize(&ours, size(columns, rows)).expect("set its size");
        let before = tcgetattr(&theirs).expect("its modes");
        let mut child = in_terminal(command, &theirs).spawn().expect("start the program");
        let pid = Pid::from_child(&child);
        let (sender, ended) = mpsc::channel();
        thread::spawn(move || sender.send(child.wait().expect("wait for the program")));
        let ours = File::from(ours);
        let picture = Arc::new(Picture {
            parser: Mutex::new(vt100::Parser::new(rows, columns, 0)),
            changed: Condvar::new(),
        });
        watch(ours.try_clone().expect("share the terminal"), picture.clone());
        Self { ours, theirs, before, picture, pid, ended, is_over: false }
    }

    /// Types.
    pub(crate) fn type_in(&mut self, keys: &str) {
        self.ours.write_all(keys.as_bytes()).expect("type");
    }

    /// Sends a signal to the program.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).expect("send a signal");
    }

    /// Changes the size, as a person does who pulls at the window.
    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        // The picture changes first: the program may draw at once. It stays large enough for vt100,
        // which panics on a few columns; what the program draws has its place from the top left.
        self.picture.parser().screen_mut().set_size(rows.max(5), columns.max(20));
        tcsetwinsize(&self.ours, size(columns, rows)).expect("set the size");
    }

    /// Waits until the screen shows all of these; gives what it shows.
    #[track_caller]
    pub(crate) fn shows(&self, texts: &[&str]) -> String {
        self.until(&format!("{texts:?}"), |screen| {
            let contents = screen.contents();
            texts.iter().all(|text| contents.contains(text))
        })
    }

    /// Waits until the screen is as wanted; gives what it shows.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, is_good: impl Fn(&vt100::Screen) -> bool) -> String {
        let (parser, timeout) = self
            .picture
            .changed
            .wait_timeout_while(self.picture.parser(), PATIENCE, |parser| !is_good(parser.screen()))
            .expect("nobody panics with it");
        let contents = parser.screen().contents();
        drop(parser);
        assert!(!timeout.timed_out(), "waited for {what}; the screen shows:\n{contents}");
        contents
    }

    /// Waits for the end of the program, which must leave the terminal as it was.
    #[track_caller]
    pub(crate) fn end(&mut self) -> ExitStatus {
        let status = self.ended.recv_timeout(PATIENCE).expect("the program ends");
        self.is_over = true;
        let is_back = |screen: &vt100::Screen| !screen.alternate_screen() && !screen.hide_cursor();
        self.until("the plain screen and its cursor", is_back);
        assert_eq!(self.modes().local_modes, self.before.local_modes);
        assert_eq!(self.modes().input_modes, self.before.input_modes);
        assert_eq!(self.modes().output_modes, self.before.output_modes);
        status
    }

    /// Whether the program has taken the terminal over.
    pub(crate) fn is_taken(&self) -> bool {
        let is_raw = !self.modes().local_modes.contains(LocalModes::ICANON);
        is_raw && self.picture.parser().screen().alternate_screen()
    }

    fn modes(&self) -> Termios {
        tcgetattr(&self.theirs).expect("the modes of the terminal")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if !self.is_over && self.ended.try_recv().is_err() {
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

fn watch(mut ours: File, picture: Arc<Picture>) {
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
