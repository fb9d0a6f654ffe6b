//! The SMART log of an NVMe drive, asked for by its own command (NVM Express base specification, Get Log Page, log
//! identifier 02h). The kernel lets only root do that.

use super::{Roots, Wear, share};
use crate::units::Bytes;
use std::os::fd::AsRawFd;

/// `_IOWR('N', 0x41, struct nvme_admin_cmd)` of `linux/nvme_ioctl.h`.
const ADMIN: libc::c_ulong = 0xC048_4E41;
/// Get Log Page.
const OPCODE: u8 = 0x02;
/// SMART / health information, of the whole controller.
const LOG: u32 = 0x02;
/// Bytes of the log.
const LEN: usize = 512;
/// What a data unit of the log counts: a thousand sectors of 512 bytes.
const UNIT: u128 = 512_000;

/// `struct nvme_admin_cmd` of `linux/nvme_ioctl.h`.
#[repr(C)]
#[derive(Default)]
struct Command {
    opcode: u8,
    flags: u8,
    rsvd1: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    addr: u64,
    metadata_len: u32,
    data_len: u32,
    cdw10: u32,
    cdw11: u32,
    cdw12: u32,
    cdw13: u32,
    cdw14: u32,
    cdw15: u32,
    timeout_ms: u32,
    result: u32,
}

const _: () = assert!(size_of::<Command>() == 72);

/// Asks the controller of `name`.
///
/// # Errors
/// In words, why it doesn't answer.
pub(super) fn ask(roots: &Roots, name: &str) -> Result<Wear, String> {
    let controller = controller(name).ok_or("only NVMe drives have it")?;
    let path = roots.dev.join(&controller);
    let device = std::fs::File::open(&path).map_err(|e| format!("'{}': {e}", path.display()))?;
    let mut page = [0_u8; LEN];
    let mut command = Command {
        opcode: OPCODE,
        nsid: u32::MAX,
        addr: page.as_mut_ptr() as u64,
        data_len: LEN as u32,
        // Number of dwords, counted from zero, above the log's identifier.
        cdw10: ((LEN as u32 / 4 - 1) << 16) | LOG,
        timeout_ms: 1000,
        ..Command::default()
    };
    // SAFETY: a command of the kernel's layout that only reads, and a buffer of the length it names; both are ours for
    // the call. Any other kind of file refuses the number.
    let status = unsafe { libc::ioctl(device.as_raw_fd(), ADMIN, &raw mut command) };
    match status {
        0 => parse(&page).ok_or_else(|| "the log is empty".into()),
        -1 => Err(format!("'{}': {}", path.display(), std::io::Error::last_os_error())),
        code => Err(format!("the drive answers with status {code:#x}")),
    }
}

/// `nvme0` of `nvme0n1`.
fn controller(name: &str) -> Option<String> {
    let number = name.strip_prefix("nvme")?.split('n').next()?;
    let plain = !number.is_empty() && number.len() < 6 && number.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| format!("nvme{number}"))
}

/// The figures of a log; `None` of one that holds nothing.
fn parse(page: &[u8; LEN]) -> Option<Wear> {
    if page.iter().all(|b| *b == 0) {
        return None;
    }
    let units = u128::from_le_bytes(page[48..64].try_into().ok()?);
    // Zero units of a drive that holds files: not reported.
    let written = (units > 0).then(|| u64::try_from(units.saturating_mul(UNIT)).ok()).flatten();
    Some(Wear {
        written: written.map(Bytes),
        life_used: Some(share(page[5])),
        spare: Some(share(page[3])),
        ..Wear::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(used: u8, spare: u8, units: u128) -> [u8; LEN] {
        let mut p = [0; LEN];
        (p[1], p[2], p[3], p[4], p[5]) = (0x39, 0x01, spare, 10, used);
        p[32..48].copy_from_slice(&7_u128.to_le_bytes());
        p[48..64].copy_from_slice(&units.to_le_bytes());
        p
    }

    #[test]
    fn a_logs_bytes_are_the_drives_life() {
        let w = parse(&page(3, 100, 41_943_040)).unwrap();
        assert_eq!(w.written, Some(Bytes(41_943_040 * 512_000)));
        assert_eq!((w.life_used, w.spare), (Some(0.03), Some(1.0)));
        let w = parse(&page(255, 0, u128::MAX)).unwrap();
        assert_eq!((w.written, w.life_used), (None, Some(2.55)), "past its life, and a count that can't be");
        assert_eq!(parse(&page(1, 100, 0)).unwrap().written, None);
        assert_eq!(parse(&[0; LEN]), None);
    }

    #[test]
    fn a_controller_is_named_by_its_namespace_and_nothing_else() {
        assert_eq!(controller("nvme12n1"), Some("nvme12".into()));
        for no in ["sda", "nvme", "nvmen1", "nvme../x", "nvme0/../../x"] {
            assert_eq!(controller(no), None, "{no}");
        }
    }

    #[test]
    fn what_is_no_drive_refuses_the_command() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::below(dir.path());
        std::fs::create_dir_all(&roots.dev).unwrap();
        assert!(ask(&roots, "nvme0n1").unwrap_err().contains("nvme0"));
        std::fs::write(roots.dev.join("nvme0"), "a file").unwrap();
        assert!(ask(&roots, "nvme0n1").is_err());
        assert!(ask(&roots, "sda").unwrap_err().contains("only NVMe"));
    }
}
