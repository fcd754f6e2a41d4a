//! Resolution of host names. Addresses on the local link are dropped after the name has been resolved, so that no name
//! can lead to them.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::vec;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use hyper_util::client::legacy::connect::dns::Name;
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};
use tower::Service;

/// Number of names that are resolved at the same time. Each needs a thread until the system answers.
static THREADS: Semaphore = Semaphore::const_new(16);

/// Resolutions in progress. Each name is resolved once for all waiting requests, so that the requests to a host whose
/// resolution hangs keep one thread and not all.
static IN_PROGRESS: Mutex<BTreeMap<String, Resolution>> = Mutex::new(BTreeMap::new());

/// Addresses of a name, or the kind and the text of an error.
type Resolved = Result<Vec<SocketAddr>, (io::ErrorKind, String)>;

/// A resolution, to which any number of requests may wait.
type Resolution = Shared<oneshot::Receiver<Resolved>>;

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

/// Resolves a name, and shares the resolution with all requests for the same name meanwhile.
async fn resolve(name: String, system: fn(&str) -> io::Result<Vec<SocketAddr>>) -> Result<Vec<SocketAddr>, io::Error> {
    let running = in_progress().get(&name).cloned();
    let resolution = match running {
        Some(resolution) => resolution,
        None => start(name, THREADS.acquire().await.map_err(io::Error::other)?, system)?,
    };
    let resolved = resolution.await.map_err(io::Error::other)?;
    resolved.map_err(|(kind, text)| io::Error::new(kind, text))
}

/// Starts the resolution of a name on a thread, unless another request has started it meanwhile.
fn start(
    name: String,
    permit: SemaphorePermit<'static>,
    system: fn(&str) -> io::Result<Vec<SocketAddr>>,
) -> io::Result<Resolution> {
    let mut in_progress = in_progress();
    if let Some(resolution) = in_progress.get(&name) {
        return Ok(resolution.clone());
    }
    let (sender, receiver) = oneshot::channel();
    let host = name.clone();
    let work = move || {
        // A request after the answer starts a new resolution. The permit is held until the system answers. The entry
        // is removed even if the system's function panics.
        let entry = scopeguard::guard((host.clone(), permit), |(host, _)| drop(self::in_progress().remove(&host)));
        let resolved = system(&host).map_err(|error| (error.kind(), error.to_string()));
        drop(entry);
        let _ = sender.send(resolved);
    };
    std::thread::Builder::new().name("resolve".to_owned()).stack_size(STACK_BYTES).spawn(work)?;
    let resolution = receiver.shared();
    in_progress.insert(name, resolution.clone());
    Ok(resolution)
}

/// Asks the system for the addresses of a name, which may take long.
fn ask_system(host: &str) -> io::Result<Vec<SocketAddr>> {
    Ok((host, 0).to_socket_addrs()?.collect())
}

fn in_progress() -> MutexGuard<'static, BTreeMap<String, Resolution>> {
    IN_PROGRESS.lock().unwrap_or_else(PoisonError::into_inner)
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
            let mut all = resolve(name.as_str().to_owned(), ask_system).await?;
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
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::Duration;

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
    async fn requests_to_one_host_share_a_resolution_and_keep_no_thread_from_other_hosts() {
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        static IS_ANSWERED: AtomicBool = AtomicBool::new(false);
        fn hanging(_: &str) -> io::Result<Vec<SocketAddr>> {
            CALLS.fetch_add(1, Ordering::Relaxed);
            while !IS_ANSWERED.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(io::Error::new(io::ErrorKind::NotFound, "no such host"))
        }
        fn working(_: &str) -> io::Result<Vec<SocketAddr>> {
            ask_system("127.0.0.1")
        }
        let slow: Vec<_> = (0..64).map(|_| tokio::spawn(resolve("slow.test".to_owned(), hanging))).collect();
        assert_eq!(resolve("other.test".to_owned(), working).await.unwrap().len(), 1);
        while CALLS.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // The runtime has one thread and polls tasks in order, so all requests now wait for the resolution.
        tokio::task::yield_now().await;
        IS_ANSWERED.store(true, Ordering::Relaxed);
        for request in slow {
            assert_eq!(request.await.unwrap().unwrap_err().kind(), io::ErrorKind::NotFound);
        }
        assert_eq!(CALLS.load(Ordering::Relaxed), 1);
        // The next request asks again.
        assert!(resolve("slow.test".to_owned(), hanging).await.is_err());
        assert_eq!(CALLS.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn a_name_is_resolved() {
        let mut resolver = CheckedResolver { allows_link_local: false };
        let addresses = resolver.call("localhost".parse().unwrap()).await.unwrap();
        assert!(addresses.into_iter().all(|address| address.ip().is_loopback()));
    }
}
