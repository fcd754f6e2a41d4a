//! Allocates buffers of medium size. Each consists of whole pages that it shares with no other buffer.
//!
//! mimalloc puts blocks of one size class together into pages of 512 KiB, which stay resident while any of their blocks
//! is in use. If a cache evicts blocks of one size to make room for blocks of another size, both stay resident: a cache
//! of 512 MiB had 1,033 MiB resident. Here, the memory of a freed buffer returns to the system, except for a few MiB
//! that are reused first. Its addresses are kept for later buffers with the same number of pages.

use std::cell::Cell;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Size of a page in bytes. If the system's pages have another size, this allocator is not used.
pub const PAGE_BYTES: usize = 4 << 10;

/// Maximum number of pages of a run.
const MAX_RUN_PAGES: usize = 16;

/// Size of the reserved address range in bytes. Addresses are never unmapped. The runs of each length keep the
/// addresses that they needed at their peak.
const ARENA_BYTES: usize = 1 << 40;

/// Maximum number of free bytes that stay resident in each shard.
const SHARD_RESIDENT_BYTES: usize = 128 << 10;

/// Maximum number of resident free bytes in the central lists. Beyond it, the memory of freed runs returns to the
/// system.
const CENTRAL_RESIDENT_BYTES: usize = 8 << 20;

/// Number of shards. Threads use different ones, so they seldom wait for each other.
const SHARDS: usize = 16;

/// Lists of free runs, one for each length in pages.
struct FreeLists {
    /// First page of the first run of each list. [`RunArena::links`] has the following runs.
    heads: [u32; MAX_RUN_PAGES + 1],
    /// Number of bytes of all runs.
    bytes: usize,
}

/// Marks the end of a list.
const END_OF_LIST: u32 = u32::MAX;

/// The reserved addresses. Page numbers count from `base`.
#[derive(Clone, Copy)]
struct RunArena {
    base: usize,
    /// For the first page of each free run, the first page of the next run in its list: an array of `u32`. The links
    /// are not stored in the runs, since writing to a run would make it resident.
    links: usize,
}

/// Free runs that belong to no shard, and the addresses that are not used yet.
struct CentralFreeLists {
    /// Free runs that are resident.
    resident: FreeLists,
    /// Free runs that are not resident.
    empty: FreeLists,
    /// Number of the first page that no run has used yet.
    next_unused_page: usize,
}

static ARENA: OnceLock<Option<RunArena>> = OnceLock::new();
static CENTRAL: Mutex<CentralFreeLists> =
    Mutex::new(CentralFreeLists { resident: FreeLists::new(), empty: FreeLists::new(), next_unused_page: 0 });
static SHARD_LISTS: [Mutex<FreeLists>; SHARDS] = [const { Mutex::new(FreeLists::new()) }; SHARDS];

/// Returns the number of pages for `bytes` bytes, or `None` if no run can have that many.
fn page_count(bytes: usize) -> Option<usize> {
    Some(bytes.div_ceil(PAGE_BYTES)).filter(|pages| (1..=MAX_RUN_PAGES).contains(pages))
}

impl FreeLists {
    const fn new() -> Self {
        Self { heads: [END_OF_LIST; MAX_RUN_PAGES + 1], bytes: 0 }
    }

    fn push(&mut self, arena: RunArena, page: u32, pages: usize) {
        arena.set_link(page, self.heads[pages]);
        self.heads[pages] = page;
        self.bytes += pages * PAGE_BYTES;
    }

    fn pop(&mut self, arena: RunArena, pages: usize) -> Option<u32> {
        let page = Some(self.heads[pages]).filter(|page| *page != END_OF_LIST)?;
        self.heads[pages] = arena.link(page);
        self.bytes -= pages * PAGE_BYTES;
        Some(page)
    }

    /// Empties the lists. Calls `visit` with the first page and the length of every run.
    fn drain(mut self, arena: RunArena, mut visit: impl FnMut(u32, usize)) {
        for pages in 1..=MAX_RUN_PAGES {
            while let Some(page) = self.pop(arena, pages) {
                visit(page, pages);
            }
        }
    }
}

impl RunArena {
    fn get() -> Option<Self> {
        *ARENA.get_or_init(Self::reserve)
    }

