//! Free space as this user may really take it: blocks kept for root don't count, and a quota may leave less.

use crate::units::Bytes;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

/// What is free, and what a quota says to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    /// The smaller of the file system's free space and the quota's rest.
    pub free: Option<Bytes>,
    /// What the quota leaves; `None` where there is none or it can't be asked.
    pub quota_left: Option<Bytes>,
    /// Why no quota was asked; `None` where it answered.
    pub why_no_quota: Option<String>,
}

/// Free space of the file system below `path` for an ordinary user.
///
/// Limits on a project (a folder with its inheritance flag) are already in the file system's own answer.
#[must_use]
pub fn of(path: &Path) -> Space {
    let bavail = rustix::fs::statvfs(path).ok().map(|s| Bytes(s.f_bavail.saturating_mul(s.f_frsize)));
    match quota(path) {
        Ok(left) => Space { free: smaller(bavail, left), quota_left: left, why_no_quota: None },
        Err(why) => Space { free: bavail, quota_left: None, why_no_quota: Some(why) },
    }
}

fn smaller(a: Option<Bytes>, b: Option<Bytes>) -> Option<Bytes> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Limits are counted in these.
const QUOTA_BLOCK: u64 = 1024;
/// `Q_GETQUOTA` of `linux/quota.h`.
const GET: u32 = 0x0080_0007;

/// What the quotas of this user and group leave; `None` where they set no limit.
///
/// # Errors
/// In words, why the kernel doesn't answer.
fn quota(path: &Path) -> Result<Option<Bytes>, String> {
    let dir = File::open(path).map_err(|e| e.to_string())?;
    let ids = [rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()];
    let mut left = None;
    for (kind, id) in ids.into_iter().enumerate() {
        // SAFETY: a plain structure of integers, for which zero is a value.
        let mut block: libc::dqblk = unsafe { std::mem::zeroed() };
        let command = (GET << 8) | kind as u32;
        // SAFETY: an open file and a structure of the kernel's layout, both ours for the call; nothing is changed.
        let rc = unsafe { libc::syscall(libc::SYS_quotactl_fd, dir.as_raw_fd(), command, id, &raw mut block) };
        if rc == 0 {
            left = smaller(left, rest(block.dqb_bhardlimit, block.dqb_bsoftlimit, block.dqb_curspace));
            continue;
        }
        match std::io::Error::last_os_error().raw_os_error() {
            // Quotas of this kind are off, or this id has none.
            Some(libc::ESRCH | libc::ENOENT) => {}
            Some(libc::ENOSYS | libc::EOPNOTSUPP) => return Err("no quotas in this kernel or file system".into()),
            Some(libc::ENOTBLK | libc::ENODEV | libc::EINVAL) => return Err("this file system has no quotas".into()),
            Some(libc::EPERM | libc::EACCES) => return Err("the kernel doesn't let this process ask".into()),
            Some(code) => return Err(std::io::Error::from_raw_os_error(code).to_string()),
            None => return Err("the kernel gives no reason".into()),
        }
    }
    Ok(left)
}

/// What limits (in [`QUOTA_BLOCK`]s; 0 = none) leave beside `used` bytes. A soft limit counts where it is the only one:
/// past it writes fail once its grace period is over.
fn rest(hard: u64, soft: u64, used: u64) -> Option<Bytes> {
    let limit = if hard > 0 { hard } else { soft };
    (limit > 0).then(|| Bytes(limit.saturating_mul(QUOTA_BLOCK).saturating_sub(used)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_pl_10_a_quota_below_the_free_space_counts() {
        assert_eq!(rest(1000, 500, 24_000), Some(Bytes(1_000_000)));
        assert_eq!(rest(0, 500, 12_000), Some(Bytes(500_000)), "a soft limit alone");
        assert_eq!(rest(10, 0, 99_999), Some(Bytes::ZERO), "already past it");
        assert_eq!(rest(0, 0, 5), None);
        assert_eq!(smaller(Some(Bytes(9)), Some(Bytes(4))), Some(Bytes(4)));
        assert_eq!(smaller(Some(Bytes(9)), None), Some(Bytes(9)));
    }

    #[test]
    fn case_pl_10_where_quotas_are_forbidden_the_reason_is_said_and_reserved_blocks_do_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let space = of(dir.path());
        let stat = rustix::fs::statvfs(dir.path()).unwrap();
        // Other tests write meanwhile: only an upper bound stands still.
        assert!(space.free.is_some_and(|f| f.0 <= stat.f_blocks * stat.f_frsize), "{space:?}");
        match &space.why_no_quota {
            Some(why) => assert!(!why.is_empty() && space.quota_left.is_none(), "{space:?}"),
            None => assert!(space.quota_left.is_none_or(|q| space.free <= Some(q)), "{space:?}"),
        }
    }
}
