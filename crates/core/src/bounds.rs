//! Every bound on a name, a size, a depth or a number. They are the same on every store:
//! a store never decides what it accepts.

use crate::{Error, Result};

/// A day of a task that is kept, and of hours in which tasks may start.
pub const DAY_MS: i64 = 24 * 60 * 60 * 1000;

/// Bytes in the name of a kind, queue, group, job, workflow or in a unique key.
pub const NAME_BYTES_MAX: usize = 200;

/// Bytes in a payload or a result, unless configured otherwise: 1 MiB.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;

/// Levels of nesting in a payload.
pub const PAYLOAD_DEPTH_MAX: usize = 64;

/// Bytes kept of an error text; the rest is cut off.
pub const ERROR_BYTES_MAX: usize = 4096;

/// Bytes in the message of a progress report.
pub const PROGRESS_MESSAGE_BYTES_MAX: usize = 200;

/// Bytes in the reason that a worker's report gives.
pub const REPORT_REASON_BYTES_MAX: usize = 200;

/// The largest capacity of a limit.
pub const CAPACITY_MAX: i64 = i32::MAX as i64;

/// The most slots of one limit that one task may take.
pub const TASK_WEIGHT_MAX: u32 = 1000;

/// The share weight of a job.
pub const JOB_WEIGHT_MAX: u32 = 1000;

/// Priorities run from `-PRIORITY_MAX` to `PRIORITY_MAX`; higher goes first.
pub const PRIORITY_MAX: i32 = 1000;

/// The most attempts a task may be given.
pub const ATTEMPTS_MAX: u32 = 1000;

/// Tasks in one submission.
pub const SUBMIT_TASKS_MAX: usize = 10_000;

/// Tasks in one claim, and exits in one finish.
pub const BATCH_MAX: usize = 10_000;

/// Leases in one heartbeat: as many as a worker can have attempts.
pub const HEARTBEAT_LEASES_MAX: usize = 100_000;

/// Unlisted expired leases that one heartbeat releases.
pub const RELEASED_LEASES_MAX: u32 = 100;

/// Attempts that one step of the reaper, or of the release of unlisted leases, takes from expired leases. The rest
/// of a lease waits for the next step. On memory and SQLite a heartbeat runs one step. On PostgreSQL it repeats steps
/// until all of its at most [`RELEASED_LEASES_MAX`] leases are released.
pub const STEP_ATTEMPTS_MAX: u32 = 1000;

/// Checks how many of something came in one call.
pub(crate) fn check_batch_size(what: &str, number: usize, most: usize) -> Result<()> {
    if number <= most {
        return Ok(());
    }
    Err(Error::invalid(format!("{number} {what} at once; at most {most} are allowed, split them")))
}

/// A delay, timeout or lease: one year.
pub const DURATION_MS_MAX: i64 = 366 * 24 * 60 * 60 * 1000;

/// Waiting this long raises a task by one step of priority, so that nothing starves.
pub const AGEING_INTERVAL_MS: i64 = 60_000;

/// A task that moved between lines this often reserves its slots one after another.
pub const QUEUE_SWITCHES_BEFORE_RESERVING: u32 = 8;

/// Tasks of one job that may be past the job's own line and not yet claimed. It bounds how
/// far an old backlog can run ahead of a change of weight.
pub const JOB_WINDOW_SIZE: u32 = 16;

/// Rows the gate looks at in one transaction; what is left is taken up by the next one.
pub const ADMISSION_BATCH_MAX: u32 = 1000;

/// The most deaths of its process after which a task may still be quarantined.
pub const CRASHES_MAX: u32 = 1000;

/// The lease of an attempt, unless configured otherwise.
pub const LEASE_MS_DEFAULT: i64 = 30_000;

/// The shortest lease that can be asked for.
pub const LEASE_MS_MIN: i64 = 100;
