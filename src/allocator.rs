//! How the C library's allocator treats large buffers.
#![cfg_attr(all(target_os = "linux", target_env = "gnu"), expect(unsafe_code, reason = "mallopt has no safe binding"))]

/// Buffers of this size and above are mapped from the system one by one and given back when freed.
const MAPPED_BYTES: i32 = 128 << 10;

/// Makes the memory of blocks and slices return to the system as soon as they are dropped.
///
/// Left alone, glibc raises this threshold to 32 MiB once such buffers have been freed, keeps them in
/// its heaps, and the process outgrows its budgets: streaming a dense gzip volume of 2 GiB peaked at 850 MB
/// resident by default, 417 MB with the threshold fixed, 523 MB under jemalloc and 589 MB under mimalloc,
/// in the same time. Does nothing under another C library.
pub fn return_large_buffers() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: mallopt only sets a parameter of the allocator, and no other thread runs yet.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES);
    }
}