    /// Reserves the addresses. Returns `None` if the system refuses the reservation, or if its pages are not
    /// [`PAGE_BYTES`] long.
    fn reserve() -> Option<Self> {
        // SAFETY: only queries a number. It allocates nothing, so it does not call this allocator again.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        if usize::try_from(page) != Ok(PAGE_BYTES) {
            return None;
        }
        let base = reserve_addresses(ARENA_BYTES)?;
        let links = reserve_addresses(ARENA_BYTES / PAGE_BYTES * size_of::<u32>())?;
        Some(Self { base: base.expose_provenance(), links: links.expose_provenance() })
    }

    fn link_ptr(self, page: u32) -> *mut u32 {
        ptr::with_exposed_provenance_mut::<u32>(self.links).wrapping_add(page as usize)
    }

    fn link(self, page: u32) -> u32 {
        // SAFETY: the page lies within the array. A free run is in one list, and the caller holds the lock of that
        // list.
        unsafe { self.link_ptr(page).read() }
    }

    fn set_link(self, page: u32, next: u32) {
        // SAFETY: as for `link`.
        unsafe { self.link_ptr(page).write(next) }
    }

    fn address(self, page: u32) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.base + page as usize * PAGE_BYTES)
    }

    fn page_of(self, run: *mut u8) -> Option<u32> {
        let offset = run.addr().checked_sub(self.base).filter(|at| *at < ARENA_BYTES)?;
        u32::try_from(offset / PAGE_BYTES).ok()
    }

    /// Returns the memory of a run to the system. The bytes of the run are 0 when they are read again.
    fn purge(self, page: u32, pages: usize) {
        // SAFETY: the run is free, and nothing refers to it.
        unsafe {
            libc::madvise(self.address(page).cast(), pages * PAGE_BYTES, libc::MADV_DONTNEED);
        }
    }
}

/// Reserves addresses. Their memory is allocated on first use.
fn reserve_addresses(bytes: usize) -> Option<*mut u8> {
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: a new mapping, at an address that the system chooses. Huge pages would make more memory resident than a
    // run has.
    unsafe {
        let start = libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0);
        (start != libc::MAP_FAILED).then(|| {
            libc::madvise(start, bytes, libc::MADV_NOHUGEPAGE);
            start.cast()
        })
    }
}

fn central() -> MutexGuard<'static, CentralFreeLists> {
    CENTRAL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks the shard of the calling thread.
fn shard() -> MutexGuard<'static, FreeLists> {
    thread_local! {
        static SHARD_INDEX: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    static NEXT_INDEX: AtomicUsize = AtomicUsize::new(0);
    if SHARD_INDEX.get() == usize::MAX {
        // Relaxed ordering is enough, because threads only need different shards.
        SHARD_INDEX.set(NEXT_INDEX.fetch_add(1, Ordering::Relaxed) % SHARDS);
    }
    SHARD_LISTS[SHARD_INDEX.get()].lock().unwrap_or_else(PoisonError::into_inner)
}

/// Allocates a run for `bytes` bytes with arbitrary content. Returns `None` if no run can have that many, or if no
/// addresses are left.
pub(super) fn allocate(bytes: usize) -> Option<*mut u8> {
    let pages = page_count(bytes)?;
    let arena = RunArena::get()?;
    if let Some(page) = shard().pop(arena, pages) {
        return Some(arena.address(page));
    }
    let mut lists = central();
    let lists = &mut *lists;
    let reused = lists.resident.pop(arena, pages).or_else(|| lists.empty.pop(arena, pages));
    let page = reused.or_else(|| {
        let page = lists.next_unused_page;
        let end = page + pages;
        lists.next_unused_page = if end <= ARENA_BYTES / PAGE_BYTES { end } else { return None };
        u32::try_from(page).ok()
    })?;
    Some(arena.address(page))
}

/// Returns true if `run` came from [`allocate`].
pub(super) fn is_run(run: *mut u8) -> bool {
    RunArena::get().is_some_and(|arena| arena.page_of(run).is_some())
}

/// Frees a run that was allocated for `bytes` bytes.
///
/// # Safety
/// The run must have come from [`allocate`] for the same number of pages. It must be freed only once, and nothing may
/// refer to it any more.
pub(super) unsafe fn deallocate(run: *mut u8, bytes: usize) {
    let Some((pages, arena)) = page_count(bytes).zip(RunArena::get()) else { return };
    let Some(page) = arena.page_of(run) else { return };
    let mut shard = shard();
    shard.push(arena, page, pages);
    if shard.bytes <= SHARD_RESIDENT_BYTES {
        return;
    }
    let surplus = std::mem::replace(&mut *shard, FreeLists::new());
    drop(shard);
    let mut lists = central();
    if lists.resident.bytes < CENTRAL_RESIDENT_BYTES {
        surplus.drain(arena, |page, pages| lists.resident.push(arena, page, pages));
        return;
    }
    drop(lists);
    // Gives at most the runs of one shard back to the kernel, so that no thread is delayed for long.
    let mut purged = FreeLists::new();
    surplus.drain(arena, |page, pages| {
        arena.purge(page, pages);
        purged.push(arena, page, pages);
    });
    let lists = &mut *central();
    purged.drain(arena, |page, pages| lists.empty.push(arena, page, pages));
}

