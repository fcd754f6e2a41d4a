//! Which allocator has what: small things mimalloc, medium buffers runs of pages, large ones the C library; and how memory goes
//! back to the system.
#![expect(unsafe_code, reason = "allocators have no safe interface")]

mod runs;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;
use std::time::{Duration, Instant};

use mimalloc::MiMalloc;

pub use runs::{PAGE, Paged};

/// The program's allocator.
///
/// Large buffers are the system's: their memory must be gone when they are. So are medium ones, for which a mapping each would be too
/// many (`allocator/runs.rs`). Small things are mimalloc's, which has a heap
/// for each thread. The C library's heaps have a lock each, and a thread that decodes, which is nicer than those that
/// serve, may lose its core while it holds one: beside eight clients with blocks of xz one answer of 250 then waited for
/// up to 5 ms. Nor do threads that serve wait for each other: two answer 36,800 cached planes a second in place of 24,900,
/// and 17,200 documents of `/info` in place of 10,300.
#[derive(Debug)]
pub struct Allocator;

/// The allocator that a block of memory comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// mimalloc; also for medium blocks where no runs are available.
    Small,
    /// [`runs`].
    Medium,
    /// The C library.
    Large,
}

impl Owner {
    /// The allocator for a new block.
    fn of(layout: Layout) -> Self {
        match layout.size() {
            LARGE_BYTES.. => Self::Large,
            MEDIUM_BYTES.. if layout.align() <= PAGE => Self::Medium,
            _ => Self::Small,
        }
    }

    /// The allocator that an existing block came from.
    fn of_block(block: *mut u8, layout: Layout) -> Self {
        let owner = Self::of(layout);
        if owner == Self::Medium && !runs::is_run(block) { Self::Small } else { owner }
    }
}

// SAFETY: all are allocators. Which of them has a block follows from the size in its layout, which is the same from its allocation
// to its end, and for medium ones from its address; where a new size is another's, the block moves.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those of each.
        unsafe {
            match Owner::of(layout) {
                Owner::Large => System.alloc(layout),
                Owner::Medium => runs::take(layout.size()).unwrap_or_else(|| MiMalloc.alloc(layout)),
                Owner::Small => MiMalloc.alloc(layout),
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above; a run has as many bytes.
        unsafe {
            match Owner::of(layout) {
                Owner::Large => System.alloc_zeroed(layout),
                Owner::Medium => {
                    let block = self.alloc(layout);
                    if !block.is_null() {
                        block.write_bytes(0, layout.size());
                    }
                    block
                }
                Owner::Small => MiMalloc.alloc_zeroed(layout),
            }
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above; the block is of the one that its layout and address say.
        unsafe {
            match Owner::of_block(block, layout) {
                Owner::Large => System.dealloc(block, layout),
                Owner::Medium => runs::give_back(block, layout.size()),
                Owner::Small => MiMalloc.dealloc(block, layout),
            }
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above; the caller promises that `size` makes a layout with this alignment.
        unsafe {
            let new_layout = Layout::from_size_align_unchecked(size, layout.align());
            match (Owner::of_block(block, layout), Owner::of(new_layout)) {
                (Owner::Large, Owner::Large) => System.realloc(block, layout, size),
                (Owner::Small, Owner::Small) => MiMalloc.realloc(block, layout, size),
                (Owner::Medium, Owner::Medium) if layout.size().div_ceil(PAGE) == size.div_ceil(PAGE) => block,
                _ => {
                    let moved = self.alloc(new_layout);
                    if !moved.is_null() {
                        ptr::copy_nonoverlapping(block, moved, layout.size().min(size));
                        self.dealloc(block, layout);
                    }
                    moved
                }
            }
        }
    }
}

/// Buffers of this size and above are mapped from the system one by one and given back when freed.
pub const LARGE_BYTES: usize = 64 << 10;

/// Buffers of this size and above, which mimalloc would put into pages of 512 KiB, have pages of their own.
const MEDIUM_BYTES: usize = (8 << 10) + 1;

/// mimalloc's option `purge_delay`, which its bindings have no name for; a test holds that it is the one.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// Returns true if a buffer of `bytes` bytes is allocated in pages of its own.
pub fn is_paged(bytes: usize) -> bool {
    (MEDIUM_BYTES..LARGE_BYTES).contains(&bytes)
}

/// Milliseconds for which mimalloc keeps memory that is free. With its own second (version 3.3), small blocks that large
/// ones had driven out of a cache of 512 MiB were still resident when those had come: 923 MiB at the most, 682 with this,
/// and as many answers a second. (Zero: 656, and each page given back is faulted in anew.)
const KEPT_MILLISECONDS: std::ffi::c_long = 10;

/// Makes the memory of blocks and slices return to the system soon after they are dropped.
///
/// Left alone, glibc raises this threshold to 32 MiB once such buffers have been freed, keeps them in
/// its heaps, and the process outgrows its budgets: streaming a dense gzip volume of 2 GiB peaked at 850 MB
/// resident by default, 417 MB with the threshold fixed, 523 MB under jemalloc and 589 MB under mimalloc,
/// in the same time (each with everything by one allocator). Under another C library that is as it has it.
pub fn return_memory() {
    // SAFETY: only sets a number, which any thread may read meanwhile.
    unsafe {
        libmimalloc_sys::mi_option_set(PURGE_DELAY, KEPT_MILLISECONDS);
    }
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // One heap a core: glibc's eight a core would each keep what is freed into it.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // SAFETY: mallopt only sets parameters of the allocator, and no other thread runs yet.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, i32::try_from(LARGE_BYTES).unwrap_or(i32::MAX));
            libc::mallopt(libc::M_ARENA_MAX, i32::try_from(cores).unwrap_or(i32::MAX));
        }
    }
}

