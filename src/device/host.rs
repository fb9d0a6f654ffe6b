//! Host memory, processor and this process's own counters.
//!
//! Memory is what this process may really use: inside a cgroup with a limit,
//! `min(host available, limit - current + file cache)`, since the kernel drops file cache before it kills.

use super::roots::{Roots, text};
use crate::units::Bytes;
use std::path::{Path, PathBuf};

/// Host memory as this process sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All of it, or the cgroup's limit.
    pub total: Bytes,
    /// Usable now.
    pub available: Bytes,
    /// `host` or `cgroup`.
    pub limited_by: &'static str,
}

/// A cgroup's memory limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CgroupLimit {
    /// Most it may hold.
    pub max: Bytes,
    /// `max - current + file cache`.
    pub usable: Bytes,
}

/// Bytes this process moved through the storage layer, page-rounded, page cache hits not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SelfIo {
    /// Fetched from storage.
    pub read_bytes: Bytes,
    /// Sent to storage.
    pub write_bytes: Bytes,
}

/// Host memory inside cgroup limits.
#[must_use]
pub fn memory() -> Memory {
    memory_in(&Roots::system())
}

/// As [`memory`], with the cgroups below `roots`.
#[must_use]
pub fn memory_in(roots: &Roots) -> Memory {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let groups = text(&roots.proc.join("self/cgroup")).unwrap_or_default();
    combine(
        Bytes(system.total_memory()),
        Bytes(system.available_memory()),
        cgroup_limit(&roots.sys.join("fs/cgroup"), &groups),
    )
}

/// Swap space: all and free. Nothing is planned into it; a machine that swaps is slow.
#[must_use]
pub fn swap() -> (Bytes, Bytes) {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    (Bytes(system.total_swap()), Bytes(system.free_swap()))
}

/// Most of `memory` that may be pinned: under WSL Windows lets half of it be.
#[must_use]
pub fn pinnable(memory: &Memory, wsl: bool) -> Bytes {
    if wsl { memory.available.min(Bytes(memory.total.0 / 2)) } else { memory.available }
}

/// Usable host memory now; `None` where the system doesn't say.
#[must_use]
pub fn available() -> Option<Bytes> {
    let m = memory();
    (m.total > Bytes::ZERO).then_some(m.available)
}

fn combine(total: Bytes, available: Bytes, cgroup: Option<CgroupLimit>) -> Memory {
    match cgroup {
        Some(c) if c.max < total => Memory {
            total: c.max,
            available: available.min(c.usable),
            limited_by: if c.usable < available { "cgroup" } else { "host" },
        },
        Some(c) if c.usable < available => Memory { total, available: c.usable, limited_by: "cgroup" },
        _ => Memory { total, available, limited_by: "host" },
    }
}

/// The tightest limit on the way from this process's cgroup to the root, v2 and v1.
///
/// `root` is where cgroups are mounted, `groups` the text of `/proc/self/cgroup`. Inside a container that path may
/// not exist below the mount; then its nearest existing ancestor counts, which is the container's own group.
#[must_use]
pub fn cgroup_limit(root: &Path, groups: &str) -> Option<CgroupLimit> {
    let mut tightest: Option<CgroupLimit> = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let v2 = controllers.is_empty();
        if !v2 && !controllers.split(',').any(|c| c == "memory") {
            continue;
        }
        let bases: &[PathBuf] =
            &if v2 { vec![root.to_path_buf(), root.join("unified")] } else { vec![root.join("memory")] };
        let relative: PathBuf = path.split('/').filter(|c| !c.is_empty() && *c != ".." && *c != ".").collect();
        for base in bases {
            for dir in relative.ancestors() {
                let here = if v2 { limit_v2(&base.join(dir)) } else { limit_v1(&base.join(dir)) };
                if let Some(here) = here
                    && tightest.is_none_or(|t| here.usable < t.usable)
                {
                    tightest = Some(here);
                }
            }
        }
    }
    tightest
}

fn limit_v2(dir: &Path) -> Option<CgroupLimit> {
    // Past `memory.high` the kernel slows a group down to a crawl: as good as a limit.
    let limits = ["memory.max", "memory.high"].map(|name| number(&dir.join(name)));
    let max = limits.into_iter().flatten().min()?;
    // What is used may be unreadable: the limit still holds.
    let current = number(&dir.join("memory.current")).unwrap_or(0);
    let stat = std::fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
    Some(limit(max, current, field(&stat, "inactive_file") + field(&stat, "active_file")))
}

fn limit_v1(dir: &Path) -> Option<CgroupLimit> {
    // "No limit" is the largest page-aligned number there.
    let own = number(&dir.join("memory.limit_in_bytes"))?;
    let current = number(&dir.join("memory.usage_in_bytes")).unwrap_or(0);
    let stat = std::fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
    // Limits of groups above, which a container may not see, stand in its own statistics.
    let above = stat.lines().find_map(|l| l.strip_prefix("hierarchical_memory_limit ")?.trim().parse().ok());
    let max = own.min(above.unwrap_or(u64::MAX));
    if max >= 1 << 62 {
        return None;
    }
    Some(limit(max, current, field(&stat, "total_inactive_file") + field(&stat, "total_active_file")))
}

