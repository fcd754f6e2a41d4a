//! Buffers of medium size, each in whole pages of its own.
//!
//! mimalloc puts blocks of one size class together into pages of 512 KiB, which stay resident as long as one of their blocks
//! is used. A cache that evicts blocks of one size for those of another then holds both: 1,033 MiB were resident of a cache of
//! 512. Here a freed buffer leaves nothing: its addresses are kept for buffers of as many pages, and its memory goes back to the
//! system, but for a few MiB that are used again first.

use std::cell::Cell;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Bytes of a page. Where the system has others, there are no runs.
pub const PAGE: usize = 4 << 10;

/// Most pages of a run.
const MOST_PAGES: usize = 16;

/// Addresses that are reserved. They are never unmapped: each length of runs keeps its own, as many as it needed at its peak.
const REGION_BYTES: usize = 1 << 40;

/// Most free bytes that a shard keeps resident, and all shards together.
const SHARD_BYTES: usize = 128 << 10;
const KEPT_BYTES: usize = 8 << 20;

/// Threads use different ones, so that they seldom wait for each other.
const SHARDS: usize = 16;

/// Free runs: for each length in pages the first one's page number. The next ones follow in [`Region::links`].
struct Lists {
    heads: [u32; MOST_PAGES + 1],
    bytes: usize,
}

/// Marks the end of a list.
const NONE: u32 = u32::MAX;

/// The reserved addresses. The numbers of pages count from `base`.
#[derive(Clone, Copy)]
struct Region {
    base: usize,
    /// For the first page of each free run, the first page of the next one in its list: an array of `u32`. The runs themselves hold
    /// nothing, since to write to them would make them resident.
    links: usize,
}

/// Free runs that belong to no shard, and the addresses that are not used yet.
struct Common {
    /// Free runs that are resident.
    kept: Lists,
    /// Those that are not.
    empty: Lists,
    /// The first page that no run has had.
    next: usize,
}

static REGION: OnceLock<Option<Region>> = OnceLock::new();
static COMMON: Mutex<Common> = Mutex::new(Common { kept: Lists::new(), empty: Lists::new(), next: 0 });
static SHARD: [Mutex<Lists>; SHARDS] = [const { Mutex::new(Lists::new()) }; SHARDS];

/// The number of pages for `bytes` bytes; `None` if that is more than a run can have.
fn pages(bytes: usize) -> Option<usize> {
    Some(bytes.div_ceil(PAGE)).filter(|pages| (1..=MOST_PAGES).contains(pages))
}

impl Lists {
    const fn new() -> Self {
        Self { heads: [NONE; MOST_PAGES + 1], bytes: 0 }
    }

    fn push(&mut self, region: Region, page: u32, pages: usize) {
        region.set_link(page, self.heads[pages]);
        self.heads[pages] = page;
        self.bytes += pages * PAGE;
    }

    fn pop(&mut self, region: Region, pages: usize) -> Option<u32> {
        let page = Some(self.heads[pages]).filter(|page| *page != NONE)?;
        self.heads[pages] = region.link(page);
        self.bytes -= pages * PAGE;
        Some(page)
    }

    /// Takes all runs out of the lists.
    fn take_all(&mut self) -> Self {
        std::mem::replace(self, Self::new())
    }

    /// Empties the lists; `each` gets a page and the length.
    fn drain(mut self, region: Region, mut each: impl FnMut(u32, usize)) {
        for pages in 1..=MOST_PAGES {
            while let Some(page) = self.pop(region, pages) {
                each(page, pages);
            }
        }
    }
}

impl Region {
    fn get() -> Option<Self> {
        *REGION.get_or_init(Self::reserve)
    }

