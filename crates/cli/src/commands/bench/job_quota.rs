use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;
use indicatif::ProgressBar;
use tidegate_measure::scenarios::job_quota::{JobQuota, job_quota};

use super::{OwnServerArgs, ResultWriter, own_executable, print_outcome};
use crate::flags;
use crate::run::Server;
use crate::run_file::ServerPlan;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Jobs
    #[arg(long, value_name = "N", default_value_t = 62, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    jobs: u32,
    /// Tasks of each job that may run at once
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    concurrency: u32,
    /// Tasks of each job
    #[arg(long, value_name = "N", default_value_t = 600)]
    tasks: u64,
    /// The quickest answer of the server
    #[arg(long, value_name = "MS", default_value_t = 1_000)]
    answer_ms_min: u64,
    /// The slowest answer of the server
    #[arg(long, value_name = "MS", default_value_t = 2_000)]
    answer_ms_max: u64,
    /// Kill a random worker every so often, and start another at once
    #[arg(long)]
    faults: bool,
    /// Between two kills, with --faults
    #[arg(long, value_name = "DURATION", value_parser = flags::parse_duration, default_value = "10s")]
    kill_interval: jiff::SignedDuration,
    /// Worker processes [default: 4, with --faults 6]
    #[arg(long, value_name = "N")]
    processes: Option<u32>,
    /// Tasks that run at once in each process
    #[arg(long, value_name = "N", default_value_t = 125)]
    permits: u32,
    /// The lease of the workers [default: 30s, with --faults 2s]
    #[arg(long, value_name = "DURATION", value_parser = flags::parse_duration)]
    lease: Option<jiff::SignedDuration>,
    /// When to begin to measure, after the start
    #[arg(long, value_name = "DURATION", value_parser = flags::parse_duration, default_value = "60s")]
    window_from: jiff::SignedDuration,
    /// When to end, before any job runs out of tasks
    #[arg(long, value_name = "DURATION", value_parser = flags::parse_duration, default_value = "240s")]
    window_to: jiff::SignedDuration,
    /// Decides how long the server takes for each answer, and who is killed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    own: OwnServerArgs,
}

impl Arguments {
    /// Says whether all is as it must be.
    pub(super) async fn run(
        self,
        url: Option<String>,
        out: &mut ResultWriter,
    ) -> anyhow::Result<bool> {
        let server = Server::start(self.server()?).await.context("start the server to call")?;
        // It is drawn on a terminal and nowhere else.
        let bar = ProgressBar::new(u64::from(self.jobs) * self.tasks);
        let processes = self.processes.unwrap_or(if self.faults { 6 } else { 4 });
        let lease = self.lease.unwrap_or(jiff::SignedDuration::from_secs(match self.faults {
            true => 2,
            false => 30,
        }));
        let scenario = JobQuota {
            url,
            pg_bin: self.own.pg_bin,
            jobs: self.jobs,
            concurrency: self.concurrency,
            tasks: self.tasks,
            server: server.address(),
            processes,
            worker_concurrency: self.permits,
            lease: parse_duration_flag(lease, "--lease")?,
            window: parse_duration_flag(self.window_from, "--window-from")?
                ..parse_duration_flag(self.window_to, "--window-to")?,
            kill_interval: match self.faults {
                true => Some(parse_duration_flag(self.kill_interval, "--kill-interval")?),
                false => None,
            },
            seed: self.seed,
            histories: self.own.histories,
            binary: own_executable()?,
        };
        let outcome = job_quota(&scenario, |done| bar.set_position(done)).await;
        bar.finish_and_clear();
        print_outcome(outcome?, out)
    }

    fn server(&self) -> anyhow::Result<ServerPlan> {
        let Self { answer_ms_min, answer_ms_max, seed, .. } = *self;
        ensure!(
            answer_ms_min <= answer_ms_max,
            "--answer-ms-max {answer_ms_max} is below --answer-ms-min {answer_ms_min}"
        );
        Ok(ServerPlan { calls_max: None, answer_ms_min, answer_ms_max, fail_every: None, seed })
    }
}

fn parse_duration_flag(duration: jiff::SignedDuration, flag: &str) -> anyhow::Result<Duration> {
    duration.try_into().with_context(|| format!("{flag} cannot be negative"))
}
