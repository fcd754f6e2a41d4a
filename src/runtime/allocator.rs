//! Chooses an allocator by size and returns memory to the system. Small blocks come from mimalloc, medium buffers are
//! runs of pages, and large buffers come from the C library.
#![expect(unsafe_code, reason = "allocators have no safe interface")]

mod page_runs;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;
use std::time::{Duration, Instant};

use mimalloc::MiMalloc;

pub use page_runs::{PAGE_BYTES, PagedBytes};

/// The program's allocator.
///
/// Large buffers come from the C library, which returns their memory to the system when they are freed. There are too
/// many medium buffers for a separate mapping each, so they are runs of pages in one mapping
/// (`allocator/page_runs.rs`). Small blocks come from mimalloc, which has a heap for each thread.
///
/// mimalloc is used because each heap of the C library has a lock. A decoding thread has a higher niceness than the
/// threads that serve connections, and may lose its core while it holds such a lock. While eight clients requested xz
/// blocks, one response in 250 waited up to 5 ms for the lock. With mimalloc, serving threads do not wait for each
/// other either: two of them serve 36,800 cached planes per second instead of 24,900, and 17,200 documents of `/info`
/// instead of 10,300.
#[derive(Debug)]
pub struct Allocator;

/// The allocator that a block of memory comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BackingAllocator {
    /// mimalloc. Medium blocks also come from it if no runs are available.
    Mimalloc,
    /// [`page_runs`].
    PageRuns,
    /// The C library.
    System,
}

impl BackingAllocator {
    /// Returns the allocator for a new block.
    fn for_layout(layout: Layout) -> Self {
        match layout.size() {
            LARGE_BYTES.. => Self::System,
            MEDIUM_BYTES.. if layout.align() <= PAGE_BYTES => Self::PageRuns,
            _ => Self::Mimalloc,
        }
    }

    /// Returns the allocator that an existing block came from.
    fn owning_block(block: *mut u8, layout: Layout) -> Self {
        let owner = Self::for_layout(layout);
        if owner == Self::PageRuns && !page_runs::is_run(block) { Self::Mimalloc } else { owner }
    }
}

