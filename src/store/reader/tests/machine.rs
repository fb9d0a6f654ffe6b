//! What a machine or a container may refuse, and what reading must not do to it.

use super::*;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Set in the child of `registered_buffers_refused_*`.
const CHILD: &str = "BSTUI_TEST_MEMLOCK";

/// Takes the right to lock memory away from this process and what it starts.
fn forbid_locked_memory() -> std::io::Result<()> {
    const CAP_IPC_LOCK: libc::c_ulong = 14;
    let limit = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
    // SAFETY: plain calls on this process; without the right to drop a capability there is none to drop.
    unsafe {
        libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit);
        libc::prctl(libc::PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0);
    }
    Ok(())
}

#[test]
fn registered_buffers_refused_by_the_memlock_limit_are_told() {
    if std::env::var_os(CHILD).is_none() {
        let here = module_path!().split_once("::").unwrap().1;
        let name = format!("{here}::registered_buffers_refused_by_the_memlock_limit_are_told");
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", &name, "--nocapture"]).env(CHILD, "1");
        // SAFETY: two system calls between fork and exec.
        let child = unsafe { child.pre_exec(forbid_locked_memory) };
        let out = child.output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let f = files(&[3 * MIB + 100]);
    let reader = Reader::of_files(&f.files, Options::default()).unwrap();
    if reader.describe().starts_with("pread") {
        return;
    }
    let (small, m) = (memory(SECTOR, 0), memory(4 * MIB, 0));
    reader.register(&m).unwrap();
    let name = reader.describe();
    assert!(name.contains("depth 32 (registered buffers refused: memlock limit 1 MB)"), "{name}");
    reader.read_at(0, 0, 4 * MIB, m.at(0)).unwrap().wait().unwrap();
    assert!(bytes_of(&m, 0, f.contents[0].len()) == &f.contents[0][..]);
    // A refused arena took nothing of the limit: a small one still fits.
    reader.register(&small).unwrap();
    let name = reader.describe();
    assert!(name.contains("registered buffers for 1 of 2 arenas"), "{name}");
}

/// From here on io_uring_setup answers EPERM on this thread and those it starts, as in many containers.
fn forbid_io_uring() -> bool {
    let op = |code: u32, k: u32, jt, jf| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut filter = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_io_uring_setup as u32, 0, 1),
        op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0),
        op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program outlives the calls, which touch this thread alone.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &program) == 0
    }
}

#[test]
fn without_io_uring_the_pool_reads_and_says_why() {
    let in_a_container = || {
        if !forbid_io_uring() {
            eprintln!("skipped: no seccomp filter can be set here");
            return;
        }
        let f = files(&[2 * MIB + 5]);
        let reader = Reader::of_files(&f.files, Options::default()).unwrap();
        let name = reader.describe();
        assert!(name.starts_with("pread, ") && name.ends_with(", 4 threads (io_uring: not permitted)"), "{name}");
        let m = memory(3 * MIB, 0);
        reader.register(&m).unwrap();
        reader.read_at(0, 0, 3 * MIB, m.at(0)).unwrap().wait().unwrap();
        assert!(bytes_of(&m, 0, f.contents[0].len()) == &f.contents[0][..]);
        let e = Reader::of_files(&f.files, options(Backend::Uring)).unwrap_err();
        assert!(e.what().contains("io_uring: not permitted"), "{e}");
    };
    std::thread::spawn(in_a_container).join().unwrap();
}

/// Pages of `path` in the page cache.
fn resident(path: &Path) -> usize {
    let file = std::fs::File::open(path).unwrap();
    // SAFETY: a test's own file, that no one writes.
    let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
    let mut pages = vec![0_u8; map.len().div_ceil(SECTOR as usize)];
    // SAFETY: the mapping and one byte for each of its pages.
    assert_eq!(unsafe { libc::mincore(map.as_ptr() as *mut _, map.len(), pages.as_mut_ptr()) }, 0);
    pages.iter().filter(|&&p| p & 1 == 1).count()
}

/// Whether a direct read is known to leave the page cache alone there.
fn is_ext4_or_xfs(path: &Path) -> bool {
    const KNOWN: [i64; 2] = [0xef53, 0x5846_5342];
    rustix::fs::statfs(path).is_ok_and(|s| KNOWN.contains(&s.f_type))
}

fn drop_from_cache(path: &Path) {
    let file = std::fs::File::open(path).unwrap();
    // SAFETY: a plain call on an open file.
    assert_eq!(unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) }, 0);
}

#[test]
fn case_pl_11_the_page_cache_stays_as_it_was() {
    let f = files(&[6 * MIB + 100]);
    let path = &f.files[0].path;
    drop_from_cache(path);
    if !is_ext4_or_xfs(path) || resident(path) > 0 {
        eprintln!("skipped: needs a file system that is known to read past the page cache");
        return;
    }
    for (backend, register) in rungs() {
        let reader = Reader::of_files(&f.files, options(backend)).unwrap();
        let name = reader.describe();
        assert!(name.contains(", O_DIRECT,"), "{name}");
        let m = memory(7 * MIB, 0);
        if register {
            reader.register(&m).unwrap();
        }
        reader.read_at(0, 0, 7 * MIB, m.at(0)).unwrap().wait().unwrap();
        assert_eq!(resident(path), 0, "{name}");
    }
}

#[test]
fn case_pl_11_reads_that_fill_the_page_cache_are_seen() {
    let f = files(&[6 * MIB]);
    let path = &f.files[0].path;
    drop_from_cache(path);
    // SAFETY: asks whether the kernel has the call; it fails on the descriptor.
    let known = unsafe { libc::syscall(451, -1, 0, 0, 0) } != -1
        || std::io::Error::last_os_error().raw_os_error() != Some(libc::ENOSYS);
    if !is_ext4_or_xfs(path) || resident(path) > 0 || !known {
        eprintln!("skipped: needs ext4 or xfs and cachestat(2)");
        return;
    }
    // A buffered descriptor behaves as a direct one does on ZFS.
    let buffered = std::fs::File::open(path).unwrap();
    assert!(super::super::source::fills_cache(&buffered, 6 * MIB));
    drop_from_cache(path);
    let direct = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
    assert!(!super::super::source::fills_cache(&direct, 6 * MIB));
}

#[test]
fn reading_writes_nothing() {
    let f = files(&[8 * MIB]);
    for backend in backends() {
        let reader = Reader::of_files(&f.files, options(backend)).unwrap();
        let m = memory(8 * MIB, 0);
        let read = || reader.read_at(0, 0, 8 * MIB, m.at(0)).unwrap().wait().unwrap();
        read();
        // Only the reader's own threads: other tests of this process write files.
        let written = || {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
            tasks
                .filter(|t| {
                    let name = std::fs::read_to_string(t.path().join("comm")).unwrap_or_default();
                    name.starts_with("reader") || name.starts_with("iou-wrk")
                })
                .filter_map(|t| std::fs::read_to_string(t.path().join("io")).ok())
                .filter_map(|io| crate::device::io::field(&io, "write_bytes"))
                .collect::<Vec<u64>>()
        };
        read();
        assert!(!written().is_empty(), "{backend:?}: its threads are found by name");
        assert!(written().iter().all(|&n| n == 0), "{backend:?}: {:?}", written());
    }
}

#[test]
fn tickets_and_readers_may_cross_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Reader>();
    shared::<super::super::ReadTicket>();
}
