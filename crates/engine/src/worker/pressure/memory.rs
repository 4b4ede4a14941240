//! How much memory there is: of the control group if it has a limit, else of the machine.
//!
//! What counts is memory that cannot be given back: anonymous memory and shared memory. A cache
//! of files is not counted, since the kernel drops it when memory is needed.

use std::fs;
use std::path::{Path, PathBuf};

use tidegate_core::Memory;

/// Where to read, found once.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    root: PathBuf,
    /// Folders of the second version: the group and those above it.
    unified: Vec<PathBuf>,
    /// The folder of the first version's memory controller.
    legacy: Option<PathBuf>,
}

impl Meter {
    /// Of this process.
    pub(crate) fn new() -> Self {
        Self::under(Path::new("/"))
    }

    /// With the files under another root.
    fn under(root: &Path) -> Self {
        let groups = read(root, "proc/self/cgroup").unwrap_or_default();
        let mounts = read(root, "proc/self/mountinfo").unwrap_or_default();
        let mounts: Vec<Mount<'_>> = mounts.lines().filter_map(Mount::parse).collect();
        let mut meter = Self { root: root.to_owned(), ..Self::default() };
        for line in groups.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            if controllers.is_empty() {
                let mount = mounts.iter().find(|mount| mount.kind == "cgroup2");
                meter.unified = mount.map(|mount| mount.folders(root, path)).unwrap_or_default();
            } else if controllers.split(',').any(|controller| controller == "memory") {
                let mount = mounts.iter().find(|mount| mount.kind == "cgroup" && mount.is_memory);
                let folders = mount.map(|mount| mount.folders(root, path)).unwrap_or_default();
                meter.legacy = folders.into_iter().next();
            }
        }
        meter
    }

    /// Reads. None where nothing can be read, as on other systems than Linux.
    pub(crate) fn read(&self) -> Option<Memory> {
        let machine = self.machine();
        let group = self.unified().or_else(|| self.legacy());
        // A group without a limit says one that is larger than the machine.
        group.filter(|group| machine.is_none_or(|machine| group.limit < machine.limit)).or(machine)
    }

    /// The group or whatever is above it: the fullest of those that have a limit.
    fn unified(&self) -> Option<Memory> {
        let full = |folder: &PathBuf| {
            let limit = fs::read_to_string(folder.join("memory.max")).ok()?.trim().parse().ok()?;
            let stat = fs::read_to_string(folder.join("memory.stat")).ok()?;
            Some(Memory { used: number(&stat, "anon")? + number(&stat, "shmem")?, limit })
        };
        self.unified.iter().filter_map(full).max_by_key(|memory| memory.percent())
    }

    fn legacy(&self) -> Option<Memory> {
        let stat = fs::read_to_string(self.legacy.as_ref()?.join("memory.stat")).ok()?;
        let used = number(&stat, "total_rss")? + number(&stat, "total_shmem").unwrap_or(0);
        Some(Memory { used, limit: number(&stat, "hierarchical_memory_limit")? })
    }

    fn machine(&self) -> Option<Memory> {
        let text = read(&self.root, "proc/meminfo")?;
        let limit = number(&text, "MemTotal:")? * 1024;
        let available = number(&text, "MemAvailable:")? * 1024;
        Some(Memory { used: limit.saturating_sub(available), limit })
    }
}

/// A mounted hierarchy of control groups.
struct Mount<'a> {
    /// The group that is seen at the mount point.
    group: &'a str,
    point: &'a str,
    kind: &'a str,
    is_memory: bool,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let mut after = after.split(' ');
        Some(Self {
            group: before.next()?,
            point: before.next()?,
            kind: after.next()?,
            is_memory: after.nth(1)?.split(',').any(|option| option == "memory"),
        })
    }

    /// The folder of a group and of those above it, as far as they are seen from here.
    fn folders(&self, root: &Path, group: &str) -> Vec<PathBuf> {
        let top = root.join(self.point.trim_start_matches('/'));
        let inside = Path::new(group).strip_prefix(self.group).unwrap_or(Path::new(""));
        let inside = inside.strip_prefix("/").unwrap_or(inside);
        let folder = top.join(inside);
        folder.ancestors().take_while(|folder| folder.starts_with(&top)).map(Into::into).collect()
    }
}

