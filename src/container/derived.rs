//! Results derived from a region's elements, such as a block in another encoding. They are cached with stored objects.

use std::fmt;
use std::sync::{Arc, Weak};

use bytes::Bytes;

use super::footprint;
use super::freshness::{self, ValidatedAt};
use super::object_cache::{ATTEMPTS, CACHE, MAX_WHOLE_OBJECT_BYTES, ObjectCacheKey, ObjectEntry};
use super::single_flight::run_single_flight;
use super::{Container, Dependency, Fingerprint, Freshness, PlannedSlice, ReadError, invalidate_if_same};
use crate::cpu_pool::Priority;
use crate::fair_queue;
use crate::metrics::{self, LookupResult};
use crate::store::ObjectMeta;

/// Derives bytes from the elements of a region (little-endian, first axis fastest). Fails with
/// [`ReadError::NotRepresentable`] or [`ReadError::Convert`].
pub type DeriveFn = Arc<dyn Fn(Bytes) -> Result<Bytes, ReadError> + Send + Sync>;

/// Description of how bytes are derived from a region.
#[derive(Clone)]
pub struct Derivation {
    /// Identifies everything that the bytes depend on besides the elements.
    pub id: u128,
    /// Memory that the derivation takes besides the elements, including the result.
    pub extra_bytes: u64,
    /// Derives the bytes, on the CPU pool.
    pub apply: DeriveFn,
}

impl fmt::Debug for Derivation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Derivation").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A derived result.
#[derive(Debug, Clone)]
pub struct DerivedBytes {
    /// The bytes.
    pub bytes: Bytes,
    /// Hash of the entity tags of the source blocks, as [`Fingerprint::etags_hash`](super::Fingerprint::etags_hash).
    pub etags_hash: u128,
    /// Hash of the versions of the source blocks, as [`Fingerprint::versions_hash`](super::Fingerprint::versions_hash).
    pub versions_hash: u64,
    /// Dependency that finds the result again while the blocks are unchanged, if the result is cached.
    pub dependency: Option<Dependency>,
}

/// Outcome of a derivation that leaves nothing to cache.
#[derive(Debug)]
enum UncachedDerivation {
    Failed(ReadError),
    /// The result, and the moment of the earliest comparison with the store.
    NotCacheable(DerivedBytes, u64),
}

/// The same outcome as the cache hands it to the other waiters. The cache drops it some time later, perhaps only when
/// it is next used. It must therefore not hold memory that other requests wait for. The result is
/// [retained](fair_queue::retain_for_waiters) for the waiters instead.
#[derive(Debug)]
enum DerivationHandoff {
    Failed(ReadError),
    NotCacheable { bytes: Weak<Bytes>, etags_hash: u128, versions_hash: u64, checked_at: u64 },
}

/// Outcome of a derivation for the requests that wait for it.
enum DerivationOutcome {
    Cached(Arc<ObjectEntry>),
    /// The result, and the moment of the earliest comparison with the store.
    NotCacheable(DerivedBytes, u64),
    /// Another derivation started before this outcome was read.
    Superseded,
}

/// Bytes shared by several responses.
struct SharedBytes(Arc<Bytes>);