fn limit(max: u64, current: u64, file_cache: u64) -> CgroupLimit {
    let usable = max.saturating_sub(current).saturating_add(file_cache).min(max);
    CgroupLimit { max: Bytes(max), usable: Bytes(usable) }
}

/// The number in a one-number file; `None` for `max` or no file.
fn number(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// A `name value` line's value, 0 if absent.
fn field(stat: &str, name: &str) -> u64 {
    stat.lines()
        .filter_map(|l| l.split_once(' '))
        .find(|(n, _)| *n == name)
        .and_then(|(_, v)| v.trim().parse().ok())
        .unwrap_or(0)
}

/// Most memory this process may lock (io_uring's registered buffers count); `None` = no limit.
#[must_use]
pub fn memlock() -> Option<Bytes> {
    rustix::process::getrlimit(rustix::process::Resource::Memlock).current.map(Bytes)
}

/// Resident set of this process.
#[must_use]
pub fn rss() -> Option<Bytes> {
    status_kb("VmRSS")
}

/// Anonymous resident memory of this process: heap, stacks, anonymous maps; no file pages.
#[must_use]
pub fn rss_anon() -> Option<Bytes> {
    status_kb("RssAnon")
}

fn status_kb(name: &str) -> Option<Bytes> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kb| Bytes(kb * 1024))
}

/// Storage traffic of this process since it began; `None` where `/proc/self/io` is missing.
#[must_use]
pub fn self_io() -> Option<SelfIo> {
    parse_io(&std::fs::read_to_string("/proc/self/io").ok()?)
}

fn parse_io(text: &str) -> Option<SelfIo> {
    let get = |name: &str| text.lines().find_map(|l| l.strip_prefix(name)?.trim().parse().ok().map(Bytes));
    Some(SelfIo { read_bytes: get("read_bytes:")?, write_bytes: get("write_bytes:")? })
}

/// Runs under the Windows Subsystem for Linux, where pinned memory is capped well below free RAM.
#[must_use]
pub fn is_wsl() -> bool {
    is_wsl_in(&Roots::system())
}

/// As [`is_wsl`], by the files below `roots`.
#[must_use]
pub fn is_wsl_in(roots: &Roots) -> bool {
    text(&roots.proc.join("version")).is_some_and(|v| v.to_ascii_lowercase().contains("microsoft"))
}

/// The processor's model name and the threads this process may use.
#[must_use]
pub fn cpu() -> (String, u64) {
    let info = super::roots::text(std::path::Path::new("/proc/cpuinfo")).unwrap_or_default();
    let name = info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':')).map_or("", |(_, n)| n.trim());
    let name = crate::text::clean(name);
    (name, std::thread::available_parallelism().map_or(1, usize::from) as u64)
}

