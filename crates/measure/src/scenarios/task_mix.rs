//! Tasks under limits of every size, mixed, so that each limit is reached.

use tidegate_core::bounds::{ATTEMPTS_MAX, CRASHES_MAX};
use tidegate_core::{JobSpec, Kind, NewTask};

/// Random enough to mix, and the same for the same seed: SplitMix64.
#[derive(Debug, Clone)]
pub(super) struct SplitMix(u64);

impl SplitMix {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `below`.
    pub(super) fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)) % below.max(1)
    }
}

/// Groups and their capacities.
pub(super) const GROUPS: [(&str, u32); 3] = [("one", 1), ("four", 4), ("five-hundred", 500)];

/// The job with a quota.
pub(super) const JOB: (&str, u32) = ("quota", 8);

/// Steps in a workflow.
const STEPS: u64 = 5;

/// The job of the mixture.
pub(super) fn jobs() -> Vec<JobSpec> {
    vec![JobSpec { concurrency: Some(JOB.1), ..JobSpec::new(JOB.0.to_owned()) }]
}

/// Its kinds. No task gives up, however many workers are killed under it.
pub(super) fn kinds() -> Vec<Kind> {
    let patient =
        |name| Kind { max_attempts: ATTEMPTS_MAX, max_crashes: CRASHES_MAX, ..Kind::new(name) };
    ["noop", "sleep"].map(patient).to_vec()
}

/// So many tasks. `hold_ms` is how long those of the large limit hold their slot at most.
pub(super) fn tasks(number: u64, hold_ms: u64, dice: &mut SplitMix) -> Vec<NewTask> {
    let workflows = (number / 200).max(1);
    let mut steps = 0;
    (0..number)
        .map(|_| match dice.below(100) {
            0..2 => in_group("one", 4 + dice.below(4)),
            2..10 => in_group("four", 10 + dice.below(10)),
            10..60 => in_group("five-hundred", hold_ms * 2 / 3 + dice.below(1 + hold_ms / 3)),
            60..65 => {
                let mut task = sleep(15 + dice.below(15));
                task.job = Some(JOB.0.to_owned());
                task
            }
            65..70 => {
                let mut task = sleep(dice.below(4));
                task.workflow = Some(format!("order-{}", steps / STEPS % workflows));
                steps += 1;
                task
            }
            // Under two limits, each of which others fill as well.
            70..73 => {
                let mut task = in_group("four", 10 + dice.below(10));
                task.job = Some(JOB.0.to_owned());
                task
            }
            73..80 => sleep(dice.below(20)),
            _ => NewTask::new("noop", "null"),
        })
        .collect()
}

fn sleep(ms: u64) -> NewTask {
    NewTask::new("sleep", format!("{{\"ms\":{ms}}}"))
}

fn in_group(group: &str, ms: u64) -> NewTask {
    NewTask { effective_group: Some(group.to_owned()), ..sleep(ms) }
}
