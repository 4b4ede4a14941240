//! What the process itself costs.

use super::descriptors;
use super::exposition::MetricSnapshot;

/// Both are cheap to ask for: a few counters of the runtime, and one small file of the kernel's.
pub(super) fn export(snapshot: &mut MetricSnapshot) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        let alive = runtime.metrics().num_alive_tasks();
        snapshot.add_number(&descriptors::ASYNC_TASKS, &[], alive as f64);
    }
    if let Some(bytes) = resident_bytes() {
        snapshot.add_number(&descriptors::RESIDENT_MEMORY, &[], bytes as f64);
    }
}

/// None where the kernel does not tell.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}
