mod job_quota;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::{Args, Subcommand};
use tidegate_measure::report::{ResultLine, ResultTable};
use tidegate_measure::scenarios::backlog::{Backlog, Growth, backlog, growth};
use tidegate_measure::scenarios::concurrency::{Concurrency, Variant, concurrency};
use tidegate_measure::scenarios::drain;
use tidegate_measure::scenarios::enqueue::{Enqueue, enqueue};
use tidegate_measure::scenarios::estimate::{Estimate, estimate};
use tidegate_measure::scenarios::explain::{Explain, explain};
use tidegate_measure::scenarios::fleet::{Fleet, Outcome, fleet};
use tidegate_measure::scenarios::handler_mix::{Deviation, HandlerMix, handler_mix};
use tidegate_measure::scenarios::held_snapshot::{HeldSnapshot, held_snapshot};
use tidegate_measure::scenarios::latency::{Latency, latency};
use tidegate_measure::scenarios::limit_changes::{LimitChanges, limit_changes};
use tidegate_measure::scenarios::limit_on_backlog::{LimitOnBacklog, limit_on_backlog};
use tidegate_measure::scenarios::restarts::{Restarts, restarts};
use tidegate_measure::scenarios::throughput::{Throughput, throughput};
use tidegate_measure::scenarios::worker_processes::Program;

use crate::cli::Global;
use crate::flags;
use crate::output::print;
use crate::stderr::print_message;

/// Faults that are told one by one.
const FAULTS_PRINTED_MAX: usize = 20;

