//! How much memory there is: of the control group if it has a limit, else of the machine.
//!
//! What counts is memory that cannot be given back: anonymous memory and shared memory. A cache
//! of files is not counted, since the kernel drops it when memory is needed.

use std::fs;
use std::path::{Path, PathBuf};

use tidegate_core::MemoryUsage;

/// Where to read, found once.
#[derive(Debug, Default)]
pub(crate) struct MemoryMeter {
    root: PathBuf,
    /// Folders of the second version: the group and those above it.
    cgroup_v2_folders: Vec<PathBuf>,
    /// The folder of the first version's memory controller.
    cgroup_v1_folder: Option<PathBuf>,
}

impl MemoryMeter {
    /// Of this process.
    pub(crate) fn new() -> Self {
        Self::with_root(Path::new("/"))
    }

    /// With the files under another root.
    fn with_root(root: &Path) -> Self {
        let groups = read_file(root, "proc/self/cgroup").unwrap_or_default();
        let mounts = read_file(root, "proc/self/mountinfo").unwrap_or_default();
        let mounts: Vec<CgroupMount<'_>> = mounts.lines().filter_map(CgroupMount::parse).collect();
        let mut meter = Self { root: root.to_owned(), ..Self::default() };
        for line in groups.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            if controllers.is_empty() {
                let mount = mounts.iter().find(|mount| mount.filesystem == "cgroup2");
                meter.cgroup_v2_folders =
                    mount.map(|mount| mount.cgroup_folders(root, path)).unwrap_or_default();
            } else if controllers.split(',').any(|controller| controller == "memory") {
                let mount = mounts
                    .iter()
                    .find(|mount| mount.filesystem == "cgroup" && mount.has_memory_controller);
                let folders =
                    mount.map(|mount| mount.cgroup_folders(root, path)).unwrap_or_default();
                meter.cgroup_v1_folder = folders.into_iter().next();
            }
        }
        meter
    }

    /// Reads. None where nothing can be read, as on other systems than Linux.
    pub(crate) fn read_usage(&self) -> Option<MemoryUsage> {
        let machine = self.read_machine();
        let group = self.read_cgroup_v2().or_else(|| self.read_cgroup_v1());
        // A group without a limit says one that is larger than the machine.
        group
            .filter(|group| machine.is_none_or(|machine| group.limit_bytes < machine.limit_bytes))
            .or(machine)
    }

    /// The group or whatever is above it: the fullest of those that have a limit.
    fn read_cgroup_v2(&self) -> Option<MemoryUsage> {
        let full = |folder: &PathBuf| {
            let limit = fs::read_to_string(folder.join("memory.max")).ok()?.trim().parse().ok()?;
            let stat = fs::read_to_string(folder.join("memory.stat")).ok()?;
            Some(MemoryUsage {
                used_bytes: parse_number(&stat, "anon")? + parse_number(&stat, "shmem")?,
                limit_bytes: limit,
            })
        };
        self.cgroup_v2_folders.iter().filter_map(full).max_by_key(|memory| memory.used_percent())
    }

    fn read_cgroup_v1(&self) -> Option<MemoryUsage> {
        let stat = fs::read_to_string(self.cgroup_v1_folder.as_ref()?.join("memory.stat")).ok()?;
        let used =
            parse_number(&stat, "total_rss")? + parse_number(&stat, "total_shmem").unwrap_or(0);
        Some(MemoryUsage {
            used_bytes: used,
            limit_bytes: parse_number(&stat, "hierarchical_memory_limit")?,
        })
    }

    fn read_machine(&self) -> Option<MemoryUsage> {
        let text = read_file(&self.root, "proc/meminfo")?;
        let limit = parse_number(&text, "MemTotal:")? * 1024;
        let available = parse_number(&text, "MemAvailable:")? * 1024;
        Some(MemoryUsage { used_bytes: limit.saturating_sub(available), limit_bytes: limit })
    }
}

/// A mounted hierarchy of control groups.
struct CgroupMount<'a> {
    /// The group that is seen at the mount point.
    cgroup: &'a str,
    mount_point: &'a str,
    filesystem: &'a str,
    has_memory_controller: bool,
}

impl<'a> CgroupMount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let mut after = after.split(' ');
        Some(Self {
            cgroup: before.next()?,
            mount_point: before.next()?,
            filesystem: after.next()?,
            has_memory_controller: after.nth(1)?.split(',').any(|option| option == "memory"),
        })
    }

    /// The folder of a group and of those above it, as far as they are seen from here.
    fn cgroup_folders(&self, root: &Path, cgroup: &str) -> Vec<PathBuf> {
        let top = root.join(self.mount_point.trim_start_matches('/'));
        let inside = Path::new(cgroup).strip_prefix(self.cgroup).unwrap_or(Path::new(""));
        let inside = inside.strip_prefix("/").unwrap_or(inside);
        let folder = top.join(inside);
        folder.ancestors().take_while(|folder| folder.starts_with(&top)).map(Into::into).collect()
    }
}

