//! Worker processes on one store, seen by the records that they write.

pub(crate) mod barrier;

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tidegate_core::{JobSpec, NewTask, Submission, TaskId};
use tidegate_measure::history::{
    ExpectedLimits, Outcome, Process, Record, Report, SignalRecord as Signalled, StartRecord,
    Writer, verify,
};
use tidegate_store::{OpenOptions, StoreHandle};
use tidegate_testkit::postgres::{Database, Server};
use tidegate_testkit::wait;
use tokio::runtime::Runtime;

use crate::common::Shell;

/// No test waits longer than this for a record.
const RECORD_TIMEOUT: Duration = Duration::from_secs(60);

/// Tasks in one submit.
const SUBMIT_TASKS: usize = 1_000;

/// A store of its own, and worker processes on it. They are killed with the value.
pub(crate) struct Fleet {
    shell: Shell,
    url: String,
    runtime: Runtime,
    opened: Option<StoreHandle>,
    workers: Vec<Child>,
    readers: Vec<JoinHandle<()>>,
    sender: Sender<Record>,
    receiver: Receiver<Record>,
    /// What was told so far.
    pub(crate) records: Vec<Record>,
    /// Gone after everything that uses it.
    _database: Option<Database>,
}

impl Fleet {
    /// One on each store that processes can share.
    pub(crate) fn on_each_store() -> [Self; 2] {
        let database = Server::shared().database();
        let url = database.url();
        [Self::new("sqlite:tidegate.db".to_owned(), None), Self::new(url, Some(database))]
    }

    fn new(url: String, database: Option<Database>) -> Self {
        let shell = Shell::new();
        let url = match url.strip_prefix("sqlite:") {
            Some(file) => format!("sqlite:{}", shell.path(file).display()),
            None => url,
        };
        let runtime = Runtime::new().expect("a runtime");
        let opened = runtime.block_on(async {
            let opened = tidegate_store::open(&url, OpenOptions::default()).await.expect("open");
            opened.store.migrate().await.expect("migrate");
            opened
        });
        let (sender, receiver) = channel();
        Self {
            shell,
            url,
            runtime,
            opened: Some(opened),
            workers: Vec::new(),
            readers: Vec::new(),
            sender,
            receiver,
            records: Vec::new(),
            _database: database,
        }
    }

    fn opened(&self) -> &StoreHandle {
        self.opened.as_ref().expect("open to the end")
    }

    /// Stores tasks with the jobs that they bring.
    pub(crate) fn submit(&self, jobs: &[JobSpec], tasks: &[NewTask]) -> Vec<TaskId> {
        let store = &self.opened().store;
        let submit = async {
            let mut ids = Vec::new();
            for tasks in tasks.chunks(SUBMIT_TASKS) {
                let (jobs, tasks) = (jobs.to_vec(), tasks.to_vec());
                let submission = Submission { jobs, tasks, ..Submission::default() };
                ids.extend(store.submit(submission).await.expect("submit"));
            }
            ids.into_iter().map(|submitted| submitted.task).collect()
        };
        self.runtime.block_on(submit)
    }

    /// Cancels tasks.
    pub(crate) fn cancel(&self, tasks: &[TaskId]) {
        self.runtime.block_on(self.opened().store.cancel(tasks.to_vec())).expect("cancel");
    }

    /// Starts a worker; returns when it has asked for work. It writes into a pipe, so that the test
    /// hears of a record as soon as it is written, also of the last before a kill.
    pub(crate) fn start(&mut self, arguments: &[&str]) -> usize {
        let number = self.workers.len();
        let pipe = self.shell.path(&format!("worker-{number}"));
        let made = Command::new("mkfifo").arg(&pipe).status().expect("run mkfifo");
        assert!(made.success(), "no pipe for the history");
        let (path, tell) = (pipe.clone(), self.sender.clone());
        self.readers.push(std::thread::spawn(move || {
            let lines = BufReader::new(File::open(path).expect("open the pipe")).lines();
            for line in lines {
                let record = serde_json::from_str(&line.expect("UTF-8")).expect("a record");
                let _ = tell.send(record);
            }
        }));
        let log = File::create(self.shell.path(&format!("worker-{number}.log"))).expect("a log");
        let mut command = self.shell.command(&["worker", "--store", &self.url]);
        command.arg("--history").arg(&pipe).args(arguments);
        command.stdout(log.try_clone().expect("a handle")).stderr(log);
        self.workers.push(command.spawn().expect("start a worker"));
        let pid = self.pid(number);
        self.wait_for(
            "the first claim of a worker",
            |record| matches!(record, Record::Claim(claim) if claim.process.pid == pid),
        );
        number
    }

    pub(crate) fn pid(&self, worker: usize) -> u32 {
        self.workers[worker].id()
    }

    /// The worker that a record is of.
    pub(crate) fn worker_of(&self, process: &Process) -> usize {
        let worker = self.workers.iter().position(|worker| worker.id() == process.pid);
        worker.expect("a process of the fleet")
    }

