//! Consistent hashing as nginx (`hash … consistent`) and HAProxy (`hash-type consistent`) do it.

use std::collections::VecDeque;

use crate::random::hash;

/// Points of each server on the ring: nginx has 160 for each unit of weight, HAProxy 16.
const POINTS_PER_SERVER: u64 = 160;

/// A ring of hashes. A key belongs to the server of the next point.
pub(crate) struct HashRing {
    /// Hashes with their servers, sorted.
    points: Vec<(u64, usize)>,
}

impl HashRing {
    /// Returns the ring of these servers. A server has the same points in every ring.
    pub(crate) fn new(servers: impl IntoIterator<Item = usize>) -> Self {
        let points_of = |server: usize| {
            (0..POINTS_PER_SERVER).map(move |point| (hash(hash(server as u64 + 1) ^ point.rotate_left(32)), server))
        };
        let mut points: Vec<_> = servers.into_iter().flat_map(points_of).collect();
        points.sort_unstable();
        Self { points }
    }

    /// Returns the server of a hashed key.
    pub(crate) fn server(&self, hashed_key: u64) -> usize {
        self.servers(hashed_key).next().unwrap_or_default()
    }

    /// Returns the servers of all points, in the order in which a key tries them.
    fn servers(&self, hashed_key: u64) -> impl Iterator<Item = usize> {
        let first = self.points.partition_point(|point| point.0 < hashed_key);
        let (before, after) = self.points.split_at(first);
        after.iter().chain(before).map(|point| point.1)
    }
}

/// The bounded loads of HAProxy's `hash-balance-factor`: a server that has more than its share of the requests in
/// progress is skipped.
pub(crate) struct LoadBound {
    factor_percent: u64,
    in_progress: Vec<u64>,
    /// Servers of the requests in progress, oldest first.
    requests: VecDeque<usize>,
    max_requests: usize,
}

impl LoadBound {
    /// Returns the bound for servers that together always have up to `max_requests` requests in progress. The oldest
    /// request ends first.
    pub(crate) fn new(servers: usize, factor_percent: u64, max_requests: usize) -> Self {
        Self { factor_percent, in_progress: vec![0; servers], requests: VecDeque::new(), max_requests }
    }

    /// Begins a request at the first server for the key that is below the bound, and returns that server.
    pub(crate) fn begin(&mut self, ring: &HashRing, hashed_key: u64) -> usize {
        if self.requests.len() == self.max_requests
            && let Some(ended) = self.requests.pop_front()
        {
            self.in_progress[ended] -= 1;
        }
        let allowed = self.allowed();
        let mut servers = ring.servers(hashed_key);
        let server = servers.find(|server| self.in_progress[*server] < allowed).unwrap_or_default();
        self.in_progress[server] += 1;
        self.requests.push_back(server);
        server
    }

    /// Returns the most requests that a server may have, once one more has begun.
    fn allowed(&self) -> u64 {
        let requests = self.requests.len() as u64 + 1;
        (requests * self.factor_percent).div_ceil(100 * self.in_progress.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_have_similar_shares() {
        for servers in [2, 4, 16, 64] {
            let ring = HashRing::new(0..servers);
            let mut counts = vec![0_usize; servers];
            for key in 0..200_000 {
                counts[ring.server(hash(key))] += 1;
            }
            let mean = 200_000 / servers;
            assert!(counts.iter().all(|count| (mean * 7 / 10..=mean * 13 / 10).contains(count)), "{counts:?}");
        }
    }

    #[test]
    fn removing_a_server_moves_only_its_own_keys_and_spreads_them() {
        let (all, fewer) = (HashRing::new(0..8), HashRing::new((0..8).filter(|server| *server != 3)));
        let mut gained = [0_u32; 8];
        for key in 0..100_000 {
            let (before, after) = (all.server(hash(key)), fewer.server(hash(key)));
            if before == 3 {
                gained[after] += 1;
            } else {
                assert_eq!(before, after);
            }
        }
        assert!(gained.iter().enumerate().all(|(server, keys)| (*keys == 0) == (server == 3)), "{gained:?}");
    }

    #[test]
    fn no_server_exceeds_the_bound_and_most_keys_stay_at_their_server() {
        let ring = HashRing::new(0..4);
        let mut bound = LoadBound::new(4, 150, 64);
        let mut moved = 0;
        for key in 0..100_000 {
            // One key in four is the same, which overloads its server.
            let hashed = hash(if key % 4 == 0 { 0 } else { key });
            moved += u32::from(bound.begin(&ring, hashed) != ring.server(hashed));
            let allowed = bound.allowed();
            assert!(bound.in_progress.iter().all(|count| *count <= allowed), "{:?} > {allowed}", bound.in_progress);
            assert_eq!(bound.in_progress.iter().sum::<u64>(), bound.requests.len() as u64);
        }
        assert!((1_000..50_000).contains(&moved), "{moved}");
    }
}
