//! A chunk in the queue, the requests it is cut into, and what to do with the kernel's answer to one.

use super::source::Source;
use super::ticket::TicketState;
use crate::error::{Error, Kind};
use crate::store::layout::SECTOR;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

/// Interrupted or "try again" answers to one request before it fails.
const RETRIES: u32 = 1000;

/// An aligned range of a file on its way to host memory.
#[derive(Debug)]
pub(super) struct Chunk {
    pub file: usize,
    pub offset: u64,
    /// Multiple of [`SECTOR`]; ends in the file's last sector at the latest.
    pub len: u64,
    /// Address of the caller's memory.
    pub dst: usize,
    pub ticket: Arc<TicketState>,
    /// Bytes already cut off.
    pub at: u64,
}

impl Chunk {
    /// Requests of up to `size` bytes still to be cut off.
    pub fn requests(&self, size: u64) -> usize {
        (self.len - self.at).div_ceil(size) as usize
    }

    /// Cuts off the next request.
    pub fn cut(&mut self, size: u64, source: &Source) -> Request {
        let (offset, len) = (self.offset + self.at, size.min(self.len - self.at));
        let request = Request {
            file: self.file,
            offset,
            len,
            want: len.min(source.len.saturating_sub(offset)),
            dst: self.dst + self.at as usize,
            got: 0,
            retries: 0,
            ticket: self.ticket.clone(),
        };
        self.at += len;
        request
    }
}

/// One read of the kernel, repeated until all of it is there.
#[derive(Debug)]
pub(super) struct Request {
    pub file: usize,
    pub offset: u64,
    /// Aligned length.
    pub len: u64,
    /// Bytes that must arrive: less than `len` only at the end of the file.
    pub want: u64,
    pub dst: usize,
    pub got: u64,
    retries: u32,
    pub ticket: Arc<TicketState>,
}

/// What to ask the kernel for next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub fd: RawFd,
    pub direct: bool,
    pub offset: u64,
    /// Address of the memory.
    pub dst: usize,
    pub len: u32,
    /// May block the caller for long: let another thread do it.
    pub punt: bool,
}

/// Where a request stands after an answer.
#[derive(Debug)]
pub(super) enum Outcome {
    /// All of it is there.
    Done,
    /// Ask for the rest.
    More,
    /// It can't be had.
    Failed(Error),
}

impl Request {
    /// The next read: direct while aligned; the rest after a short read may not be, and goes through the page cache.
    pub fn ask(&self, source: &Source) -> Ask {
        let direct = source.direct_fd().filter(|_| self.got.is_multiple_of(SECTOR));
        let end = if direct.is_some() { self.len } else { self.want };
        Ask {
            fd: direct.unwrap_or(source.buffered_fd()),
            direct: direct.is_some(),
            offset: self.offset + self.got,
            dst: self.dst + self.got as usize,
            len: (end - self.got) as u32,
            punt: direct.is_none() || self.retries > 0,
        }
    }

    /// Takes the answer to `ask`: bytes read, or the error.
    pub fn outcome(&mut self, ask: &Ask, answer: io::Result<usize>, source: &Source) -> Outcome {
        let path = source.path.display();
        match answer {
            Ok(0) => Outcome::Failed(
                Error::checkpoint(format!(
                    "'{path}' ended early: {} of {} bytes at offset {}",
                    self.got, self.want, self.offset
                ))
                .next("the file was cut while in use; restore it and resume the run"),
            ),
            Ok(n) => {
                self.got += n as u64;
                if self.got >= self.want { Outcome::Done } else { Outcome::More }
            }
            Err(e) => match e.raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN) if self.retries < RETRIES => {
                    self.retries += 1;
                    Outcome::More
                }
                // The probe was served and this is not: a file system with rules of its own.
                Some(libc::EINVAL | libc::EOPNOTSUPP) if ask.direct => {
                    source.refuse_direct();
                    Outcome::More
                }
                _ => Outcome::Failed(
                    Error::new(Kind::Io, format!("cannot read '{path}' at offset {}: {e}", ask.offset))
                        .because(e)
                        .next("check the drive (`dmesg` names its errors); nothing was lost, resume when it answers"),
                ),
            },
        }
    }
}
