//! Resources of the process: cores, threads, memory, watched files, and the order in which clients get them.

pub mod allocator;
pub mod cpu_pool;
pub mod fair_queue;
pub mod off_thread;
pub mod watched_files;
