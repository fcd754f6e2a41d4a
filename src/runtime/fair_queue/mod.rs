//! Divides scarce units, such as memory or cores, fairly among clients.
//!
//! A [`FairSemaphore`] has a number of units. A request for units gets a [`FairPermit`] or waits for one. The units are
//! free again when the permit is dropped.
//!
//! Units are divided among *flows*. A flow ([`FlowId`]) consists of the requests of one client that have the same kind,
//! in order of arrival. The order among flows is that of start-time fair queueing (Goyal, Vin and Cheng, 1996). Each
//! flow has a *start tag*: the service that it has received, measured in units or in time ([`CostBasis`]). The flow
//! with the lowest start tag is next. A new flow begins with the *virtual time*, which is the highest start tag that a
//! served flow had. The time before its first request thus gives a flow no advantage. If a client requests many permits
//! or holds units for long, another client waits for one of these permits, not for all of them. `state.rs` has an
//! example.
//!
//! Three rules change this order:
//!
//! 1. **Quota.** A client holds at most its [`ClientQuota`], which depends on the number of free units (a *dynamic
//!    threshold*). A request that exceeds the quota waits until the client has released enough, and does not delay
//!    other clients.
//! 2. **Overtaking.** If there are too few units for the next request, later requests wait behind it. Otherwise a large
//!    request might never find enough free units. Small requests may overtake it, up to a limited share of the units.
//! 3. **Streams.** A stream is a large response that requests its units in parts, while earlier parts are sent to the
//!    client. Streams leave a reserve of units to other requests. A stream whose earlier parts have not been sent yet
//!    waits behind other requests.

mod flow;
mod semaphore;
mod single_flight;
mod state;

pub use flow::{ClientId, ClientQuota, FlowId};
pub use semaphore::{FairPermit, FairSemaphore};
pub use single_flight::{FlightEnd, FlightHandle, Leader, SingleFlight, Waiter};
pub use state::{CostBasis, max_overtaking_units};