// SAFETY: all three are allocators. The size in the layout of a block, which is the same from its allocation to its
// end, determines the allocator of the block. For medium blocks, the address decides between two of them. A block moves
// if its new size belongs to another allocator.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `GlobalAlloc::alloc`, and no allocator requires more.
        unsafe {
            match BackingAllocator::for_layout(layout) {
                BackingAllocator::System => System.alloc(layout),
                BackingAllocator::PageRuns => {
                    page_runs::allocate(layout.size()).unwrap_or_else(|| MiMalloc.alloc(layout))
                }
                BackingAllocator::Mimalloc => MiMalloc.alloc(layout),
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`; a run has this many bytes.
        unsafe {
            match BackingAllocator::for_layout(layout) {
                BackingAllocator::System => System.alloc_zeroed(layout),
                BackingAllocator::PageRuns => {
                    let block = self.alloc(layout);
                    if !block.is_null() {
                        block.write_bytes(0, layout.size());
                    }
                    block
                }
                BackingAllocator::Mimalloc => MiMalloc.alloc_zeroed(layout),
            }
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`; the block came from the allocator that its layout and address determine.
        unsafe {
            match BackingAllocator::owning_block(block, layout) {
                BackingAllocator::System => System.dealloc(block, layout),
                BackingAllocator::PageRuns => page_runs::deallocate(block, layout.size()),
                BackingAllocator::Mimalloc => MiMalloc.dealloc(block, layout),
            }
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as in `alloc`; the caller promises that `size` makes a valid layout with this alignment.
        unsafe {
            let new_layout = Layout::from_size_align_unchecked(size, layout.align());
            match (BackingAllocator::owning_block(block, layout), BackingAllocator::for_layout(new_layout)) {
                (BackingAllocator::System, BackingAllocator::System) => System.realloc(block, layout, size),
                (BackingAllocator::Mimalloc, BackingAllocator::Mimalloc) => MiMalloc.realloc(block, layout, size),
                (BackingAllocator::PageRuns, BackingAllocator::PageRuns)
                    if layout.size().div_ceil(PAGE_BYTES) == size.div_ceil(PAGE_BYTES) =>
                {
                    block
                }
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

/// Minimum size of a large buffer in bytes. Each is mapped from the system separately and returned when freed.
pub const LARGE_BYTES: usize = 64 << 10;

/// Minimum size of a medium buffer in bytes. mimalloc would put several buffers of this size into one page of 512 KiB.
/// Here each buffer has its own pages.
const MEDIUM_BYTES: usize = (8 << 10) + 1;

/// Number of mimalloc's option `purge_delay`, for which its bindings have no name. A test checks the number.
const MI_OPTION_PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// Returns true if a buffer of `bytes` bytes is allocated in pages of its own.
pub fn is_paged(bytes: usize) -> bool {
    (MEDIUM_BYTES..LARGE_BYTES).contains(&bytes)
}

/// Milliseconds for which mimalloc keeps free memory. The default is one second (version 3.3). When large blocks
/// replaced small ones in a cache of 512 MiB, the freed small blocks were then still resident: the peak was 923 MiB.
/// With this value, the peak was 682 MiB, at the same number of responses per second. With zero, the peak was 656 MiB,
/// but every returned page must be faulted in again.
const PURGE_DELAY_MILLISECONDS: std::ffi::c_long = 10;

/// Configures the allocators to return the memory of blocks and slices to the system soon after they are freed.
///
/// By default, glibc raises its mapping threshold up to 32 MiB when it frees mapped buffers, and then keeps buffers
/// below the threshold in its heaps. The process then exceeds its budgets. Streaming a dense gzip volume of 2 GiB
/// peaked at 850 MB resident by default, 417 MB with the threshold fixed, 523 MB under jemalloc and 589 MB under
/// mimalloc, in the same time (each with one allocator for everything). Another C library keeps its own defaults.
pub fn configure_purging() {
    // SAFETY: only sets a number, which other threads may read at the same time.
    unsafe {
        libmimalloc_sys::mi_option_set(MI_OPTION_PURGE_DELAY, PURGE_DELAY_MILLISECONDS);
    }
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // One heap per core. By default, glibc has eight heaps per core, and each would keep freed memory.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // SAFETY: mallopt only sets parameters of the allocator, and no other thread runs yet.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, i32::try_from(LARGE_BYTES).unwrap_or(i32::MAX));
            libc::mallopt(libc::M_ARENA_MAX, i32::try_from(cores).unwrap_or(i32::MAX));
        }
    }
}

/// Growth of the resident memory since the last trim, in bytes, that makes a full trim worth its cost.
#[cfg(target_os = "linux")]
const FULL_TRIM_GROWTH_BYTES: usize = 16 << 20;

/// Returns freed memory to the system: memory that mimalloc has kept longer than its delay, which mimalloc itself
/// returns only when a thread needs a new page. If the process has grown since the last trim, also returns all memory
/// that belongs to no thread's heap, and free memory of the C library.
pub fn trim() {
    #[cfg(target_os = "linux")]
    {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static LAST_RESIDENT_BYTES: AtomicUsize = AtomicUsize::new(0);
        let Some(resident) = resident_bytes() else { return };
        // Relaxed ordering is enough: the value only decides how thorough the next trim is.
        let last_resident = LAST_RESIDENT_BYTES.load(Ordering::Relaxed);
        let has_grown = resident > last_resident.saturating_add(FULL_TRIM_GROWTH_BYTES);
        // SAFETY: may be called at any time by any thread that has not created a heap of its own.
        unsafe {
            libmimalloc_sys::mi_collect(has_grown);
        }
        #[cfg(target_env = "gnu")]
        if has_grown {
            // SAFETY: malloc_trim may be called at any time by any thread; it takes the locks of the heaps.
            unsafe {
                libc::malloc_trim(0);
            }
        }
        let resident_after = if has_grown { resident_bytes().unwrap_or(resident) } else { resident.min(last_resident) };
        LAST_RESIDENT_BYTES.store(resident_after, Ordering::Relaxed);
    }
}

/// Minimum time between two collections of one thread's heap.
const COLLECT_INTERVAL: Duration = Duration::from_millis(100);

/// Heap collections take at most 1/100 of a thread's time, because a heap with gigabytes of cached blocks has many
/// pages to examine.
const COLLECT_TIME_DIVISOR: u32 = 100;

/// Returns free memory of the calling thread's heap to the system: one page for each size class, up to 512 KiB each,
/// and the pages whose blocks other threads have freed. mimalloc itself examines these only when the thread allocates
/// again. Does nothing if the last collection was less than a tenth of a second ago.
///
/// Threads that work on requests call this when they have finished some work. With 32 threads, 150 MiB instead of 281
/// MiB stayed resident after a load test, and the peak was 326 MiB instead of 470 MiB.
pub fn collect_thread_heap() {
    thread_local! {
        static NEXT_COLLECTION: Cell<Option<Instant>> = const { Cell::new(None) };
    }
    let begin = Instant::now();
    if NEXT_COLLECTION.get().is_some_and(|next| begin < next) {
        return;
    }
    // SAFETY: may be called at any time by any thread; the heap is the calling thread's own.
    unsafe {
        libmimalloc_sys::mi_collect(true);
    }
    let end = Instant::now();
    let pause = COLLECT_INTERVAL.max(end.saturating_duration_since(begin).saturating_mul(COLLECT_TIME_DIVISOR));
    NEXT_COLLECTION.set(end.checked_add(pause));
}

/// Returns the resident memory of this process in bytes.
#[cfg(target_os = "linux")]
#[expect(clippy::disallowed_methods, reason = "reads the process's own statistics, not a container's file")]
fn resident_bytes() -> Option<usize> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: usize = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages.saturating_mul(rustix::param::page_size()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes around the boundaries between allocators, and alignments beyond those that a heap guarantees.
    const SIZES: [usize; 8] =
        [1, 100, MEDIUM_BYTES - 1, MEDIUM_BYTES, LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 1, 3 * LARGE_BYTES];
    const ALIGNMENTS: [usize; 4] = [1, 16, 64, 4096];

    fn byte_at(at: usize) -> u8 {
        (at % 251).to_le_bytes()[0]
    }

    fn fill_with_pattern(block: *mut u8, layout: Layout) {
        assert!(!block.is_null() && block.addr().is_multiple_of(layout.align()), "{layout:?}");
        for at in 0..layout.size() {
            // SAFETY: the byte lies within the block.
            unsafe { block.add(at).write(byte_at(at)) };
        }
    }

    fn has_pattern(block: *const u8, bytes: usize) -> bool {
        // SAFETY: the callers' blocks have this many bytes, all written.
        unsafe { std::slice::from_raw_parts(block, bytes) }.iter().enumerate().all(|(at, &byte)| byte == byte_at(at))
    }

    #[test]
    fn reallocation_preserves_bytes_and_alignment() {
        for (size, new_size) in SIZES.iter().flat_map(|&from| SIZES.iter().map(move |&to| (from, to))) {
            for align in ALIGNMENTS {
                let layout = Layout::from_size_align(size, align).unwrap();
                let new_layout = Layout::from_size_align(new_size, align).unwrap();
                // SAFETY: no layout has size zero, and each block is freed once, with the layout that it has then.
                unsafe {
                    let block = Allocator.alloc(layout);
                    fill_with_pattern(block, layout);
                    let moved = Allocator.realloc(block, layout, new_size);
                    assert!(!moved.is_null() && moved.addr().is_multiple_of(align), "{layout:?} to {new_size}");
                    assert!(has_pattern(moved, size.min(new_size)), "{layout:?} to {new_size}");
                    fill_with_pattern(moved, new_layout);
                    Allocator.dealloc(moved, new_layout);
                }
            }
        }
    }

    #[test]
    fn alloc_zeroed_clears_reused_memory() {
        for layout in
            SIZES.iter().flat_map(|&size| ALIGNMENTS.map(|align| Layout::from_size_align(size, align).unwrap()))
        {
            // SAFETY: as in the test above.
            unsafe {
                let used = Allocator.alloc(layout);
                fill_with_pattern(used, layout);
                Allocator.dealloc(used, layout);
                let block = Allocator.alloc_zeroed(layout);
                assert!((0..layout.size()).all(|at| block.add(at).read() == 0), "{layout:?}");
                Allocator.dealloc(block, layout);
            }
        }
    }

    #[test]
    fn the_option_number_is_that_of_the_purge_delay() {
        // SAFETY: reads and writes a number that no test depends on.
        unsafe {
            assert_eq!(libmimalloc_sys::mi_option_get(MI_OPTION_PURGE_DELAY), 1000, "its default in this version");
            configure_purging();
            assert_eq!(libmimalloc_sys::mi_option_get(MI_OPTION_PURGE_DELAY), PURGE_DELAY_MILLISECONDS);
        }
    }

    #[test]
    fn a_failed_reallocation_leaves_the_block_unchanged() {
        let layout = Layout::from_size_align(100, 8).unwrap();
        // SAFETY: as in the tests above; the new size makes a valid layout, which no machine can satisfy.
        unsafe {
            let block = Allocator.alloc(layout);
            fill_with_pattern(block, layout);
            assert!(Allocator.realloc(block, layout, isize::MAX as usize & !7).is_null());
            assert!(has_pattern(block, 100));
            Allocator.dealloc(block, layout);
        }
    }

    /// Allocates more than other tests of this process do at the same time.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_returns_memory_that_other_threads_freed() {
        use std::sync::mpsc::channel;
        const BYTES: usize = 32 << 10;
        const COUNT: usize = (512 << 20) / BYTES;
        let layout = Layout::from_size_align(BYTES, 8).unwrap();
        let (send_blocks, blocks) = channel();
        let (proceed_sender, proceed_receiver) = channel();
        let (collected_sender, collected_receiver) = channel();
        let thread = std::thread::spawn(move || {
            for _ in 0..COUNT {
                // SAFETY: the layout does not have size zero, and the block has this many bytes.
                let block = unsafe {
                    let block = MiMalloc.alloc(layout);
                    block.write_bytes(7, BYTES);
                    block
                };
                send_blocks.send(block.expose_provenance()).unwrap();
            }
            proceed_receiver.recv().unwrap();
            collect_thread_heap();
            collected_sender.send(()).unwrap();
            proceed_receiver.recv().unwrap();
        });
        let blocks: Vec<usize> = blocks.iter().take(COUNT).collect();
        for block in blocks {
            // SAFETY: allocated above, with this layout.
            unsafe { MiMalloc.dealloc(ptr::with_exposed_provenance_mut(block), layout) };
        }
        let resident_before = resident_bytes().unwrap();
        proceed_sender.send(()).unwrap();
        collected_receiver.recv().unwrap();
        let resident_after = resident_bytes().unwrap();
        proceed_sender.send(()).unwrap();
        thread.join().unwrap();
        assert!(
            resident_after + COUNT * BYTES / 2 < resident_before,
            "{} MiB, then {}",
            resident_before >> 20,
            resident_after >> 20
        );
    }
}
