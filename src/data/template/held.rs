//! What a template's thread may hold in memory. Fuel pays for most that a template builds, but minijinja joins lists
//! lazily and copies them out unpaid: a list doubled 33 times would take 200 GB in one instruction.
//!
//! Only the allocator sees such memory come, and it may neither unwind nor, without ending the process, say no. So a
//! thread that goes past its limit stays in the allocator for ever: what it holds, at most the limit, is lost.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Most bytes that one compilation or rendering may hold.
pub const MOST: i64 = 512 << 20;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The system's allocator; it counts on threads that have a limit.
struct Counting;

thread_local! {
    /// Bytes this thread may still take; `None` = no limit.
    static LEFT: Cell<Option<i64>> = const { Cell::new(None) };
    /// Whom to tell that it went past them.
    static PAST: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Threads that stand still for good, each with what it held.
static STANDING: AtomicUsize = AtomicUsize::new(0);

/// Threads that went past their limit since the program began; none of them gives anything back.
#[must_use]
pub fn standing() -> usize {
    STANDING.load(Ordering::SeqCst)
}

/// Takes the limit from this thread: what it waits for in between is not its job's.
pub fn end() {
    LEFT.set(None);
}

/// Gives this thread its limit, anew; `past` is set when it has gone past it and stands still.
pub fn begin(past: &Arc<AtomicBool>) {
    LEFT.set(None);
    PAST.set(Some(past.clone()));
    LEFT.set(Some(MOST));
}

/// Counts `bytes` taken by this thread, or given back.
fn count(bytes: i64) {
    let Some(left) = LEFT.get() else { return };
    LEFT.set(Some(left - bytes));
    if left < bytes && bytes > 0 {
        // What follows may allocate.
        LEFT.set(None);
        STANDING.fetch_add(1, Ordering::SeqCst);
        // A panic in here would end the process.
        let tell = |past: &RefCell<Option<Arc<AtomicBool>>>| {
            past.try_borrow().into_iter().for_each(|p| p.iter().for_each(|p| p.store(true, Ordering::SeqCst)));
        };
        let _ = PAST.try_with(tell);
        loop {
            std::thread::park();
        }
    }
}

// SAFETY: every call is passed to the system's allocator as it came; counting touches only this thread's cells.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller keeps to `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller keeps to `GlobalAlloc::alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: `at` came from the system's allocator with this layout.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: `at` came from the system's allocator with this layout.
        unsafe { System.realloc(at, layout, size) }
    }
}
