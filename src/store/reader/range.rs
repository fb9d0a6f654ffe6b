//! Reading a byte range in order, through two buffers of its own: one fills while the other is taken.

use super::{ReadTicket, Reader};
use crate::error::Result;
use crate::store::HostMemory;
use crate::store::layout::SECTOR;

/// Bytes of one buffer.
const PIECE: u64 = 32 << 20;

/// A buffer and the read that fills it.
struct Half {
    memory: HostMemory,
    read: Option<ReadTicket>,
}

impl Drop for Half {
    fn drop(&mut self) {
        // The kernel may still write to it: after an error in the other half, or past the stall limit.
        if let Some(read) = self.read.take()
            && read.wait().is_err()
            && !read.is_done()
            && let Ok(empty) = HostMemory::new(1)
        {
            std::mem::forget(std::mem::replace(&mut self.memory, empty));
        }
    }
}

impl Reader {
    /// Reads `[offset, offset + len)` of file `file` and hands the bytes to `take` in order, in pieces. The range lies
    /// inside the file.
    ///
    /// # Errors
    /// The read fails, or `take` does.
    pub fn read_range(
        &self,
        file: usize,
        offset: u64,
        len: u64,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let (start, end) = (offset / SECTOR * SECTOR, offset + len);
        let pieces = (end - start).div_ceil(PIECE);
        let room = PIECE.min((end - start).next_multiple_of(SECTOR));
        let mut halves = (0..pieces.min(2))
            .map(|_| Ok(Half { memory: HostMemory::new(room)?, read: None }))
            .collect::<Result<Vec<_>>>()?;
        let begin = |half: &mut Half, piece: u64| -> Result<()> {
            let at = start + piece * PIECE;
            let read = self.read_at(file, at, PIECE.min((end - at).next_multiple_of(SECTOR)), half.memory.at(0))?;
            half.read = Some(read);
            Ok(())
        };
        for piece in 0..pieces {
            let at = start + piece * PIECE;
            let (this, other) = ((piece % 2) as usize, ((piece + 1) % 2) as usize);
            if piece == 0 {
                begin(&mut halves[this], piece)?;
            }
            if piece + 1 < pieces {
                begin(&mut halves[other], piece + 1)?;
            }
            if let Some(read) = &halves[this].read {
                read.wait()?;
            }
            let (from, to) = (offset.max(at) - at, end.min(at + PIECE) - at);
            // SAFETY: inside the mapping; the read is done, so nothing writes to it.
            take(unsafe { std::slice::from_raw_parts(halves[this].memory.at(from), (to - from) as usize) })?;
        }
        Ok(())
    }
}
