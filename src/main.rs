//! temporary
use n5_server::config::*;
use std::time::Duration;
fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let mib = 1u64 << 20;
    let containers = args.get(1).map(|root| ContainerConfig { name: String::new(), root: root.into(), cache_control: CachePolicy::Revalidate, symlinks: Symlinks::Inside }).into_iter().collect();
    let listen = args.get(2).map_or("127.0.0.1:8080", String::as_str).parse()?;
    let s = Duration::from_secs;
    let config = Config {
        server: Server { listen: Listen::Tcp(listen), base_path: String::new(), trusted_proxies: vec![], header_timeout: s(75), request_timeout: s(60), send_timeout: s(30), shutdown_timeout: s(30), max_connections: 10240, threads: 0 },
        containers,
        limits: Limits { slice: 64 << 30, slice_budget: 128 * mib, decode_budget: 96 * mib, transfer_budget: 32 * mib, decode_factor: 16, attributes: mib, budget_wait: s(10), concurrent_requests: 1024 },
        cache: Cache { decoded: 256 * mib, stored: 64 * mib, policy: EvictionPolicy::Lru, recheck_cached_metadata: Recheck::Always, recheck_cached_data: Recheck::Always },
        cors: Cors { origins: vec!["*".into()] }, compression: Compression { slices: false }, log: Log { format: LogFormat::Text, level: "info".into() },
    };
    tokio::runtime::Runtime::new()?.block_on(n5_server::app::serve(config, n5_server::telemetry::Metrics))
}
