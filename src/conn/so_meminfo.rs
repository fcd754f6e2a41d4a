//! Asks the kernel for the memory of a socket's send queue and for the length of its segments. `rustix` has no
//! functions for this.

#![expect(unsafe_code, reason = "no safe crate exposes SO_MEMINFO and TCP_MAXSEG")]

use std::os::fd::{AsRawFd, BorrowedFd};

/// Number of values of `SO_MEMINFO` (`linux/sock_diag.h`).
const SK_MEMINFO_VARS: usize = 9;

/// Number of the socket option `SO_MEMINFO`. It is the same on all architectures except PA-RISC and SPARC
/// (`asm-generic/socket.h`).
const SO_MEMINFO: libc::c_int = 55;

/// Returns the bytes of kernel memory that a socket's send queue takes, including headers and fragments. Returns `None`
/// if the kernel does not know the option (before 4.12, and in some sandboxes).
pub(super) fn send_queue_bytes(socket: BorrowedFd<'_>, is_tcp: bool) -> Option<usize> {
    let mut values = [0_u32; SK_MEMINFO_VARS];
    let mut length = libc::socklen_t::try_from(size_of_val(&values)).ok()?;
    // SAFETY: `values` is valid for `length` bytes, the kernel writes at most that many, and any bytes are valid
    // `u32`s. The descriptor is borrowed, hence open.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_MEMINFO, values.as_mut_ptr().cast(), &raw mut length)
    };
    // A Unix socket has no send queue of its own. Its bytes wait in the receive queue of the peer.
    let index = if is_tcp { libc::SK_MEMINFO_WMEM_QUEUED } else { libc::SK_MEMINFO_WMEM_ALLOC };
    let value = values.get(usize::try_from(index).ok()?).filter(|_| result == 0)?;
    usize::try_from(*value).ok()
}

/// Returns the maximum number of bytes of a segment of the TCP connection, or `None` if the kernel does not report it.
pub(super) fn segment_bytes(socket: BorrowedFd<'_>) -> Option<usize> {
    let mut bytes: libc::c_int = 0;
    let mut length = libc::socklen_t::try_from(size_of_val(&bytes)).ok()?;
    // SAFETY: `bytes` is valid for `length` bytes, the kernel writes at most that many, and any bytes are a valid
    // integer. The descriptor is borrowed, hence open.
    let result = unsafe {
        let value = (&raw mut bytes).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_MAXSEG, value, &raw mut length)
    };
    usize::try_from(bytes).ok().filter(|_| result == 0)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn the_kernel_reports_queued_bytes_until_the_peer_reads_them() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut reader = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut writer, _) = listener.accept().unwrap();
        writer.set_nonblocking(true).unwrap();
        assert_eq!(send_queue_bytes(writer.as_fd(), true), Some(0));
        let mut written = 0;
        while let Ok(count) = writer.write(&vec![0; 1 << 16]) {
            written += count;
        }
        assert!(send_queue_bytes(writer.as_fd(), true).unwrap() > 1 << 16);
        let mut sink = vec![0; written];
        reader.read_exact(&mut sink).unwrap();
        while send_queue_bytes(writer.as_fd(), true) != Some(0) {
            std::thread::yield_now();
        }
    }
}