fn read_file(root: &Path, path: &str) -> Option<String> {
    fs::read_to_string(root.join(path)).ok()
}

/// The number behind a name, on a line of its own.
fn parse_number(text: &str, wanted_key: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.split_once([' ', '\t']));
    let (_, value) = lines.find(|(key, _)| *key == wanted_key)?;
    value.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    400 kB\n";

    struct FakeMachine(tempfile::TempDir);

    impl FakeMachine {
        fn new(groups: &str, mounts: &str) -> Self {
            let machine = Self(tempfile::tempdir().unwrap());
            machine.write_file("proc/self/cgroup", groups);
            machine.write_file("proc/self/mountinfo", mounts);
            machine.write_file("proc/meminfo", MEMINFO);
            machine
        }

        fn write_file(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn read_memory(&self) -> Option<(u64, u64)> {
            MemoryMeter::with_root(self.0.path())
                .read_usage()
                .map(|memory| (memory.used_bytes, memory.limit_bytes))
        }
    }

    const CGROUP_V2_MOUNTS: &str = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    const CGROUP_V1_MOUNTS: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
        34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    const MACHINE_MEMORY: (u64, u64) = (600 * 1024, 1000 * 1024);

    #[test]
    fn memory_without_cgroups_is_that_of_the_machine() {
        assert_eq!(FakeMachine::new("", "").read_memory(), Some(MACHINE_MEMORY));
        let nothing = tempfile::tempdir().unwrap();
        assert_eq!(MemoryMeter::with_root(nothing.path()).read_usage(), None);
    }

    #[test]
    fn cgroup_v2_counts_unreclaimable_memory() {
        let machine = FakeMachine::new("0::/app/worker\n", CGROUP_V2_MOUNTS);
        machine.write_file("sys/fs/cgroup/app/worker/memory.max", "10000\n");
        let stat = "anon 4000\nfile 90000\nshmem 500\ninactive_file 80000\n";
        machine.write_file("sys/fs/cgroup/app/worker/memory.stat", stat);
        assert_eq!(machine.read_memory(), Some((4500, 10_000)));
        machine.write_file("sys/fs/cgroup/app/worker/memory.max", "max\n");
        assert_eq!(machine.read_memory(), Some(MACHINE_MEMORY), "no limit");
        machine.write_file("sys/fs/cgroup/app/memory.max", "6000\n");
        machine.write_file("sys/fs/cgroup/app/memory.stat", "anon 5000\nshmem 0\n");
        assert_eq!(machine.read_memory(), Some((5000, 6000)), "the limit is one above");
        machine.write_file("sys/fs/cgroup/app/worker/memory.max", "4600\n");
        assert_eq!(machine.read_memory(), Some((4500, 4600)), "the fullest counts");
    }

    #[test]
    fn cgroup_mount_in_a_container_is_its_own_cgroup() {
        let mount = "30 23 0:26 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let machine = FakeMachine::new("0::/docker/abc\n", mount);
        machine.write_file("sys/fs/cgroup/memory.max", "10000\n");
        machine.write_file("sys/fs/cgroup/memory.stat", "anon 1\nshmem 2\n");
        assert_eq!(machine.read_memory(), Some((3, 10_000)));
    }

    #[test]
    fn cgroup_v1_has_the_limit_of_its_hierarchy() {
        let machine = FakeMachine::new("4:memory:/app\n3:cpuset:/\n", CGROUP_V1_MOUNTS);
        let stat = |limit: &str| {
            format!(
                "cache 9\nrss 1\nhierarchical_memory_limit {limit}\ntotal_cache 99\n\
                 total_rss 700\ntotal_shmem 50\n"
            )
        };
        machine.write_file("sys/fs/cgroup/memory/app/memory.stat", &stat("2000"));
        assert_eq!(machine.read_memory(), Some((750, 2000)));
        machine.write_file("sys/fs/cgroup/memory/app/memory.stat", &stat("9223372036854771712"));
        assert_eq!(machine.read_memory(), Some(MACHINE_MEMORY), "no limit");
    }

    #[test]
    fn cgroup_version_with_memory_controller_is_read() {
        let both = format!(
            "{CGROUP_V1_MOUNTS}41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        );
        let machine = FakeMachine::new("4:cpu,memory:/app\n0::/app\n", &both);
        machine.write_file("sys/fs/cgroup/unified/app/cgroup.procs", "1\n");
        let stat = "hierarchical_memory_limit 2000\ntotal_rss 700\n";
        machine.write_file("sys/fs/cgroup/memory/app/memory.stat", stat);
        assert_eq!(machine.read_memory(), Some((700, 2000)));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn memory_of_this_machine_is_read() {
        let memory = MemoryMeter::new().read_usage().expect("a Linux");
        assert!(memory.used_bytes > 0 && memory.used_bytes <= memory.limit_bytes, "{memory:?}");
    }
}