/// f32 rate of the processor, FLOP/s, from cores × clock × vector width × two fused multiply-adds, halved for what
/// real GEMMs reach. An assumption, and labelled one: the engine may measure better.
#[must_use]
pub fn cpu_flops() -> f64 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cores = sysinfo::System::physical_core_count().map_or(cores, |p| p.min(cores)).max(1);
    let mut system = sysinfo::System::new();
    system.refresh_cpu_frequency();
    let mhz = system.cpus().iter().map(sysinfo::Cpu::frequency).max().filter(|f| *f > 0).unwrap_or(2500);
    let lanes = if std::arch::is_x86_feature_detected!("avx512f") {
        16.0
    } else if std::arch::is_x86_feature_detected!("avx2") {
        8.0
    } else {
        4.0
    };
    cores as f64 * mhz as f64 * 1e6 * lanes * 2.0 * 2.0 * 0.5
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, files: &[(&str, &str)]) {
        std::fs::create_dir_all(dir).unwrap();
        for (name, text) in files {
            std::fs::write(dir.join(name), text).unwrap();
        }
    }

    #[test]
    fn case_pl_02_a_cgroup_limits_memory_and_file_cache_counts_as_free() {
        let root = tempfile::tempdir().unwrap();
        let files = [
            ("memory.max", "7864320000\n"),
            ("memory.current", "2481475584\n"),
            ("memory.stat", "anon 2000000000\ninactive_file 4096\nactive_file 53248\n"),
        ];
        write(&root.path().join("job"), &files);
        let limit = cgroup_limit(root.path(), "0::/job\n").unwrap();
        assert_eq!(limit.usable, Bytes(5_382_901_760));
        let m = combine(Bytes(64_000_000_000), Bytes(50_000_000_000), Some(limit));
        assert_eq!(m, Memory { total: Bytes(7_864_320_000), available: Bytes(5_382_901_760), limited_by: "cgroup" });
        // The host has less than the cgroup would allow.
        let m = combine(Bytes(64_000_000_000), Bytes(1_000_000_000), Some(limit));
        assert_eq!((m.available, m.limited_by), (Bytes(1_000_000_000), "host"));
    }

    #[test]
    fn case_pl_02_the_tightest_ancestor_counts_and_max_means_no_limit() {
        let root = tempfile::tempdir().unwrap();
        write(&root.path().join("a"), &[("memory.max", "1000"), ("memory.current", "400")]);
        write(&root.path().join("a/b"), &[("memory.max", "max"), ("memory.current", "100")]);
        assert_eq!(cgroup_limit(root.path(), "0::/a/b").unwrap().usable, Bytes(600));
        // In a container the path of /proc/self/cgroup may not exist below the mount.
        write(root.path(), &[("memory.max", "5000"), ("memory.current", "0")]);
        assert_eq!(cgroup_limit(root.path(), "0::/../elsewhere/c").unwrap().usable, Bytes(5000));
        assert_eq!(cgroup_limit(&root.path().join("none"), "0::/"), None);
    }

    #[test]
    fn case_fo_79d_memory_high_and_a_limit_without_its_use_count() {
        let root = tempfile::tempdir().unwrap();
        let usable = |files: &[(&str, &str)]| {
            let dir = root.path().join("g");
            let _ = std::fs::remove_dir_all(&dir);
            write(&dir, files);
            cgroup_limit(root.path(), "0::/g").map(|l| (l.max.0, l.usable.0))
        };
        let high = ("memory.high", "600");
        assert_eq!(usable(&[("memory.max", "1000"), high, ("memory.current", "400")]), Some((600, 200)));
        assert_eq!(usable(&[("memory.max", "max"), high, ("memory.current", "400")]), Some((600, 200)));
        assert_eq!(usable(&[("memory.max", "500"), high, ("memory.current", "400")]), Some((500, 100)));
        assert_eq!(usable(&[("memory.max", "1000"), ("memory.high", "max")]), Some((1000, 1000)), "use unreadable");
        assert_eq!(usable(&[("memory.max", "max"), ("memory.high", "max"), ("memory.current", "4")]), None);
        write(&root.path().join("memory/x"), &[("memory.limit_in_bytes", "2000")]);
        assert_eq!(cgroup_limit(root.path(), "4:memory:/x").unwrap().usable, Bytes(2000), "version 1");
    }

    #[test]
    fn case_pl_02_version_1_groups_are_read_too() {
        let root = tempfile::tempdir().unwrap();
        let files = [
            ("memory.limit_in_bytes", "2000"),
            ("memory.usage_in_bytes", "1500"),
            ("memory.stat", "inactive_file 1\ntotal_inactive_file 100\ntotal_active_file 50\n"),
        ];
        write(&root.path().join("memory/x"), &files);
        assert_eq!(cgroup_limit(root.path(), "4:cpu,memory:/x\n1:cpu:/").unwrap().usable, Bytes(650));
        write(&root.path().join("memory/x"), &[("memory.limit_in_bytes", "9223372036854771712")]);
        assert_eq!(cgroup_limit(root.path(), "4:memory:/x"), None);
        // The limit is a group's above, which this container doesn't see.
        write(
            &root.path().join("memory/x"),
            &[("memory.stat", "hierarchical_memory_limit 1800\ntotal_inactive_file 9\n")],
        );
        assert_eq!(cgroup_limit(root.path(), "4:memory:/x").unwrap().usable, Bytes(309));
    }

    #[test]
    fn case_pl_02_a_machine_shown_as_a_tree_is_limited_by_it() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::below(dir.path());
        assert_eq!(memory_in(&roots).limited_by, "host", "no cgroups are shown");
        write(&roots.proc.join("self"), &[("cgroup", "0::/job\n")]);
        write(&roots.sys.join("fs/cgroup/job"), &[("memory.max", "4096000"), ("memory.current", "1000")]);
        let m = memory_in(&roots);
        assert_eq!((m.total, m.available, m.limited_by), (Bytes(4_096_000), Bytes(4_095_000), "cgroup"));
    }

    #[test]
    fn case_pl_05_under_wsl_half_of_the_memory_may_be_pinned() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::below(dir.path());
        assert!(!is_wsl_in(&roots));
        write(&roots.proc, &[("version", "Linux version 6.6.87.2-microsoft-standard-WSL2\n")]);
        assert!(is_wsl_in(&roots));
        let m = Memory { total: Bytes(100), available: Bytes(80), limited_by: "host" };
        assert_eq!((pinnable(&m, true), pinnable(&m, false)), (Bytes(50), Bytes(80)));
        assert_eq!(pinnable(&Memory { available: Bytes(20), ..m }, true), Bytes(20));
    }

    #[test]
    fn this_process_has_memory_and_counters() {
        let m = memory();
        assert!(m.total >= m.available && m.available > Bytes::ZERO, "{m:?}");
        assert!(rss().is_none_or(|r| r > Bytes::ZERO));
        assert_eq!(
            parse_io("rchar: 9\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 0\n"),
            Some(SelfIo { read_bytes: Bytes(4096), write_bytes: Bytes(8192) })
        );
        assert_eq!(parse_io("rchar: 9\n"), None);
        assert!(cpu_flops() > 1e9);
    }
}