impl AsRef<[u8]> for SharedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Container {
    /// Returns the result of `derivation` for `slice`, from the cache if the blocks have not changed. Returns `None` if
    /// none of the blocks exists. Concurrent requests share one derivation. Errors are not cached.
    ///
    /// # Errors
    /// As [`Container::read_slice`]; [`ReadError::NotRepresentable`] when the derivation fails.
    pub async fn derived(
        &self,
        freshness: Freshness,
        slice: &PlannedSlice,
        derivation: &Derivation,
    ) -> Result<Option<DerivedBytes>, ReadError> {
        let objects = &self.resources.objects;
        let id = derivation.id ^ slice.region_hash();
        let key = ObjectCacheKey::Derived(id);
        let fresh_since = freshness.data_since;
        for _ in 0..ATTEMPTS {
            let Some(entry) = objects.cache.get(&key).await else {
                freshness.ensure_may_block().await;
                metrics::cache_requests(CACHE, LookupResult::Miss, 1);
                match self.derive_shared(freshness, key.clone(), slice, derivation).await? {
                    DerivationOutcome::Cached(entry) if entry.validated_at.is_fresh(fresh_since) => {
                        return Ok(DerivedBytes::from_entry(id, &entry, freshness));
                    }
                    DerivationOutcome::NotCacheable(large, checked) if checked >= fresh_since => {
                        return Ok(Some(large));
                    }
                    // The derivation started before this request, so the blocks it read may have changed since.
                    DerivationOutcome::Cached(_)
                    | DerivationOutcome::NotCacheable(..)
                    | DerivationOutcome::Superseded => continue,
                }
            };
            if entry.validated_at.is_fresh(fresh_since) || self.is_unchanged(freshness, &entry, slice).await? {
                let result = if entry.object.is_some() { LookupResult::Hit } else { LookupResult::Absent };
                metrics::cache_requests(CACHE, result, freshness.lookup_weight());
                return Ok(DerivedBytes::from_entry(id, &entry, freshness));
            }
            freshness.ensure_may_block().await;
            metrics::cache_requests(CACHE, LookupResult::Stale, 1);
            invalidate_if_same(&objects.cache, key.clone(), &entry).await;
        }
        match self.derive(freshness, slice, derivation).await {
            Ok(entry) => Ok(DerivedBytes::from_entry(id, &entry, freshness)),
            Err(UncachedDerivation::NotCacheable(derived, _)) => Ok(Some(derived)),
            Err(UncachedDerivation::Failed(error)) => Err(error),
        }
    }

    /// Returns true if the blocks that `entry` was derived from are still those in the store.
    async fn is_unchanged(
        &self,
        freshness: Freshness,
        entry: &ObjectEntry,
        slice: &PlannedSlice,
    ) -> Result<bool, ReadError> {
        let checked_at = freshness::now();
        let current = self.fingerprint(freshness, slice).await?;
        let is_unchanged = entry.version() == (current.blocks > 0).then_some(current.versions_hash);
        if is_unchanged {
            entry.validated_at.touch(checked_at);
        }
        Ok(is_unchanged)
    }

    /// Derives the result in a single flight.
    async fn derive_shared(
        &self,
        freshness: Freshness,
        key: ObjectCacheKey,
        slice: &PlannedSlice,
        derivation: &Derivation,
    ) -> Result<DerivationOutcome, ReadError> {
        let (this, slice, derivation) = (self.clone(), slice.clone(), derivation.clone());
        let outcome = run_single_flight(&self.resources.objects.loading, key.clone(), async move {
            let load = async {
                match this.derive(freshness, &slice, &derivation).await {
                    Ok(entry) => Ok(entry),
                    Err(UncachedDerivation::Failed(error)) => Err(DerivationHandoff::Failed(error)),
                    Err(UncachedDerivation::NotCacheable(
                        DerivedBytes { bytes, etags_hash, versions_hash, .. },
                        checked_at,
                    )) => {
                        let bytes = Arc::new(bytes);
                        fair_queue::retain_for_waiters(&bytes);
                        Err(DerivationHandoff::NotCacheable {
                            bytes: Arc::downgrade(&bytes),
                            etags_hash,
                            versions_hash,
                            checked_at,
                        })
                    }
                }
            };
            let cache = &this.resources.objects.cache;
            let outcome = cache.try_get_with(key, fair_queue::lead(load)).await;
            // Read the outcome now, while the retained value still exists.
            let outcome =
                outcome.map_or_else(|handoff| handoff.outcome(), |entry| Ok(DerivationOutcome::Cached(entry)));
            cache.run_pending_tasks().await;
            outcome
        });
        outcome.await?
    }