/// Measures, on a store of its own unless --store names one
///
/// A named store must have no unfinished tasks; what a scenario leaves behind stays in it.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    scenario: Scenario,
    /// One JSON object per line instead of a table
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Scenario {
    /// Tasks per second, beside a hand-written loop in the same run
    #[command(
        after_help = "Example:\n  tidegate bench throughput --batch 1,100 --tasks 2000 --json"
    )]
    Throughput {
        /// Tasks per measurement [default: 8000 to 200000, by the batch]
        #[arg(long, value_name = "N")]
        tasks: Option<u64>,
        /// Worker processes
        #[arg(long, value_name = "N", default_value_t = 1)]
        processes: u32,
        /// Tasks in one transaction, with commas between
        #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [1, 10, 100, 500])]
        batch: Vec<u32>,
        /// Measurements of each batch, of which the middle one counts
        #[arg(long, value_name = "N", default_value_t = 3)]
        rounds: u32,
    },
    /// Four workers without any limit, beside a hand-written loop
    #[command(after_help = "Example:\n  tidegate bench concurrency-baseline --tasks 2000")]
    ConcurrencyBaseline(RoundArgs),
    /// Four workers with every task under a limit of 10, beside the same without
    #[command(after_help = "Example:\n  tidegate bench concurrency-enabled --tasks 300 --rounds 1")]
    ConcurrencyEnabled(RoundArgs),
    /// A hundred kinds, one of them with a limit of 10: the other 99 beside the same without
    #[command(after_help = "Example:\n  tidegate bench concurrency-mixed --tasks 2000 --rounds 1")]
    ConcurrencyMixed(RoundArgs),
    /// Eight workers with every task under a limit of 500, beside the same without
    #[command(after_help = "Example:\n  tidegate bench concurrency-high --tasks 2000 --rounds 1")]
    ConcurrencyHigh(RoundArgs),
    /// Four workers whose handlers fail for some tasks, beside the same without failures
    #[command(after_help = "Example:\n  tidegate bench failures --tasks 2000 --rounds 1")]
    Failures(HandlerArgs),
    /// Four workers whose handlers report progress for some tasks, beside the same without reports
    #[command(after_help = "Example:\n  tidegate bench progress --tasks 2000 --rounds 1")]
    Progress(HandlerArgs),
    /// What a claim costs with many blocked tasks in the way, beside the cost without
    #[command(after_help = "Example:\n  tidegate bench blocked-backlog --tasks 20000")]
    BlockedBacklog {
        /// Tasks in the way
        #[arg(long, value_name = "N", default_value_t = 1_000_000)]
        tasks: u64,
    },
    /// What a claim costs as ever more tasks are ready, beside the cost with few
    #[command(after_help = "Example:\n  tidegate bench backlog-growth --pending 1000,20000")]
    BacklogGrowth {
        /// How many tasks are there to claim, with commas between, from few to many
        #[arg(
            long,
            value_name = "N,..",
            value_delimiter = ',',
            default_values_t = [1_000, 1_000_000, 5_000_000]
        )]
        pending: Vec<u64>,
    },
    /// What other kinds notice when a kind with many waiting tasks gets a limit of 10
    #[command(after_help = "Example:\n  tidegate bench limit-on-backlog --tasks 3000 --before 1s")]
    LimitOnBacklog {
        /// Tasks that wait when the limit is set
        #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1_000..))]
        tasks: u64,
        /// How long the others are measured before
        #[arg(long, value_name = "DURATION", value_parser = flags::parse_duration, default_value = "10s")]
        before: jiff::SignedDuration,
    },
    /// What a claim costs while a transaction holds an old snapshot, beside the cost at its start
    #[command(after_help = "Example:\n  tidegate bench held-snapshot --tasks 20000 --hold 1s")]
    HeldSnapshot {
        /// Tasks that are completed meanwhile
        #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
        tasks: u64,
        /// How long the snapshot is held at least
        #[arg(long, value_name = "DURATION", value_parser = flags::parse_duration, default_value = "5m")]
        hold: jiff::SignedDuration,
    },
    /// From a submit to the start of the handler on an idle queue, beside a hand-written loop
    #[command(after_help = "Example:\n  tidegate bench latency --tasks 20")]
    Latency {
        /// Tasks, each submitted when the one before is done
        #[arg(long, value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..))]
        tasks: u32,
    },
    /// Tasks that are submitted per second, beside hand-written inserts
    #[command(after_help = "Example:\n  tidegate bench enqueue --tasks 500 --rounds 1")]
    Enqueue {
        /// Tasks per measurement [default: 2000 to 100000, by the batch]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        tasks: Option<u64>,
        /// Tasks in one submit, with commas between
        #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [1, 1000])]
        batch: Vec<u32>,
        /// Measurements of each batch, of which the middle one counts
        #[arg(long, value_name = "N", default_value_t = 3)]
        rounds: u32,
    },
    /// Records the plans of the hot statements of a PostgreSQL, beside the records that are there
    ///
    /// It makes databases `tidegate_explain_*` on the server of --store and drops them at the end.
    #[command(after_help = "Example:\n  tidegate bench explain --tasks 5000 --folder plans")]
    Explain {
        /// Tasks that wait
        #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1_000..))]
        tasks: u64,
        /// Where the records are
        #[arg(long, value_name = "FOLDER", default_value = "docs/performance")]
        folder: PathBuf,
    },
    /// How far the wait that `task explain` tells is off
    #[command(after_help = "Example:\n  tidegate bench estimate --seconds 2 --json")]
    Estimate {
        /// How long each line takes to drain, about
        #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
        seconds: u64,
    },
    /// Many worker processes under limits of 1, 4 and 500: are they kept, and reached?
    #[command(
        after_help = "Example:\n  tidegate bench limits --processes 4 --permits 200 --hold-ms 900 --tasks 3000"
    )]
    Limits {
        #[command(flatten)]
        size: FleetArgs,
    },
    /// The same with a random worker killed again and again: is anything lost or left over?
    #[command(
        after_help = "Example:\n  tidegate bench chaos --processes 4 --tasks 1000 --kills 5 --seed 7"
    )]
    Chaos {
        #[command(flatten)]
        size: FleetArgs,
        /// Workers to kill
        #[arg(long, value_name = "N", default_value_t = 100)]
        kills: u32,
        /// Between two kills
        #[arg(
            long,
            value_name = "DURATION",
            value_parser = flags::parse_duration,
            default_value = "200ms"
        )]
        kill_interval: jiff::SignedDuration,
    },
    /// Many jobs with a quota each, whose tasks call a server: how much of the quotas is in use, and is
    /// one ever exceeded?
    ///
    /// Without --store it starts a PostgreSQL of its own.
    #[command(
        after_help = "Example:\n  tidegate bench job-quota --jobs 4 --tasks 40 --answer-ms-min 100 --answer-ms-max 200 --window-from 1s --window-to 1500ms"
    )]
    JobQuota(job_quota::Arguments),
    /// Limits that change all the time, and an audit of every commit of a PostgreSQL: is one ever
    /// exceeded?
    ///
    /// Without --store it starts a server of its own. A server that is named needs `wal_level =
    /// logical`, and the user the right to read its log.
    #[command(
        after_help = "Example:\n  tidegate bench limit-changes --seconds 2 --processes 3 --seed 7"
    )]
    LimitChanges {
        /// How long the limits are changed
        #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
        seconds: u64,
        /// Between two changes of all limits, each to a capacity from 1 to 50
        #[arg(
            long,
            value_name = "DURATION",
            value_parser = flags::parse_duration,
            default_value = "100ms"
        )]
        interval: jiff::SignedDuration,
        /// Worker processes
        #[arg(long, value_name = "N", default_value_t = 8)]
        processes: u32,
        /// Tasks that run at once in each process
        #[arg(long, value_name = "N", default_value_t = 20)]
        permits: u32,
        /// The lease of the workers
        #[arg(long, value_name = "DURATION", value_parser = flags::parse_duration, default_value = "10s")]
        lease: jiff::SignedDuration,
        /// Decides the capacities and the mixture of tasks
        #[arg(long, value_name = "N", default_value_t = 1)]
        seed: u64,
        /// Give every limit one more than the audit is told; the audit must then see it
        #[arg(long)]
        inject_over_limit: bool,
        #[command(flatten)]
        own: OwnServerArgs,
    },
    /// PostgreSQL crashes under load and comes back, again and again: is anything lost, and how soon
    /// does work go on?
    ///
    /// It starts a server of its own, because it stops it.
    #[command(
        after_help = "Example:\n  tidegate bench restarts --restarts 2 --processes 3 --tasks 600 --lease 5s"
    )]
    Restarts {
        /// Crashes: the server is stopped at once and started again
        #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
        restarts: u32,
        /// How long the server is up between two crashes; up to half as long again
        #[arg(long, value_name = "DURATION", value_parser = flags::parse_duration, default_value = "3s")]
        interval: jiff::SignedDuration,
        /// How long the server is down, beside the time that it takes to start
        #[arg(long, value_name = "DURATION", value_parser = flags::parse_duration, default_value = "0s")]
        down: jiff::SignedDuration,
        /// Tasks that are kept in the store, about
        #[arg(long, value_name = "N", default_value_t = 3_000)]
        tasks: u64,
        /// Worker processes
        #[arg(long, value_name = "N", default_value_t = 8)]
        processes: u32,
        /// Tasks that run at once in each process
        #[arg(long, value_name = "N", default_value_t = 50)]
        permits: u32,
        /// How long tasks behind the limit of 500 hold their slot at most
        #[arg(long, value_name = "MS", default_value_t = 100)]
        hold_ms: u64,
        /// The lease of the workers
        #[arg(long, value_name = "DURATION", value_parser = flags::parse_duration, default_value = "30s")]
        lease: jiff::SignedDuration,
        /// Decides the mixture of tasks and the times of the crashes
        #[arg(long, value_name = "N", default_value_t = 1)]
        seed: u64,
        #[command(flatten)]
        own: OwnServerArgs,
    },
    /// A worker process of a scenario that drains
    #[command(hide = true)]
    Drain {
        url: String,
        batch: u32,
        permits: u32,
        kinds: u32,
        hold_ms: u32,
        failing_percent: u32,
        reporting_percent: u32,
    },
}