fn read(root: &Path, path: &str) -> Option<String> {
    fs::read_to_string(root.join(path)).ok()
}

/// The number behind a name, on a line of its own.
fn number(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.split_once([' ', '\t']));
    let (_, value) = lines.find(|(key, _)| *key == name)?;
    value.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: &str = "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    400 kB\n";

    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new(groups: &str, mounts: &str) -> Self {
            let machine = Self(tempfile::tempdir().unwrap());
            machine.put("proc/self/cgroup", groups);
            machine.put("proc/self/mountinfo", mounts);
            machine.put("proc/meminfo", MACHINE);
            machine
        }

        fn put(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn read(&self) -> Option<(u64, u64)> {
            Meter::under(self.0.path()).read().map(|memory| (memory.used, memory.limit))
        }
    }

    const UNIFIED: &str = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    const LEGACY: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
        34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    const WHOLE: (u64, u64) = (600 * 1024, 1000 * 1024);

    #[test]
    fn without_groups_it_is_the_machine() {
        assert_eq!(Machine::new("", "").read(), Some(WHOLE));
        let nothing = tempfile::tempdir().unwrap();
        assert_eq!(Meter::under(nothing.path()).read(), None);
    }

    #[test]
    fn a_group_of_the_second_version_counts_what_cannot_be_given_back() {
        let machine = Machine::new("0::/app/worker\n", UNIFIED);
        machine.put("sys/fs/cgroup/app/worker/memory.max", "10000\n");
        let stat = "anon 4000\nfile 90000\nshmem 500\ninactive_file 80000\n";
        machine.put("sys/fs/cgroup/app/worker/memory.stat", stat);
        assert_eq!(machine.read(), Some((4500, 10_000)));
        machine.put("sys/fs/cgroup/app/worker/memory.max", "max\n");
        assert_eq!(machine.read(), Some(WHOLE), "no limit");
        machine.put("sys/fs/cgroup/app/memory.max", "6000\n");
        machine.put("sys/fs/cgroup/app/memory.stat", "anon 5000\nshmem 0\n");
        assert_eq!(machine.read(), Some((5000, 6000)), "the limit is one above");
        machine.put("sys/fs/cgroup/app/worker/memory.max", "4600\n");
        assert_eq!(machine.read(), Some((4500, 4600)), "the fullest counts");
    }

    #[test]
    fn in_a_container_the_mount_is_its_own_group() {
        let mount = "30 23 0:26 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let machine = Machine::new("0::/docker/abc\n", mount);
        machine.put("sys/fs/cgroup/memory.max", "10000\n");
        machine.put("sys/fs/cgroup/memory.stat", "anon 1\nshmem 2\n");
        assert_eq!(machine.read(), Some((3, 10_000)));
    }

    #[test]
    fn a_group_of_the_first_version_has_the_limit_of_its_hierarchy() {
        let machine = Machine::new("4:memory:/app\n3:cpuset:/\n", LEGACY);
        let stat = |limit: &str| {
            format!(
                "cache 9\nrss 1\nhierarchical_memory_limit {limit}\ntotal_cache 99\n\
                 total_rss 700\ntotal_shmem 50\n"
            )
        };
        machine.put("sys/fs/cgroup/memory/app/memory.stat", &stat("2000"));
        assert_eq!(machine.read(), Some((750, 2000)));
        machine.put("sys/fs/cgroup/memory/app/memory.stat", &stat("9223372036854771712"));
        assert_eq!(machine.read(), Some(WHOLE), "no limit");
    }

    #[test]
    fn of_both_versions_the_one_that_counts_memory_is_read() {
        let both = format!("{LEGACY}41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
        let machine = Machine::new("4:cpu,memory:/app\n0::/app\n", &both);
        machine.put("sys/fs/cgroup/unified/app/cgroup.procs", "1\n");
        let stat = "hierarchical_memory_limit 2000\ntotal_rss 700\n";
        machine.put("sys/fs/cgroup/memory/app/memory.stat", stat);
        assert_eq!(machine.read(), Some((700, 2000)));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_machine_has_memory() {
        let memory = Meter::new().read().expect("a Linux");
        assert!(memory.used > 0 && memory.used <= memory.limit, "{memory:?}");
    }
}
