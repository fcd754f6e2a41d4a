//! Asking a running server whether it lives, for containers without a shell.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use anyhow::Context;

use crate::config::{Config, Listen};

/// Asks the server that runs with this configuration for `/healthz`.
///
/// # Errors
/// When nobody answers 200 in time.
pub fn healthcheck(config: &Config) -> anyhow::Result<()> {
    ask_health(config).with_context(|| format!("nobody is well at {}", config.server.listen))
}

fn ask_health(config: &Config) -> anyhow::Result<()> {
    let patience = Some(Duration::from_secs(5));
    let ask = |stream: &mut dyn ReadWrite| -> std::io::Result<String> {
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.take(4096).read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = match &config.server.listen {
        Listen::Tcp(address) => {
            let mut address = *address;
            if address.ip().is_unspecified() {
                let local: IpAddr =
                    if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
                address.set_ip(local);
            }
            let mut stream = std::net::TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
            stream.set_read_timeout(patience)?;
            ask(&mut stream)?
        }
        Listen::Unix(path) => {
            let mut stream = std::os::unix::net::UnixStream::connect(path)?;
            stream.set_read_timeout(patience)?;
            ask(&mut stream)?
        }
    };
    let status = answer.lines().next().unwrap_or("nothing");
    anyhow::ensure!(status.contains(" 200 "), "/healthz answered {status:?}");
    Ok(())
}

/// A connection of either kind.
trait ReadWrite: Read + Write {}

impl<T: Read + Write> ReadWrite for T {}
