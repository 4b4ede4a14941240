//! How many tasks run at once in the process: in all, and of each kind.

use anyhow::bail;
use tidegate_core::check_capacity;
use tidegate_measure::table::counted;

use super::{Arguments, check_kind};
use crate::config::{Config, Key, Origin};
use crate::kinds::permission_flag;
use crate::stderr::print_message;

/// Tasks that run at once in one process at most.
const CONCURRENCY_MAX: u32 = 100_000;

impl Arguments {
    /// Returns how many tasks run at the same time in this process, and a description. The flag has precedence over
    /// `worker.max_concurrent_tasks`, which has precedence over `worker.workers` times `worker.concurrency`.
    pub(super) fn resolve_concurrency(&self, config: &Config) -> anyhow::Result<(u32, String)> {
        let total = self.concurrency.unwrap_or(config.number(Key::WorkerMaxConcurrentTasks));
        if total > 0 {
            return Ok((total, describe_tasks(total)));
        }
        let workers: u32 = config.number(Key::WorkerWorkers);
        let each: u32 = config.number(Key::WorkerConcurrency);
        let Some(product) = workers.checked_mul(each).filter(|product| *product <= CONCURRENCY_MAX)
        else {
            bail!(
                "{} with {each} tasks each are more than {CONCURRENCY_MAX} tasks at once, the most of one \
                 process",
                counted(workers.into(), "worker")
            );
        };
        let mut description = describe_tasks(product);
        if workers > 1 {
            description.push_str(&format!(" ({workers} workers x {each})"));
        }
        if is_from_profile(config) {
            description.push_str(&format!(", profile {}", config.text(Key::Profile)));
        }
        Ok((product, description))
    }

    /// The limits that it brings for kinds, over all workers.
    pub(super) fn resolve_fleet_limits(&self) -> anyhow::Result<Vec<(String, u32)>> {
        const FLAG: &str = "--max-concurrent";
        let limit = |text: &String| {
            let (kind, number) = parse_kind_number(FLAG, text)?;
            Ok((kind.to_owned(), check_capacity(kind, number)?))
        };
        self.max_concurrent.iter().map(limit).collect()
    }

    /// Tasks of kinds that run at once in this process.
    pub(super) fn resolve_kind_concurrency(
        &self,
        served: &[String],
        permits: u32,
    ) -> anyhow::Result<Vec<(String, u32)>> {
        let mut caps: Vec<(String, u32)> = Vec::new();
        for text in &self.kind_concurrency {
            let (kind, number) = parse_kind_number("--kind-concurrency", text)?;
            if !served.iter().any(|name| name == kind) {
                bail!("{}", not_served_message(text, kind, served));
            }
            let Some(cap) =
                u32::try_from(number).ok().filter(|cap| (1..=CONCURRENCY_MAX).contains(cap))
            else {
                bail!(
                    "--kind-concurrency {text:?} is out of bounds: at least 1 and at most {CONCURRENCY_MAX} run \
                     at once; a kind of which none is to run is left out of --kinds"
                );
            };
            if caps.iter().any(|(name, _)| name == kind) {
                bail!("--kind-concurrency names kind `{kind}` twice; say it once");
            }
            if cap > permits {
                let all = counted(permits.into(), "task");
                print_message!(
                    "warning: --kind-concurrency {text} changes nothing: the worker runs {all} at once"
                );
            }
            caps.push((kind.to_owned(), cap));
        }
        Ok(caps)
    }
}

fn not_served_message(text: &str, kind: &str, served: &[String]) -> String {
    let how = match permission_flag(kind) {
        Some([flag, value]) => format!("`{flag} {value}`"),
        None => "--kinds".to_owned(),
    };
    format!(
        "--kind-concurrency {text:?} is of a kind that this worker does not serve; it serves {}: leave it \
         out, or let it serve `{kind}` by {how}",
        served.join(", ")
    )
}

fn describe_tasks(concurrency: u32) -> String {
    format!("{} at once", counted(concurrency.into(), "task"))
}

fn is_from_profile(config: &Config) -> bool {
    [Key::WorkerWorkers, Key::WorkerConcurrency]
        .iter()
        .any(|key| config.origin(*key) == Origin::Profile)
}

fn parse_kind_number<'a>(flag: &str, text: &'a str) -> anyhow::Result<(&'a str, i64)> {
    let Some((kind, number)) = text.rsplit_once('=') else {
        bail!("{flag} {text:?} is not KIND=N, such as noop=4");
    };
    check_kind(kind)?;
    let Ok(number) = number.parse() else {
        bail!("{flag} {text:?} is not KIND=N, such as noop=4: {number:?} is no whole number");
    };
    Ok((kind, number))
}
