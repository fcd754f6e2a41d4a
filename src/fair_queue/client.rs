//! Clients and flows: the parties among which units are divided.

use std::future::Future;

tokio::task_local! {
    static CLIENT: ClientId;
}

/// Identifies the client for which work is done. Equal numbers are one client. The default is the server itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ClientId(u64);

impl ClientId {
    /// Creates the id with this number.
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the client for which the running task works, or the default if none was set.
    pub fn current() -> Self {
        CLIENT.try_with(|client| *client).unwrap_or_default()
    }

    /// Runs `work` for this client. Tasks that it spawns do not inherit the client.
    pub fn scope<F: Future>(self, work: F) -> impl Future<Output = F::Output> {
        CLIENT.scope(self, work)
    }
}

/// Identifies a flow: a client, and a number for the kind of its requests.
pub type FlowId = (ClientId, u64);