/// A small or large number of bytes in whole pages of their own. Otherwise small entries of a cache would keep each
/// other's pages resident.
#[derive(Debug)]
pub struct PagedBytes {
    run: NonNull<u8>,
    len: usize,
}

// SAFETY: the run belongs to this value alone, and is only read.
unsafe impl Send for PagedBytes {}
// SAFETY: as above.
unsafe impl Sync for PagedBytes {}

impl PagedBytes {
    /// Copies `bytes`. Returns `None` if they are empty, do not fit into a run, or no runs are available.
    pub fn copy_of(bytes: &[u8]) -> Option<Self> {
        let run = NonNull::new(allocate(bytes.len())?)?;
        // SAFETY: the run is new and has room for this many bytes.
        unsafe {
            run.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        Some(Self { run, len: bytes.len() })
    }
}

impl AsRef<[u8]> for PagedBytes {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: this many bytes have been written, and nothing writes to them.
        unsafe { slice::from_raw_parts(self.run.as_ptr(), self.len) }
    }
}

impl Drop for PagedBytes {
    fn drop(&mut self) {
        // SAFETY: the run was allocated with this length, and only `drop` frees it.
        unsafe {
            deallocate(self.run.as_ptr(), self.len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident_pages(run: *mut u8, pages: usize) -> usize {
        let mut residency = [0u8; MAX_RUN_PAGES];
        // SAFETY: the array has a byte for each page.
        let result = unsafe { libc::mincore(run.cast(), pages * PAGE_BYTES, residency.as_mut_ptr()) };
        assert_eq!(result, 0);
        residency[..pages].iter().filter(|page| **page & 1 == 1).count()
    }

    #[test]
    fn runs_do_not_overlap_and_keep_their_bytes() {
        let lengths: Vec<usize> = (0..2000).map(|n| 1 + n * 7919 % (MAX_RUN_PAGES * PAGE_BYTES)).collect();
        let mut live: Vec<(PagedBytes, Vec<u8>)> = Vec::new();
        for (n, len) in lengths.into_iter().enumerate() {
            let bytes: Vec<u8> = (0..len).map(|at| ((at + n * 31) % 251).to_le_bytes()[0]).collect();
            live.push((PagedBytes::copy_of(&bytes).unwrap(), bytes));
            if n % 3 == 0 {
                let (paged, bytes) = live.swap_remove(n * 13 % live.len());
                assert_eq!(paged.as_ref(), bytes);
            }
        }
        for (paged, bytes) in &live {
            assert_eq!(paged.as_ref(), bytes);
        }
    }

    #[test]
    fn unsuitable_buffers_are_not_runs() {
        assert!(PagedBytes::copy_of(&[]).is_none());
        assert!(PagedBytes::copy_of(&vec![1; MAX_RUN_PAGES * PAGE_BYTES + 1]).is_none());
        let large = vec![0u8; 1 << 20];
        assert!(!is_run(large.as_ptr().cast_mut()));
        assert!(is_run(PagedBytes::copy_of(&[1]).unwrap().run.as_ptr()));
    }

    #[test]
    fn freed_runs_return_their_memory_except_for_a_part() {
        const COUNT: usize = 4000;
        let bytes = vec![7; 5 * PAGE_BYTES];
        let runs: Vec<PagedBytes> = (0..COUNT).map(|_| PagedBytes::copy_of(&bytes).unwrap()).collect();
        let addresses: Vec<*mut u8> = runs.iter().map(|paged| paged.run.as_ptr()).collect();
        // One run in a hundred is still allocated, and keeps no other run resident.
        let remaining: Vec<PagedBytes> = runs.into_iter().step_by(100).collect();
        let resident_bytes: usize = addresses.iter().map(|run| resident_pages(*run, 5) * PAGE_BYTES).sum();
        // Other tests allocate and free runs at the same time.
        let max_bytes = CENTRAL_RESIDENT_BYTES + (SHARDS + 2) * SHARD_RESIDENT_BYTES + remaining.len() * 5 * PAGE_BYTES;
        assert!(resident_bytes <= max_bytes + COUNT * PAGE_BYTES / 4, "{resident_bytes} of {max_bytes}");
    }

    #[test]
    fn threads_pass_runs_to_each_other() {
        let (send, receive) = std::sync::mpsc::channel::<PagedBytes>();
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let send = send.clone();
                scope.spawn(move || {
                    for n in 0..5000 {
                        let len = 1 + n * 37 % (MAX_RUN_PAGES * PAGE_BYTES);
                        send.send(PagedBytes::copy_of(&vec![thread; len]).unwrap()).unwrap();
                    }
                });
            }
            drop(send);
            for paged in receive {
                let bytes = paged.as_ref();
                assert!(bytes.iter().all(|byte| *byte == bytes[0]));
            }
        });
    }
}
