//! Start-time fair queueing for scarce units such as memory or cores. Requests wait in the queue of their own flow, and
//! the next permit goes to the flow that has received the least service. A flow that requests much, or holds it for
//! long, delays others by one permit, not by all of its own.

mod flow;
mod semaphore;
mod single_flight;
mod state;

pub use flow::{ClientId, ClientQuota, FlowId};
pub use semaphore::{FairPermit, FairSemaphore};
pub use single_flight::{FlightHandle, Leader, SingleFlight, Waiter};
pub use state::{CostBasis, max_overtaking_units};
