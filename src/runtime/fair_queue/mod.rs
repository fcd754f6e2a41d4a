//! Fair division of scarce units, such as memory or cores, among clients.
//!
//! A [`FairSemaphore`] has a number of units. A request for units gets a [`FairPermit`] or waits for one. The units are
//! free again when the permit is dropped.
//!
//! Units are divided among *flows*. A flow ([`FlowId`]) consists of the requests of one client that are of one kind, in
//! order of arrival. The order among flows is that of start-time fair queueing (Goyal, Vin and Cheng, 1996). Each flow
//! has a *start tag*: the service that it has received, measured in units or in time ([`CostBasis`]). The flow with the
//! lowest start tag is next. A new flow begins with the *virtual time*, the highest start tag of the flows that were
//! served, so that it has no credit from the time before. A client that requests much, or holds units for long, thus
//! delays another client by one permit, and not by all of its own.
//!
//! Three rules change this order:
//!
//! 1. **Quota.** A client holds at most its [`ClientQuota`]. A request that exceeds the quota waits until the client has
//!    released enough, and does not delay other clients.
//! 2. **Overtaking.** If there are too few units for the next request, later ones wait behind it. Otherwise it would
//!    never find enough free units. Small requests may overtake it with a bounded share of the units.
//! 3. **Streams.** A stream requests its units in parts, while earlier parts are sent to a slow client. Streams leave a
//!    reserve of units to other requests. A stream whose earlier parts are not sent yet lets other requests go first.

mod flow;
mod semaphore;
mod single_flight;
mod state;

pub use flow::{ClientId, ClientQuota, FlowId};
pub use semaphore::{FairPermit, FairSemaphore};
pub use single_flight::{FlightHandle, Leader, SingleFlight, Waiter};
pub use state::{CostBasis, max_overtaking_units};