    /// Returns the first record from now on that is what is waited for.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, what: &str, is_it: impl Fn(&Record) -> bool) -> Record {
        loop {
            let record = self.receiver.recv_timeout(RECORD_TIMEOUT);
            let record = record.unwrap_or_else(|_| panic!("waited in vain for {what}"));
            self.records.push(record.clone());
            if is_it(&record) {
                return record;
            }
        }
    }

    /// Waits for the next handler that enters.
    #[track_caller]
    pub(crate) fn wait_for_start(&mut self) -> StartRecord {
        match self.wait_for("a handler", |record| matches!(record, Record::Enter(_))) {
            Record::Enter(enter) => enter,
            _ => unreachable!("it is an enter"),
        }
    }

    /// Waits until so many attempts have ended in this way, from the first of all on.
    #[track_caller]
    pub(crate) fn wait_for_outcomes(&mut self, number: usize, outcome: Outcome) {
        let so_far = self.records.iter().filter(|record| is_completion(record, outcome)).count();
        for done in so_far..number {
            let what = format!("{number} to be {outcome:?}, of which {done} are");
            self.wait_for(&what, |record| is_completion(record, outcome));
        }
    }

    /// Waits until so many handlers have entered, from the first of all on; their tasks, in this order.
    #[track_caller]
    pub(crate) fn wait_for_starts(&mut self, number: usize) -> Vec<i64> {
        for _ in start_records(&self.records).count()..number {
            self.wait_for_start();
        }
        start_records(&self.records).map(|enter| enter.task).collect()
    }

    /// Kills a worker at once; returns when it is dead, with the time of that.
    pub(crate) fn kill(&mut self, worker: usize) -> u64 {
        let pid = self.pid(worker);
        self.workers[worker].kill().expect("kill");
        self.workers[worker].wait().expect("wait");
        let signal = Signalled::now(Process::by_pid(pid));
        let t_ns = signal.t_ns;
        self.records.push(Record::Kill(signal));
        t_ns
    }

    /// Asks a worker to let what runs finish, and to end.
    pub(crate) fn terminate(&self, worker: usize) {
        kill_process(Pid::from_child(&self.workers[worker]), Signal::TERM).expect("send a signal");
    }

    /// Waits until a worker has said something.
    #[track_caller]
    pub(crate) fn wait_for_log(&self, worker: usize, text: &str) {
        let log = self.shell.path(&format!("worker-{worker}.log"));
        wait::until(&format!("the log has {text:?}"), || {
            std::fs::read_to_string(&log).is_ok_and(|log| log.contains(text))
        });
    }

    pub(crate) fn wait(&mut self, worker: usize) -> ExitStatus {
        self.workers[worker].wait().expect("wait")
    }

    /// Ends all that live, and takes in the rest of their records.
    pub(crate) fn end_all(&mut self) {
        for worker in 0..self.workers.len() {
            if self.workers[worker].try_wait().expect("look").is_none() {
                self.terminate(worker);
                assert!(self.wait(worker).success(), "a worker fails as it ends");
            }
        }
        for reader in self.readers.drain(..) {
            reader.join().expect("a pipe is read to its end");
        }
        self.records.extend(self.receiver.try_iter());
    }

    /// What the history proves.
    pub(crate) fn report(&self, expected: &ExpectedLimits) -> Report {
        let path = self.shell.path("history");
        // Somebody may have asked before.
        let _ = std::fs::remove_file(&path);
        let writer = Writer::append(&path).expect("make a file");
        self.records.iter().for_each(|record| writer.write(record).expect("write"));
        verify(&[path], expected).expect("a history")
    }

    /// All is done, nothing is left over, and no rule was broken.
    #[track_caller]
    pub(crate) fn assert_clean(&self) -> Report {
        let report = self.report(&ExpectedLimits::default());
        assert!(report.is_clean(), "{report}");
        self.shell.run_ok(&["doctor", "--at-rest", "--store", &self.url]);
        report
    }

    /// A line of a worker's status, in bytes.
    pub(crate) fn memory(&self, worker: usize, line: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid(worker)));
        let status = status.expect("it lives");
        let line = status.lines().find_map(|found| found.strip_prefix(line));
        let kilobytes = line.and_then(|line| line.split_whitespace().nth(1));
        kilobytes.and_then(|number| number.parse::<u64>().ok()).expect("a figure") << 10
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            let _ = worker.kill();
            let _ = worker.wait();
        }
        // Its connections go while there is a runtime for them.
        let opened = self.opened.take();
        self.runtime.block_on(async { drop(opened) });
    }
}

pub(crate) fn is_completion(record: &Record, outcome: Outcome) -> bool {
    matches!(record, Record::Exit(exit) if exit.outcome == outcome)
}

/// The handlers that entered.
pub(crate) fn start_records(records: &[Record]) -> impl Iterator<Item = &StartRecord> {
    records.iter().filter_map(|record| match record {
        Record::Enter(enter) => Some(enter),
        _ => None,
    })
}
