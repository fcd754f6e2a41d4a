//! How many connections each address has, so that none has them all.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::http;

/// One part in so many of all connections is for other addresses than the one with the most.
const LEFT: usize = 4;

/// Addresses that have connections.
#[derive(Debug, Default)]
pub(super) struct Peers(Arc<Mutex<HashMap<IpAddr, usize>>>);

impl Peers {
    /// A place for a connection from `address`, or its network where clients have one of their own; `None` where it has
    /// `most` already.
    pub(super) fn place(&self, address: IpAddr, most: usize) -> Option<Place> {
        let address = http::network_of(address);
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        // Only who has some can have too many: nothing is left behind.
        if *count > 0 && *count >= most {
            return None;
        }
        *count += 1;
        Some(Place { counts: Arc::clone(&self.0), address })
    }
}

/// Most connections of one address where there may be `all`: `configured`, and never so many that others have none.
/// `None` for no limit, which is configured as 0.
pub(super) fn most_of_one(configured: usize, all: usize) -> Option<usize> {
    (configured > 0).then(|| configured.min(all - all / LEFT))
}

/// A connection among those of its address, until dropped.
#[derive(Debug)]
pub(super) struct Place {
    counts: Arc<Mutex<HashMap<IpAddr, usize>>>,
    address: IpAddr,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut count) = counts.entry(self.address) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_network_has_its_places_and_nothing_is_left_behind() {
        let peers = Peers::default();
        let place = |address: &str| peers.place(address.parse().unwrap(), 2);
        let held = [place("192.0.2.1"), place("192.0.2.1"), place("2001:db8::1"), place("2001:db8::ffff:1")];
        assert!(held.iter().all(Option::is_some));
        assert!(place("192.0.2.1").is_none() && place("2001:db8::2").is_none());
        assert!(place("192.0.2.2").is_some() && place("2001:db8:0:1::1").is_some());
        let [one, others @ ..] = held;
        drop(one);
        assert!(place("192.0.2.1").is_some());
        drop(others);
        assert!(peers.0.lock().unwrap().is_empty());
    }

    #[test]
    fn a_quarter_of_all_is_for_others_whatever_is_configured() {
        assert_eq!(most_of_one(2048, 10_240), Some(2048));
        assert_eq!(most_of_one(2048, 1000), Some(750));
        assert_eq!((most_of_one(5, 1), most_of_one(5, 3)), (Some(1), Some(3)));
        assert_eq!(most_of_one(0, 1000), None);
    }
}
