//! Layouts of replicas: which replica answers a request, and where it gets the blocks that it has not cached.

use std::fmt::Write;

use crate::lru::LruCache;
use crate::random::hash;
use crate::ring::{HashRing, LoadBound};
use crate::walk::{BlockKey, Request, block_bytes};

/// Replicas with the blocks that they have cached.
struct Tier {
    caches: Vec<LruCache>,
    /// Number of blocks that each replica has sent.
    sent: Vec<u64>,
}

impl Tier {
    fn new(replicas: usize, cache_bytes: u64) -> Self {
        Self { caches: (0..replicas).map(|_| LruCache::new(cache_bytes)).collect(), sent: vec![0; replicas] }
    }

    /// Sends a block from a replica. Returns true if the replica has it cached.
    fn send(&mut self, replica: usize, block: BlockKey, bytes: u64) -> bool {
        self.sent[replica] += 1;
        self.caches[replica].get_or_insert(block, bytes)
    }

    /// Returns the load of the busiest replica divided by the mean.
    fn imbalance(&self) -> f64 {
        let greatest = self.sent.iter().copied().max().unwrap_or_default();
        ratio(greatest * self.sent.len() as u64, self.sent.iter().sum())
    }
}

/// How a balancer chooses a replica of the front tier.
enum Balancing {
    RoundRobin(usize),
    ByUrl(HashRing),
}

/// The inner tier, with the balancer in front of it.
struct Inner {
    tier: Tier,
    ring: HashRing,
    bound: Option<LoadBound>,
}

/// A layout of replicas, with counts of what they did.
pub(crate) struct Layout {
    name: String,
    balancing: Balancing,
    front: Tier,
    inner: Option<Inner>,
    reads: u64,
    read_bytes: u64,
    bytes_between_tiers: u64,
    bucket_gets: u64,
}

/// Results of a layout.
#[derive(Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) name: String,
    /// Number of blocks that requests needed.
    pub(crate) reads: u64,
    pub(crate) bucket_gets: u64,
    /// Share of the reads that needed no request to the bucket.
    pub(crate) hit_ratio: f64,
    /// Load of the busiest replica divided by the mean, in the front tier and in the inner tier.
    pub(crate) imbalance: (f64, Option<f64>),
    /// Bytes from the inner tier to the front tier, divided by the bytes of all reads.
    pub(crate) between_tiers: Option<f64>,
}

impl Layout {
    fn new(name: String, balancing: Balancing, front: Tier, inner: Option<Inner>) -> Self {
        Self { name, balancing, front, inner, reads: 0, read_bytes: 0, bytes_between_tiers: 0, bucket_gets: 0 }
    }

    /// Returns one replica with the caches of `replicas`.
    pub(crate) fn one_cache(replicas: usize, cache_bytes: u64) -> Self {
        let tier = Tier::new(1, cache_bytes * replicas as u64);
        Self::new("one cache of that size".to_owned(), Balancing::RoundRobin(0), tier, None)
    }

    /// Returns replicas that take turns.
    pub(crate) fn round_robin(replicas: usize, cache_bytes: u64) -> Self {
        let tier = Tier::new(replicas, cache_bytes);
        Self::new("round robin".to_owned(), Balancing::RoundRobin(0), tier, None)
    }

    /// Returns replicas among which a hash of path and query decides.
    pub(crate) fn by_url(replicas: usize, cache_bytes: u64) -> Self {
        let balancing = Balancing::ByUrl(HashRing::new(0..replicas));
        Self::new("hash of the URL".to_owned(), balancing, Tier::new(replicas, cache_bytes), None)
    }

    /// Returns front replicas that take turns, and inner ones among which a hash of the block's path decides. Each tier
    /// is given as its number of replicas and the cache of each.
    pub(crate) fn two_tiers(front: (usize, u64), inner: (usize, u64)) -> Self {
        let name = format!("{} front + {} inner", front.0, inner.0);
        let inner = Inner { tier: Tier::new(inner.0, inner.1), ring: HashRing::new(0..inner.0), bound: None };
        Self::new(name, Balancing::RoundRobin(0), Tier::new(front.0, front.1), Some(inner))
    }

    /// Bounds the loads of the inner tier while each of its replicas has `in_progress` requests on average.
    pub(crate) fn with_bound(mut self, factor_percent: u64, in_progress: usize) -> Self {
        if let Some(inner) = &mut self.inner {
            let replicas = inner.tier.caches.len();
            inner.bound = Some(LoadBound::new(replicas, factor_percent, replicas * in_progress));
            write!(self.name, ", bounded, {in_progress} in progress").ok();
        }
        self
    }

    /// Answers a request.
    pub(crate) fn answer(&mut self, request: &Request) {
        let replicas = self.front.caches.len();
        let replica = match &mut self.balancing {
            Balancing::RoundRobin(next) => {
                *next = (*next + 1) % replicas;
                *next
            }
            Balancing::ByUrl(ring) => ring.server(request.url),
        };
        for block in request.blocks {
            let bytes = block_bytes(*block);
            self.reads += 1;
            self.read_bytes += bytes;
            if self.front.send(replica, *block, bytes) {
                continue;
            }
            let is_cached = self.inner.as_mut().is_some_and(|inner| {
                self.bytes_between_tiers += bytes;
                let hashed = hash(*block);
                let replica = match &mut inner.bound {
                    Some(bound) => bound.begin(&inner.ring, hashed),
                    None => inner.ring.server(hashed),
                };
                inner.tier.send(replica, *block, bytes)
            });
            self.bucket_gets += u64::from(!is_cached);
        }
    }

    pub(crate) fn outcome(&self) -> Outcome {
        Outcome {
            name: self.name.clone(),
            reads: self.reads,
            bucket_gets: self.bucket_gets,
            hit_ratio: 1.0 - ratio(self.bucket_gets, self.reads),
            imbalance: (self.front.imbalance(), self.inner.as_ref().map(|inner| inner.tier.imbalance())),
            between_tiers: self.inner.as_ref().map(|_| ratio(self.bytes_between_tiers, self.read_bytes)),
        }
    }
}

/// Returns a quotient for display, or 0 if there is none.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
pub(crate) fn ratio(dividend: u64, divisor: u64) -> f64 {
    if divisor == 0 { 0.0 } else { dividend as f64 / divisor as f64 }
}
