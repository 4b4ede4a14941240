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
    /// Tasks that run at once in all, and how that comes about.
    pub(super) fn resolve_concurrency(&self, config: &Config) -> anyhow::Result<(u32, String)> {
        let held = |flag: Option<u32>, key| flag.unwrap_or_else(|| config.number(key));
        let workers = held(self.workers, Key::WorkerWorkers);
        let each = held(self.concurrency, Key::WorkerConcurrency);
        let most = held(self.max_concurrent_tasks, Key::WorkerMaxConcurrentTasks);
        let Some(product) = workers.checked_mul(each).filter(|product| *product <= CONCURRENCY_MAX)
        else {
            bail!(
                "{} with {each} tasks each are more than {CONCURRENCY_MAX} tasks at once, the most of one \
                 process",
                counted(workers.into(), "worker")
            );
        };
        let product_words = match workers {
            1 => format!("a concurrency of {each}"),
            _ => format!("{workers} workers x {each}"),
        };
        let is_product_said = self.is_product_set(config);
        let permits = match most {
            0 => product,
            most if is_product_said => most.min(product),
            most => most,
        };
        if permits < most {
            print_message!(
                "warning: max_concurrent_tasks is {most}, and {product_words} lets {product} run at once: \
                 the smaller counts"
            );
        }
        let mut words = format!("{} at once", counted(permits.into(), "task"));
        if permits == product && workers > 1 {
            words.push_str(&format!(" ({product_words})"));
        } else if permits < product && is_product_said {
            words.push_str(&format!(" (max_concurrent_tasks, below {product_words})"));
        }
        if is_from_profile(config) {
            words.push_str(&format!(", profile {}", config.text(Key::Profile)));
        }
        Ok((permits, words))
    }

    /// Whether somebody has said how many workers there are or what each does; a profile fills in only.
    fn is_product_set(&self, config: &Config) -> bool {
        let is_said =
            |flag: Option<u32>, key| flag.is_some() || config.origin(key) > Origin::Profile;
        is_said(self.workers, Key::WorkerWorkers)
            || is_said(self.concurrency, Key::WorkerConcurrency)
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
        for text in &self.max_running {
            let (kind, number) = parse_kind_number("--max-running", text)?;
            if !served.iter().any(|name| name == kind) {
                bail!("{}", not_served_message(text, kind, served));
            }
            let Some(cap) =
                u32::try_from(number).ok().filter(|cap| (1..=CONCURRENCY_MAX).contains(cap))
            else {
                bail!(
                    "--max-running {text:?} is out of bounds: at least 1 and at most {CONCURRENCY_MAX} run \
                     at once; a kind of which none is to run is left out of --kinds"
                );
            };
            if caps.iter().any(|(name, _)| name == kind) {
                bail!("--max-running names kind `{kind}` twice; say it once");
            }
            if cap > permits {
                let all = counted(permits.into(), "task");
                print_message!(
                    "warning: --max-running {text} changes nothing: the worker runs {all} at once"
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
        "--max-running {text:?} is of a kind that this worker does not serve; it serves {}: leave it \
         out, or let it serve `{kind}` by {how}",
        served.join(", ")
    )
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