/// Resident bytes that must have come since memory was last given back, for all of it to be worth the work again.
#[cfg(target_os = "linux")]
const GROWN_BYTES: usize = 16 << 20;

/// Gives freed memory back to the system: what mimalloc has kept for a while (it does so itself only when a thread needs a
/// new page) and, where the process has grown since the last time, whatever no thread's heap keeps, also of the C library's.
pub fn trim() {
    #[cfg(target_os = "linux")]
    {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static LAST: AtomicUsize = AtomicUsize::new(0);
        let Some(resident) = resident_bytes() else { return };
        let last = LAST.load(Ordering::Relaxed);
        let has_grown = resident > last.saturating_add(GROWN_BYTES);
        // SAFETY: may be called at any time by any thread that has no heap of its own making.
        unsafe {
            libmimalloc_sys::mi_collect(has_grown);
        }
        #[cfg(target_env = "gnu")]
        if has_grown {
            // SAFETY: malloc_trim may be called at any time by any thread; it takes the heaps' own locks.
            unsafe {
                libc::malloc_trim(0);
            }
        }
        let left = if has_grown { resident_bytes().unwrap_or(resident) } else { resident.min(last) };
        LAST.store(left, Ordering::Relaxed);
    }
}

/// The least time between two collections of one thread's heap.
const COLLECT_INTERVAL: Duration = Duration::from_millis(100);

/// Collecting takes at most one hundredth of a thread's time: a heap with gigabytes of cached blocks has many pages.
const COLLECT_PART: u32 = 100;

/// Returns free memory of the calling thread's heap to the system: one page for each size class, up to 512 KiB each, and
/// the pages whose blocks other threads have freed. mimalloc itself looks at these only when the thread allocates again.
/// Does nothing if the last collection was less than a tenth of a second ago.
///
/// Threads that work on requests call this when they have finished some work: with 32 threads, 150 MiB in place of 281
/// remained after a load, and 326 in place of 470 at its peak.
pub fn collect() {
    thread_local! {
        static NEXT: Cell<Option<Instant>> = const { Cell::new(None) };
    }
    let begin = Instant::now();
    if NEXT.get().is_some_and(|next| begin < next) {
        return;
    }
    // SAFETY: may be called at any time by any thread; the heap is the calling thread's own.
    unsafe {
        libmimalloc_sys::mi_collect(true);
    }
    let end = Instant::now();
    let pause = COLLECT_INTERVAL.max(end.saturating_duration_since(begin).saturating_mul(COLLECT_PART));
    NEXT.set(end.checked_add(pause));
}

