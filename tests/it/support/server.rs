//! A server in this process that listens on a free port.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use n5_server::config::{Config, ListenAddress};
use n5_server::server::Server;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A server that runs until `stop` is sent or dropped.
pub struct RunningServer {
    pub address: SocketAddr,
    pub stop: oneshot::Sender<()>,
    pub ended: JoinHandle<()>,
}

/// Starts a server on a free port.
pub async fn start_server(header_timeout: Duration, mut config: Config) -> RunningServer {
    config.server.listen = ListenAddress::Tcp("127.0.0.1:0".parse().unwrap());
    config.server.header_timeout = header_timeout;
    let server = Server::bind(config, String::new).await.unwrap();
    let address = server.address().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let ended = tokio::spawn(server.run(async { drop(stopped.await) }));
    RunningServer { address, stop, ended }
}

/// Returns the number of the server's established connections, from `/proc/net/tcp`.
pub fn open_connections(server: &RunningServer) -> usize {
    let port = format!(":{:04X}", server.address.port());
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter(|fields| fields[1].ends_with(&port) && fields[3] == "01").count()
}
