//! The memory of this process: the limit that the system sets, and the return of freed memory to the system.

use std::path::Path;
use std::sync::Weak;
use std::time::Duration;

use crate::config::{Config, SystemMemory, SystemMemorySource};
use crate::container::Resources;
use crate::runtime::allocator;
use crate::runtime::cpu_pool::{CpuPool, Priority};

/// Interval at which memory that the allocator retains is returned to the system.
const TRIM_INTERVAL: Duration = Duration::from_millis(250);

/// Returns the memory that the system has for this process: the lowest limit of its control groups, or the memory of the
/// machine if that is less. Returns `None` if neither can be read.
pub fn system_memory() -> Option<SystemMemory> {
    let machine = read(Path::new("/proc/meminfo")).and_then(|text| total_memory_bytes(&text));
    let machine = machine.map(|bytes| SystemMemory { bytes, source: SystemMemorySource::Machine });
    let group = cgroup_memory_limit().map(|bytes| SystemMemory { bytes, source: SystemMemorySource::ControlGroup });
    machine.into_iter().chain(group).min_by_key(|memory| memory.bytes)
}

/// Returns the number of bytes in the line `MemTotal` of `/proc/meminfo` (proc_meminfo(5)).
fn total_memory_bytes(text: &str) -> Option<u64> {
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    total.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

/// Logs a warning if the system's limit is lower than the maximum memory of this process.
pub(super) fn warn_if_below_need(config: &Config) {
    let needed = config.max_process_bytes();
    if let Some(limit) = cgroup_memory_limit().filter(|limit| *limit < needed) {
        tracing::warn!(
            limit_bytes = limit,
            needed_bytes = needed,
            "the system ends this process under load: its memory limit is below what caches, budgets, threads and \
             connections may take; raise it, or lower memory.limit, [cache], the budgets of [limits], server.threads or \
             server.max_connections"
        );
    }
}

/// Returns the lowest limit of this process's control groups, in bytes; `None` if there is none or it cannot be read.
fn cgroup_memory_limit() -> Option<u64> {
    let groups = read(Path::new("/proc/self/cgroup"))?;
    lowest_cgroup_limit(Path::new("/sys/fs/cgroup"), &groups)
}

/// Returns the lowest limit of `groups`, the text of `/proc/self/cgroup` for either version of cgroups (cgroups(7)).
fn lowest_cgroup_limit(root: &Path, groups: &str) -> Option<u64> {
    let mut limits = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let Some(controllers) = parts.next() else { continue };
        let Some(path) = parts.next() else { continue };
        let (root, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            "memory" => (root.join("memory"), "memory.limit_in_bytes"),
            _ => continue,
        };
        // The limit of a group also applies to all groups below it. Inside a container, the groups above the
        // container's root are not visible.
        let group_path = Path::new(path.trim_start_matches('/'));
        let texts = group_path.ancestors().filter_map(|group| read(&root.join(group).join(file)));
        limits.extend(texts.filter_map(|text| text.trim().parse::<u64>().ok()));
    }
    // Version 1 of cgroups gives a number near 2^63 if there is no limit.
    limits.into_iter().min().filter(|limit| *limit < 1 << 60)
}

#[expect(clippy::disallowed_methods, reason = "a pseudo-file of the kernel: reading it does not wait for a disk")]
fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// Periodically gives freed memory back to the system, on `cpu`, while `resources` exist.
pub(super) async fn trim_periodically(resources: Weak<Resources>, cpu: CpuPool) {
    loop {
        tokio::time::sleep(TRIM_INTERVAL).await;
        let Some(resources) = resources.upgrade() else { return };
        resources.release_unused();
        drop(resources);
        if cpu.run(Priority::High, 0, allocator::trim).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_the_machine_is_read_in_kilobytes() {
        let text = "MemFree:          123 kB\nMemTotal:       16308240 kB\nSwapTotal: 5 kB\n";
        assert_eq!(total_memory_bytes(text), Some(16_308_240 << 10));
        for text in ["", "MemTotal: 12", "MemTotal: many kB", "MemTotal: 99999999999999999999 kB"] {
            assert_eq!(total_memory_bytes(text), None, "{text}");
        }
    }

    #[test]
    fn the_lowest_limit_of_all_ancestor_groups_counts() {
        let root = tempfile::tempdir().unwrap();
        let write_limit = |group: &str, file: &str, text: &str| {
            std::fs::create_dir_all(root.path().join(group)).unwrap();
            #[expect(clippy::disallowed_methods, reason = "as the kernel would")]
            std::fs::write(root.path().join(group).join(file), text).unwrap();
        };
        let lowest = |groups: &str| lowest_cgroup_limit(root.path(), groups);
        assert_eq!(lowest("0::/a/b\n"), None);
        write_limit("a/b", "memory.max", "max\n");
        assert_eq!(lowest("0::/a/b\n"), None);
        write_limit("a", "memory.max", "1073741824\n");
        assert_eq!(lowest("0::/a/b\n"), Some(1 << 30));
        write_limit("", "memory.max", "536870912\n");
        assert_eq!(lowest("0::/a/b\n"), Some(1 << 29));
        assert_eq!(lowest("0::/\n"), Some(1 << 29), "inside a container, its own group is the root");
        write_limit("memory/c", "memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(lowest("3:cpu:/c\n2:memory:/c\n"), None);
        write_limit("memory", "memory.limit_in_bytes", "1000000\n");
        assert_eq!(lowest("3:cpu:/c\n2:memory:/c\n"), Some(1_000_000));
        assert_eq!(lowest("nonsense"), None);
    }
}
