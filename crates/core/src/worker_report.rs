//! What a worker says of itself with its heartbeats.

use serde::{Deserialize, Serialize};

use crate::bounds::REPORT_REASON_BYTES_MAX;
use crate::{Error, Result};

/// What a worker says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerReport {
    /// Tasks it could begin now.
    pub free: u32,
    /// Tasks that it runs at once at most.
    pub concurrency: u32,
    /// Memory of the process or of what it shares its limit with, where that can be read.
    pub memory: Option<MemoryUsage>,
    /// Whether it asks for tasks.
    pub accepting: bool,
    /// Why it asks for as many as it does, in a few words.
    pub reason: String,
}

/// Memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryUsage {
    /// What cannot be given back: no cache of files.
    pub used_bytes: u64,
    /// How much there may be.
    pub limit_bytes: u64,
}

impl MemoryUsage {
    /// The part that is used, in percent.
    pub fn used_percent(self) -> u64 {
        let percent = (u128::from(self.used_bytes) * 100).checked_div(self.limit_bytes.into());
        percent.map_or(100, |percent| u64::try_from(percent).unwrap_or(u64::MAX))
    }
}

impl WorkerReport {
    /// Checks every bound.
    pub fn check(&self) -> Result<()> {
        if self.reason.len() > REPORT_REASON_BYTES_MAX || self.reason.contains('\0') {
            return Err(Error::invalid(format!(
                "the reason in a worker's report has at most {REPORT_REASON_BYTES_MAX} bytes, none of \
                 them zero"
            )));
        }
        Ok(())
    }

    /// As JSON, which is how databases keep it.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a report is plain data")
    }

    /// Reads what was written. None where a program of another version wrote what this one does
    /// not know.
    pub fn from_json(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Whether the worker would take a task now.
    pub fn has_free_capacity(&self) -> bool {
        self.accepting && self.free > 0
    }
}