    /// `None` where the system refuses so many addresses, or has other pages.
    fn reserve() -> Option<Self> {
        // SAFETY: asks for a number; it allocates nothing, which would come back here.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        if usize::try_from(page) != Ok(PAGE) {
            return None;
        }
        let base = map(REGION_BYTES)?;
        let links = map(REGION_BYTES / PAGE * size_of::<u32>())?;
        Some(Self { base: base.expose_provenance(), links: links.expose_provenance() })
    }

    fn link_of(self, page: u32) -> *mut u32 {
        ptr::with_exposed_provenance_mut::<u32>(self.links).wrapping_add(page as usize)
    }

    fn link(self, page: u32) -> u32 {
        // SAFETY: the page lies within the array. A free run is in one list, and the caller holds the lock of that list.
        unsafe { self.link_of(page).read() }
    }

    fn set_link(self, page: u32, next: u32) {
        // SAFETY: as for `link`.
        unsafe { self.link_of(page).write(next) }
    }

    fn address(self, page: u32) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.base + page as usize * PAGE)
    }

    fn page(self, run: *mut u8) -> Option<u32> {
        let at = run.addr().checked_sub(self.base).filter(|at| *at < REGION_BYTES)?;
        u32::try_from(at / PAGE).ok()
    }

    /// Gives the memory of a run back to the system. Its bytes are zero when they are next read.
    fn empty(self, page: u32, pages: usize) {
        // SAFETY: a free run, which nothing refers to.
        unsafe {
            libc::madvise(self.address(page).cast(), pages * PAGE, libc::MADV_DONTNEED);
        }
    }
}

/// Reserves addresses of memory that is there when it is first used.
fn map(bytes: usize) -> Option<*mut u8> {
    let (access, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: a new mapping, wherever the system has room for it; huge pages would make more resident than a run has.
    unsafe {
        let start = libc::mmap(ptr::null_mut(), bytes, access, kind, -1, 0);
        (start != libc::MAP_FAILED).then(|| {
            libc::madvise(start, bytes, libc::MADV_NOHUGEPAGE);
            start.cast()
        })
    }
}

fn common() -> MutexGuard<'static, Common> {
    COMMON.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks the shard of the calling thread.
fn shard() -> MutexGuard<'static, Lists> {
    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    if NUMBER.get() == usize::MAX {
        NUMBER.set(NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS);
    }
    SHARD[NUMBER.get()].lock().unwrap_or_else(PoisonError::into_inner)
}

/// Allocates a run for `bytes` bytes, with arbitrary content; `None` if that is too many or no addresses are left.
pub(super) fn take(bytes: usize) -> Option<*mut u8> {
    let (pages, region) = (pages(bytes)?, Region::get()?);
    if let Some(page) = shard().pop(region, pages) {
        return Some(region.address(page));
    }
    let mut common = common();
    let common = &mut *common;
    let known = common.kept.pop(region, pages).or_else(|| common.empty.pop(region, pages));
    let page = known.or_else(|| {
        let page = common.next;
        let end = page + pages;
        common.next = if end <= REGION_BYTES / PAGE { end } else { return None };
        u32::try_from(page).ok()
    })?;
    Some(region.address(page))
}

/// Returns true if `run` came from [`take`].
pub(super) fn is_run(run: *mut u8) -> bool {
    Region::get().is_some_and(|region| region.page(run).is_some())
}

/// Frees a run that was allocated for `bytes` bytes.
///
/// # Safety
/// The run came from [`take`] for the same number of pages, is freed once, and nothing refers to it any more.
pub(super) unsafe fn give_back(run: *mut u8, bytes: usize) {
    let Some((pages, region)) = pages(bytes).zip(Region::get()) else { return };
    let Some(page) = region.page(run) else { return };
    let mut shard = shard();
    shard.push(region, page, pages);
    if shard.bytes <= SHARD_BYTES {
        return;
    }
    let surplus = shard.take_all();
    drop(shard);
    let mut common = common();
    if common.kept.bytes < KEPT_BYTES {
        surplus.drain(region, |page, pages| common.kept.push(region, page, pages));
        return;
    }
    drop(common);
    // No more than a shard has, so that no thread is kept for long.
    let mut emptied = Lists::new();
    surplus.drain(region, |page, pages| {
        region.empty(page, pages);
        emptied.push(region, page, pages);
    });
    let common = &mut *self::common();
    emptied.drain(region, |page, pages| common.empty.push(region, page, pages));
}