#[derive(Debug, Args)]
struct RoundArgs {
    /// Tasks per measurement [default: 10000, and 100000 under the limit of 500]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    tasks: Option<u64>,
    /// Measurements, of which the middle one counts
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: u32,
}

#[derive(Debug, Args)]
struct HandlerArgs {
    /// Percentage of the tasks that fail once or report progress
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=100))]
    percent: u32,
    /// Tasks in one transaction
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    batch: u32,
    /// Tasks per measurement
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..))]
    tasks: u64,
    /// Measurements, of which the middle one counts
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: u32,
}

#[derive(Debug, Args)]
struct OwnServerArgs {
    /// The programs of the server that is started [default: those in TIDEGATE_PG_BIN, or the newest
    /// in /usr/lib/postgresql]
    #[arg(long, value_name = "FOLDER", env = "TIDEGATE_PG_BIN", hide_env = true)]
    pg_bin: Option<PathBuf>,
    /// Leave the histories in this folder, for `tidegate verify`
    #[arg(long, value_name = "FOLDER")]
    histories: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct FleetArgs {
    /// Tasks to begin with
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    tasks: u64,
    /// Worker processes
    #[arg(long, value_name = "N", default_value_t = 8)]
    processes: u32,
    /// Tasks that run at once in each process
    #[arg(long, value_name = "N", default_value_t = 120)]
    permits: u32,
    /// How long tasks behind the limit of 500 hold their slot at most
    #[arg(long, value_name = "MS", default_value_t = 300)]
    hold_ms: u64,
    /// The lease of the workers
    #[arg(long, value_name = "DURATION", value_parser = flags::parse_duration, default_value = "2s")]
    lease: jiff::SignedDuration,
    /// Decides the mixture of tasks and who is killed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Raise every limit by one behind the checker's back; the checker must then see it
    #[arg(long)]
    inject_over_limit: bool,
    /// Leave the histories in this folder, for `tidegate verify`
    #[arg(long, value_name = "FOLDER")]
    histories: Option<PathBuf>,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> anyhow::Result<ExitCode> {
    let mut out = ResultWriter { json: arguments.json, lines: Vec::new() };
    let url = global.explicit_url().map(str::to_owned);
    let mut good = true;
    match arguments.scenario {
        Scenario::Throughput { tasks, processes, batch: batches, rounds } => {
            let program = drain_program()?;
            let scenario = Throughput { url, tasks, processes, batches, rounds, program };
            throughput(&scenario, |line| out.add_line(line)).await?;
        }
        Scenario::ConcurrencyBaseline(size) => {
            size.measure(url, Variant::Baseline, &mut out).await?
        }
        Scenario::ConcurrencyEnabled(size) => size.measure(url, Variant::Enabled, &mut out).await?,
        Scenario::ConcurrencyMixed(size) => size.measure(url, Variant::Mixed, &mut out).await?,
        Scenario::ConcurrencyHigh(size) => size.measure(url, Variant::High, &mut out).await?,
        Scenario::Failures(mix) => mix.measure(url, Deviation::Failure, &mut out).await?,
        Scenario::Progress(mix) => mix.measure(url, Deviation::Progress, &mut out).await?,
        Scenario::BlockedBacklog { tasks } => {
            backlog(&Backlog { url, tasks }, |line| out.add_line(line)).await?;
        }
        Scenario::BacklogGrowth { pending } => {
            growth(&Growth { url, pending }, |line| out.add_line(line)).await?;
        }
        Scenario::Latency { tasks } => {
            latency(&Latency { url, tasks }, |line| out.add_line(line)).await?;
        }
        Scenario::Enqueue { tasks, batch: batches, rounds } => {
            enqueue(&Enqueue { url, tasks, batches, rounds }, |line| out.add_line(line)).await?;
        }
        Scenario::LimitOnBacklog { tasks, before } => {
            let before = before.try_into().context("--before is negative")?;
            let scenario = LimitOnBacklog { url, tasks, before };
            limit_on_backlog(&scenario, |line| out.add_line(line)).await?;
        }
        Scenario::HeldSnapshot { tasks, hold } => {
            let hold = hold.try_into().context("--hold is negative")?;
            held_snapshot(&HeldSnapshot { url, tasks, hold }, |line| out.add_line(line)).await?;
        }
        Scenario::Explain { tasks, folder } => {
            let url = url.context("name the PostgreSQL with --store postgres://...")?;
            explain(&Explain { url, tasks, folder }, |line| out.add_line(line)).await?;
        }
        Scenario::Estimate { seconds } => {
            estimate(&Estimate { url, seconds }, |line| out.add_line(line)).await?;
        }
        Scenario::Limits { size } => {
            good = run_fleet(size.into_fleet(url, 0, Duration::ZERO)?, &mut out).await?;
        }
        Scenario::Chaos { size, kills, kill_interval } => {
            let interval = kill_interval.try_into().context("--kill-interval is negative")?;
            good = run_fleet(size.into_fleet(url, kills, interval)?, &mut out).await?;
        }
        Scenario::JobQuota(arguments) => good = arguments.run(url, &mut out).await?,
        Scenario::LimitChanges {
            seconds,
            interval,
            processes,
            permits,
            lease,
            seed,
            inject_over_limit,
            own,
        } => {
            let scenario = LimitChanges {
                url,
                pg_bin: own.pg_bin,
                seconds,
                interval: interval.try_into().context("--interval cannot be negative")?,
                processes,
                concurrency: permits,
                lease: lease.try_into().context("--lease cannot be negative")?,
                seed,
                inject_over_limit,
                histories: own.histories,
                binary: own_executable()?,
            };
            good = run_limit_changes(&scenario, &mut out).await?;
        }
        Scenario::Restarts {
            restarts,
            interval,
            down,
            tasks,
            processes,
            permits,
            hold_ms,
            lease,
            seed,
            own,
        } => {
            ensure!(
                url.is_none(),
                "this scenario stops its server, so it has one of its own; leave out --store"
            );
            let scenario = Restarts {
                pg_bin: own.pg_bin,
                restarts,
                interval: interval.try_into().context("--interval cannot be negative")?,
                down: down.try_into().context("--down cannot be negative")?,
                tasks,
                processes,
                concurrency: permits,
                hold_ms,
                lease: lease.try_into().context("--lease cannot be negative")?,
                seed,
                histories: own.histories,
                binary: own_executable()?,
            };
            good = run_restarts(&scenario, &mut out).await?;
        }
        Scenario::Drain {
            url,
            batch,
            permits,
            kinds,
            hold_ms,
            failing_percent,
            reporting_percent,
        } => {
            let handlers = drain::Handlers { hold_ms, failing_percent, reporting_percent };
            drain::run_process(&url, drain::Load { batch, concurrency: permits, kinds, handlers })
                .await?;
        }
    }
    out.finish()?;
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn own_executable() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("find the program itself")
}

/// The worker processes of a scenario that drains.
fn drain_program() -> anyhow::Result<Program> {
    Ok((own_executable()?, vec!["bench".to_owned(), "drain".to_owned()]))
}

impl RoundArgs {
    async fn measure(
        self,
        url: Option<String>,
        way: Variant,
        out: &mut ResultWriter,
    ) -> anyhow::Result<()> {
        let Self { tasks, rounds } = self;
        let scenario = Concurrency { url, variant: way, tasks, rounds, program: drain_program()? };
        concurrency(&scenario, |line| out.add_line(line)).await
    }
}

impl HandlerArgs {
    async fn measure(
        self,
        url: Option<String>,
        deviation: Deviation,
        out: &mut ResultWriter,
    ) -> anyhow::Result<()> {
        let Self { percent, batch, tasks, rounds } = self;
        let program = drain_program()?;
        let scenario = HandlerMix { url, deviation, percent, batch, tasks, rounds, program };
        handler_mix(&scenario, |line| out.add_line(line)).await
    }
}

impl FleetArgs {
    fn into_fleet(
        self,
        url: Option<String>,
        kills: u32,
        kill_interval: Duration,
    ) -> anyhow::Result<Fleet> {
        Ok(Fleet {
            url,
            tasks: self.tasks,
            processes: self.processes,
            concurrency: self.permits,
            hold_ms: self.hold_ms,
            kills,
            kill_interval,
            lease: self.lease.try_into().context("--lease cannot be negative")?,
            seed: self.seed,
            inject_over_limit: self.inject_over_limit,
            histories: self.histories,
            binary: own_executable()?,
        })
    }
}

/// Says whether all is as it must be.
async fn run_fleet(scenario: Fleet, out: &mut ResultWriter) -> anyhow::Result<bool> {
    print_outcome(fleet(&scenario).await?, out)
}

async fn run_restarts(scenario: &Restarts, out: &mut ResultWriter) -> anyhow::Result<bool> {
    print_outcome(restarts(scenario).await?, out)
}

fn print_outcome(outcome: Outcome, out: &mut ResultWriter) -> anyhow::Result<bool> {
    print_message!("{}", outcome.report);
    print_faults(&outcome.faults);
    out.add_line(outcome.line)?;
    Ok(outcome.report.is_clean() && outcome.faults.is_empty())
}

async fn run_limit_changes(
    scenario: &LimitChanges,
    out: &mut ResultWriter,
) -> anyhow::Result<bool> {
    let outcome = limit_changes(scenario).await?;
    print_message!("{}", outcome.report);
    print_message!("{}", outcome.findings);
    print_faults(&outcome.faults);
    let is_good = outcome.is_good();
    out.add_line(outcome.line)?;
    Ok(is_good)
}

/// The first of them: where one task is lost, many are.
fn print_faults(faults: &[String]) {
    for fault in faults.iter().take(FAULTS_PRINTED_MAX) {
        print_message!("fault: {fault}");
    }
    if faults.len() > FAULTS_PRINTED_MAX {
        print_message!("and {} more faults", faults.len() - FAULTS_PRINTED_MAX);
    }
}

/// Lines as they come in JSON, or all together in a table.
struct ResultWriter {
    json: bool,
    lines: Vec<ResultLine>,
}

impl ResultWriter {
    fn add_line(&mut self, line: ResultLine) -> anyhow::Result<()> {
        if let Some(note) = &line.note {
            print_message!("{note}");
        }
        if self.json {
            print(&format!("{}\n", line.to_json()))?;
        } else {
            print_message!("{} {}: {:.2} s", line.scenario, line.store, line.seconds);
            self.lines.push(line);
        }
        Ok(())
    }

    fn finish(self) -> anyhow::Result<()> {
        if !self.lines.is_empty() {
            print(&ResultTable(&self.lines).to_string())?;
        }
        Ok(())
    }
}
