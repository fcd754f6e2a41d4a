//! What a supervisor such as systemd is told (`sd_notify(3)`): when the server accepts connections, reads its
//! configuration again, and stops.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The way to a supervisor, or none.
#[derive(Debug, Default)]
pub struct Supervisor(Option<(UnixDatagram, SocketAddr)>);

impl Supervisor {
    /// The one at a socket as `NOTIFY_SOCKET` names it: a path, or `@` and an abstract name. None where that is neither.
    pub fn at(name: &str) -> Self {
        let address = match name.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name),
            None if name.starts_with('/') => SocketAddr::from_pathname(name),
            None => return Self(None),
        };
        let socket = UnixDatagram::unbound().and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
        Self(socket.ok().zip(address.ok()))
    }

    /// Connections are accepted.
    pub(super) fn ready(&self) {
        self.tell("READY=1\n");
    }

    /// The configuration is being read; [`Self::ready`] ends that.
    pub(super) fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let now = Duration::try_from(now).unwrap_or_default();
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={}\n", now.as_micros()));
    }

    /// The end has begun.
    pub(super) fn stopping(&self) {
        self.tell("STOPPING=1\n");
    }

    fn tell(&self, state: &str) {
        let Some((socket, address)) = &self.0 else { return };
        if let Err(error) = socket.send_to_addr(state.as_bytes(), address) {
            tracing::warn!(%error, "the supervisor cannot be told");
        }
    }
}