/// Bytes in pages of their own, also few bytes: small entries of a cache would otherwise keep each other's pages resident.
#[derive(Debug)]
pub struct Paged {
    run: NonNull<u8>,
    len: usize,
}

// SAFETY: the run is this value's alone, and is only read.
unsafe impl Send for Paged {}
// SAFETY: as above.
unsafe impl Sync for Paged {}

impl Paged {
    /// Copies `bytes`; `None` if they are empty, do not fit into a run, or no runs are available.
    pub fn copy_of(bytes: &[u8]) -> Option<Self> {
        let run = NonNull::new(take(bytes.len())?)?;
        // SAFETY: the run has room for as many bytes, and is new.
        unsafe {
            run.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        Some(Self { run, len: bytes.len() })
    }
}

impl AsRef<[u8]> for Paged {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: as many bytes have been written, and nothing writes to them.
        unsafe { slice::from_raw_parts(self.run.as_ptr(), self.len) }
    }
}

impl Drop for Paged {
    fn drop(&mut self) {
        // SAFETY: it is given back once, for as many bytes.
        unsafe {
            give_back(self.run.as_ptr(), self.len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident(run: *mut u8, pages: usize) -> usize {
        let mut there = [0u8; MOST_PAGES];
        // SAFETY: the array has a byte for each page.
        let result = unsafe { libc::mincore(run.cast(), pages * PAGE, there.as_mut_ptr()) };
        assert_eq!(result, 0);
        there[..pages].iter().filter(|page| **page & 1 == 1).count()
    }

    #[test]
    fn runs_do_not_overlap_and_keep_their_bytes() {
        let lengths: Vec<usize> = (0..2000).map(|n| 1 + n * 7919 % (MOST_PAGES * PAGE)).collect();
        let mut kept: Vec<(Paged, Vec<u8>)> = Vec::new();
        for (n, len) in lengths.into_iter().enumerate() {
            let bytes: Vec<u8> = (0..len).map(|at| ((at + n * 31) % 251).to_le_bytes()[0]).collect();
            kept.push((Paged::copy_of(&bytes).unwrap(), bytes));
            if n % 3 == 0 {
                let (paged, bytes) = kept.swap_remove(n * 13 % kept.len());
                assert_eq!(paged.as_ref(), bytes);
            }
        }
        for (paged, bytes) in &kept {
            assert_eq!(paged.as_ref(), bytes);
        }
    }

    #[test]
    fn what_is_no_run_is_none() {
        assert!(Paged::copy_of(&[]).is_none());
        assert!(Paged::copy_of(&vec![1; MOST_PAGES * PAGE + 1]).is_none());
        let large = vec![0u8; 1 << 20];
        assert!(!is_run(large.as_ptr().cast_mut()));
        assert!(is_run(Paged::copy_of(&[1]).unwrap().run.as_ptr()));
    }

    #[test]
    fn the_memory_of_freed_runs_goes_back_but_for_a_part() {
        const COUNT: usize = 4000;
        let bytes = vec![7; 5 * PAGE];
        let runs: Vec<Paged> = (0..COUNT).map(|_| Paged::copy_of(&bytes).unwrap()).collect();
        let places: Vec<*mut u8> = runs.iter().map(|paged| paged.run.as_ptr()).collect();
        // One is left of a hundred, which keeps nothing else.
        let left: Vec<Paged> = runs.into_iter().step_by(100).collect();
        let bytes: usize = places.iter().map(|run| resident(*run, 5) * PAGE).sum();
        // Other tests take and free runs meanwhile.
        let most = KEPT_BYTES + (SHARDS + 2) * SHARD_BYTES + left.len() * 5 * PAGE;
        assert!(bytes <= most + COUNT * PAGE / 4, "{bytes} of {most}");
    }

    #[test]
    fn threads_pass_runs_to_each_other() {
        let (send, receive) = std::sync::mpsc::channel::<Paged>();
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let send = send.clone();
                scope.spawn(move || {
                    for n in 0..5000 {
                        let len = 1 + n * 37 % (MOST_PAGES * PAGE);
                        send.send(Paged::copy_of(&vec![thread; len]).unwrap()).unwrap();
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
