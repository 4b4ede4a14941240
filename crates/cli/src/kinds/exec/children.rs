//! The processes below this one. On Linux, all of them; elsewhere those of one process group.

use rustix::process::Pid;

/// Becomes the parent of whatever below this process loses its own.
#[cfg(target_os = "linux")]
pub(super) fn adopt() -> rustix::io::Result<()> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn adopt() -> rustix::io::Result<()> {
    Ok(())
}

/// Kills every child. Their own children are children of this process then, for the next call.
///
/// Only this process learns how its children ended, and it does not in here: no number of the
/// list can be somebody else's by the time it is used.
#[cfg(target_os = "linux")]
pub(super) fn kill_children(_: Pid) {
    for child in list_children() {
        let _ = rustix::process::kill_process(child, rustix::process::Signal::KILL);
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn kill(group: Pid) {
    let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
}

/// The children of this process. The quick list comes first, so that nobody who forks for ever
/// is quicker; it may leave out a child whose brother ends meanwhile, and not every kernel has it.
#[cfg(target_os = "linux")]
fn list_children() -> Vec<Pid> {
    let listed = children_listed_by_kernel();
    if listed.is_empty() { children_found_by_parent() } else { listed }
}

/// The children that the system lists.
#[cfg(target_os = "linux")]
fn children_listed_by_kernel() -> Vec<Pid> {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
    let children = |thread: std::fs::DirEntry| {
        std::fs::read_to_string(thread.path().join("children")).unwrap_or_default()
    };
    let children: Vec<String> = threads.flatten().map(children).collect();
    let numbers = children.iter().flat_map(|text| text.split_whitespace());
    numbers.filter_map(|text| text.parse().ok()).filter_map(Pid::from_raw).collect()
}

/// The processes that say whose children they are.
#[cfg(target_os = "linux")]
fn children_found_by_parent() -> Vec<Pid> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse::<i32>().ok();
    let numbers = entries.flatten().filter_map(number);
    numbers.filter(|pid| parent_of(*pid) == Some(own)).filter_map(Pid::from_raw).collect()
}

/// The parent of a process: the second word behind its name, which ends with the last `)`.
#[cfg(target_os = "linux")]
fn parent_of(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}