    async fn derive(
        &self,
        freshness: Freshness,
        slice: &PlannedSlice,
        derivation: &Derivation,
    ) -> Result<Arc<ObjectEntry>, UncachedDerivation> {
        let (data, mut memory, stats) = self
            .read_slice_for(freshness, slice, derivation.extra_bytes, false)
            .await
            .map_err(UncachedDerivation::Failed)?;
        let validated_at = ValidatedAt::at(stats.oldest_check.unwrap_or(0));
        if stats.fingerprint.blocks == 0 {
            return Ok(Arc::new(ObjectEntry { object: None, is_name_absent: false, validated_at }));
        }
        let (apply, priority) = (Arc::clone(&derivation.apply), Priority::for_input_bytes(data.len()));
        // The job owns its inputs. It runs to its end even without waiters, and its result should be cached then, too.
        let detach_handle = fair_queue::detach_handle();
        let job = move || {
            detach_handle.detach();
            let input_range = data.as_ptr_range();
            let bytes = apply(data)?;
            memory.shrink(bytes.len() as u64);
            let is_new_buffer = !input_range.contains(&bytes.as_ptr());
            Ok::<_, ReadError>((bytes, memory, is_new_buffer))
        };
        // Elements that are sent unchanged take no time.
        let result = match derivation.extra_bytes {
            0 => job(),
            _ => self
                .resources
                .cpu
                .run(priority, slice.dataset.id, job)
                .await
                .map_err(|died| UncachedDerivation::Failed(died.into()))?,
        };
        let (bytes, memory, is_new_buffer) = result.map_err(UncachedDerivation::Failed)?;
        let (Fingerprint { etags_hash, versions_hash, .. }, len) = (stats.fingerprint, bytes.len() as u64);
        // Unchanged elements belong to another budget, whose permit must not live on in this cache.
        if len > MAX_WHOLE_OBJECT_BYTES || !is_new_buffer {
            let derived = DerivedBytes { bytes: memory.own(bytes), etags_hash, versions_hash, dependency: None };
            return Err(UncachedDerivation::NotCacheable(derived, validated_at.nanoseconds()));
        }
        // Cached results are charged like stored bytes. Waiting here cannot deadlock: no holder of transfer memory
        // waits for the slice budget.
        let permit = self.resources.objects.take(len).await.map_err(UncachedDerivation::Failed)?;
        let bytes = permit.into_cache_owned().own(footprint::compact_for_cache(bytes, false));
        let meta =
            ObjectMeta { len, modified: None, etag: format!("{etags_hash:032x}").into(), version: versions_hash };
        Ok(Arc::new(ObjectEntry { object: Some((meta, bytes)), is_name_absent: false, validated_at }))
    }
}

impl DerivationHandoff {
    fn outcome(&self) -> Result<DerivationOutcome, ReadError> {
        match self {
            Self::Failed(error) => Err(error.clone()),
            Self::NotCacheable { bytes, etags_hash, versions_hash, checked_at } => {
                Ok(bytes.upgrade().map_or(DerivationOutcome::Superseded, |bytes| {
                    let bytes = Bytes::from_owner(SharedBytes(bytes));
                    DerivationOutcome::NotCacheable(
                        DerivedBytes {
                            bytes,
                            etags_hash: *etags_hash,
                            versions_hash: *versions_hash,
                            dependency: None,
                        },
                        *checked_at,
                    )
                }))
            }
        }
    }
}

impl DerivedBytes {
    fn from_entry(id: u128, entry: &Arc<ObjectEntry>, freshness: Freshness) -> Option<Self> {
        let (meta, bytes) = entry.object.as_ref()?;
        let etags_hash = u128::from_str_radix(&meta.etag, 16).unwrap_or(0);
        Some(Self {
            bytes: bytes.clone(),
            etags_hash,
            versions_hash: meta.version,
            dependency: Some(Dependency::derived(id, entry, freshness.request_start)),
        })
    }
}
