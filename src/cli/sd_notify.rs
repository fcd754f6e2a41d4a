//! Notifies a supervisor such as systemd (`sd_notify(3)`) when the server accepts connections, reloads its
//! configuration, and stops.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A notifier of the supervisor, if there is one.
#[derive(Debug, Default)]
pub(super) struct SdNotifier(Option<(UnixDatagram, SocketAddr)>);

impl SdNotifier {
    /// Creates a notifier for the socket that `NOTIFY_SOCKET` names: a path, or `@` and an abstract name. With any
    /// other name it sends nothing.
    pub(super) fn from_socket_name(name: &str) -> Self {
        let address = match name.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name),
            None if name.starts_with('/') => SocketAddr::from_pathname(name),
            None => return Self(None),
        };
        let socket = UnixDatagram::unbound().and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
        Self(socket.ok().zip(address.ok()))
    }

    /// Notifies that connections are accepted.
    pub(super) fn ready(&self) {
        self.send("READY=1\n");
    }

    /// Notifies that the configuration is being reloaded. [`Self::ready`] ends the reload.
    pub(super) fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let now = Duration::try_from(now).unwrap_or_default();
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={}\n", now.as_micros()));
    }

    /// Notifies that the shutdown has begun.
    pub(super) fn stopping(&self) {
        self.send("STOPPING=1\n");
    }

    fn send(&self, state: &str) {
        let Some((socket, address)) = &self.0 else { return };
        if let Err(error) = socket.send_to_addr(state.as_bytes(), address) {
            tracing::warn!(%error, "cannot notify the supervisor");
        }
    }
}
