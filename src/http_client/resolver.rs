//! Resolution of host names. Addresses on the local link are dropped after the name has been resolved, so that no name
//! can lead to them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::task::{Context, Poll};
use std::vec;

use futures_util::future::BoxFuture;
use hyper_util::client::legacy::connect::dns::Name;
use tokio::sync::{Semaphore, oneshot};
use tower::Service;

/// Number of names that are resolved at the same time. Each needs a thread until the system answers.
static RESOLUTIONS: Semaphore = Semaphore::const_new(16);

/// Stack of a thread that resolves a name.
const STACK_BYTES: usize = 512 << 10;

/// Returns true if the host of a URL is this machine: a loopback address, `localhost`, or a name below it. Such names are
/// resolved to loopback addresses only.
pub fn is_loopback_host(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => is_localhost(host),
    }
}

/// Returns true if a name is `localhost` or below it.
fn is_localhost(name: &str) -> bool {
    let last = name.strip_suffix('.').unwrap_or(name).rsplit('.').next();
    last.is_some_and(|last| last.eq_ignore_ascii_case("localhost"))
}

/// Returns true if an address is on the local link, or is that of a cloud's metadata service elsewhere.
pub fn is_link_local(address: IpAddr) -> bool {
    match address.to_canonical() {
        // 100.100.100.200 is the metadata service of Alibaba Cloud.
        IpAddr::V4(address) => address.is_link_local() || address == Ipv4Addr::new(100, 100, 100, 200),
        // fd00:ec2::/32 has the metadata service of Amazon.
        IpAddr::V6(address) => {
            address.is_unicast_link_local()
                || address.segments().starts_with(&Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0).segments()[..2])
        }
    }
}

/// Returns the error for an address on the local link.
pub(super) fn link_local_error(host: &str) -> io::Error {
    let text = format!("{host} is an address on the local link or of a metadata service, which is never connected to");
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// Resolves names by the system's resolver, each on a thread of its own.
///
/// The threads are not those of `spawn_blocking`, which panics if the system cannot start one.
#[derive(Debug, Clone)]
pub(super) struct CheckedResolver {
    pub(super) allows_link_local: bool,
}

impl Service<Name> for CheckedResolver {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let allows_link_local = self.allows_link_local;
        Box::pin(async move {
            let permit = RESOLUTIONS.acquire().await.map_err(io::Error::other)?;
            let (sender, receiver) = oneshot::channel();
            let host = name.as_str().to_owned();
            let resolve = move || {
                // The permit is held until the system answers, even if the caller has gone.
                let _permit = permit;
                let _ = sender.send((host.as_str(), 0).to_socket_addrs());
            };
            std::thread::Builder::new().name("resolve".to_owned()).stack_size(STACK_BYTES).spawn(resolve)?;
            let addresses = receiver.await.map_err(io::Error::other)??;
            let mut all: Vec<SocketAddr> = addresses.collect();
            if is_localhost(name.as_str()) {
                all.retain(|address| address.ip().is_loopback());
            }
            let allowed = |address: &SocketAddr| allows_link_local || !is_link_local(address.ip());
            let checked: Vec<SocketAddr> = all.iter().copied().filter(allowed).collect();
            if checked.is_empty() && !all.is_empty() {
                return Err(link_local_error(name.as_str()));
            }
            Ok(checked.into_iter())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_services_are_on_the_local_link_and_private_networks_are_not() {
        for address in
            ["169.254.169.254", "169.254.170.2", "fe80::1", "fd00:ec2::254", "::ffff:169.254.1.1", "100.100.100.200"]
        {
            assert!(is_link_local(address.parse().unwrap()), "{address}");
        }
        for address in ["127.0.0.1", "10.0.0.1", "192.168.1.1", "::1", "fd00::1", "8.8.8.8", "100.64.0.1"] {
            assert!(!is_link_local(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn only_loopback_addresses_and_names_below_localhost_are_this_machine() {
        for host in ["127.0.0.1", "127.1.2.3", "[::1]", "::ffff:127.0.0.1", "localhost", "LocalHost.", "s3.localhost"] {
            assert!(is_loopback_host(host), "{host}");
        }
        for host in ["", "10.0.0.1", "[::2]", "localhost.evil.org", "notlocalhost", "0.0.0.0", "127.0.0.1.evil.org"] {
            assert!(!is_loopback_host(host), "{host}");
        }
    }

    #[tokio::test]
    async fn a_name_is_resolved() {
        let mut resolver = CheckedResolver { allows_link_local: false };
        let addresses = resolver.call("localhost".parse().unwrap()).await.unwrap();
        assert!(addresses.into_iter().all(|address| address.ip().is_loopback()));
    }
}