/// Memory of this process that is in RAM, in bytes.
#[cfg(target_os = "linux")]
#[expect(clippy::disallowed_methods, reason = "the process's own figures, no container's file")]
fn resident_bytes() -> Option<usize> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: usize = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages.saturating_mul(rustix::param::page_size()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes about the one where the other allocator begins, and alignments that are more than a heap gives anyhow.
    const SIZES: [usize; 8] =
        [1, 100, MEDIUM_BYTES - 1, MEDIUM_BYTES, LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 1, 3 * LARGE_BYTES];
    const ALIGNMENTS: [usize; 4] = [1, 16, 64, 4096];

    fn byte_at(at: usize) -> u8 {
        (at % 251).to_le_bytes()[0]
    }

    fn filled(block: *mut u8, layout: Layout) {
        assert!(!block.is_null() && block.addr().is_multiple_of(layout.align()), "{layout:?}");
        for at in 0..layout.size() {
            // SAFETY: within the block.
            unsafe { block.add(at).write(byte_at(at)) };
        }
    }

    fn holds(block: *const u8, bytes: usize) -> bool {
        // SAFETY: the callers' blocks have so many bytes, all written.
        unsafe { std::slice::from_raw_parts(block, bytes) }.iter().enumerate().all(|(at, &byte)| byte == byte_at(at))
    }

    #[test]
    fn blocks_keep_their_bytes_and_alignment_wherever_they_move() {
        for (size, new_size) in SIZES.iter().flat_map(|&from| SIZES.iter().map(move |&to| (from, to))) {
            for align in ALIGNMENTS {
                let layout = Layout::from_size_align(size, align).unwrap();
                let new_layout = Layout::from_size_align(new_size, align).unwrap();
                // SAFETY: layouts are of no zero size, each block is freed once with the layout that it has then.
                unsafe {
                    let block = Allocator.alloc(layout);
                    filled(block, layout);
                    let moved = Allocator.realloc(block, layout, new_size);
                    assert!(!moved.is_null() && moved.addr().is_multiple_of(align), "{layout:?} to {new_size}");
                    assert!(holds(moved, size.min(new_size)), "{layout:?} to {new_size}");
                    filled(moved, new_layout);
                    Allocator.dealloc(moved, new_layout);
                }
            }
        }
    }

    #[test]
    fn zeroed_blocks_are_so_where_others_were_before() {
        for layout in
            SIZES.iter().flat_map(|&size| ALIGNMENTS.map(|align| Layout::from_size_align(size, align).unwrap()))
        {
            // SAFETY: as above.
            unsafe {
                let used = Allocator.alloc(layout);
                filled(used, layout);
                Allocator.dealloc(used, layout);
                let block = Allocator.alloc_zeroed(layout);
                assert!((0..layout.size()).all(|at| block.add(at).read() == 0), "{layout:?}");
                Allocator.dealloc(block, layout);
            }
        }
    }

    #[test]
    fn the_option_that_is_set_is_the_purge_delay() {
        // SAFETY: reads and writes a number that nothing here depends on.
        unsafe {
            assert_eq!(libmimalloc_sys::mi_option_get(PURGE_DELAY), 1000, "its default in this version");
            return_memory();
            assert_eq!(libmimalloc_sys::mi_option_get(PURGE_DELAY), KEPT_MILLISECONDS);
        }
    }

    #[test]
    fn a_block_that_cannot_be_had_stays_as_it_was() {
        let layout = Layout::from_size_align(100, 8).unwrap();
        // SAFETY: as above; the new size makes a layout, which no machine can fill.
        unsafe {
            let block = Allocator.alloc(layout);
            filled(block, layout);
            assert!(Allocator.realloc(block, layout, isize::MAX as usize & !7).is_null());
            assert!(holds(block, 100));
            Allocator.dealloc(block, layout);
        }
    }

    /// Allocates more than other tests of this process do at the same time.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_gives_back_what_other_threads_have_freed() {
        use std::sync::mpsc::channel;
        const BYTES: usize = 32 << 10;
        const COUNT: usize = (512 << 20) / BYTES;
        let layout = Layout::from_size_align(BYTES, 8).unwrap();
        let (send_blocks, blocks) = channel();
        let (ask, asked) = channel();
        let (tell, collected) = channel();
        let thread = std::thread::spawn(move || {
            for _ in 0..COUNT {
                // SAFETY: the layout is of no zero size; the block has so many bytes.
                let block = unsafe {
                    let block = MiMalloc.alloc(layout);
                    block.write_bytes(7, BYTES);
                    block
                };
                send_blocks.send(block.expose_provenance()).unwrap();
            }
            asked.recv().unwrap();
            collect();
            tell.send(()).unwrap();
            asked.recv().unwrap();
        });
        let blocks: Vec<usize> = blocks.iter().take(COUNT).collect();
        for block in blocks {
            // SAFETY: allocated above, with this layout.
            unsafe { MiMalloc.dealloc(ptr::with_exposed_provenance_mut(block), layout) };
        }
        let kept = resident_bytes().unwrap();
        ask.send(()).unwrap();
        collected.recv().unwrap();
        let left = resident_bytes().unwrap();
        ask.send(()).unwrap();
        thread.join().unwrap();
        assert!(left + COUNT * BYTES / 2 < kept, "{} MiB, then {}", kept >> 20, left >> 20);
    }
}
