//! Connections: the listening address, what is accepted there, TLS, HTTP/1.1 and HTTP/2, and what each client may take.

mod connection_memory;
mod connections;
mod fast_connection;
mod header_filter;
mod http2;
mod hyper_connection;
mod listener;
mod metered_socket;
mod peers;
mod reply_writer;
mod send_queue;
mod serving_snapshot;
mod signals;
mod so_meminfo;
mod socket;
mod threshold_pool;
mod tls;
mod workers;

pub(crate) use connections::ConnectionServer;
pub(crate) use listener::Listener;
pub(crate) use serving_snapshot::ServingSnapshot;
pub(crate) use tls::TlsTerminator;
pub(crate) use workers::{WorkerPool, start_document_runtime};
