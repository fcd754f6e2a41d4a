//! Results derived from a region's elements, such as a block in another encoding. They are cached with stored objects.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;

use super::gather::read_slice_for;
use super::plan::PlannedSlice;
use super::read_stats::{Fingerprint, fingerprint};
use crate::cache::{
    self, EntrySource, Freshness, MAX_WHOLE_OBJECT_BYTES, ObjectCacheKey, ObjectEntry, ReadError, StoredObject,
};
use crate::container::{Container, Dependency};
use crate::runtime::cpu_pool::Priority;
use crate::runtime::fair_queue::FlightHandle;
use crate::store::ObjectMeta;

/// Description of how bytes are derived from a region.
#[derive(Clone)]
pub struct Derivation {
    /// Identifies everything that the bytes depend on in addition to the elements.
    pub id: u128,
    /// Memory that the derivation takes in addition to the elements, including the result.
    pub extra_bytes: u64,
    /// Derives the bytes from the elements (little-endian, first axis fastest), on the CPU pool. Fails with
    /// [`ReadError::NotRepresentable`] or [`ReadError::Convert`].
    pub apply: Arc<dyn Fn(Bytes) -> Result<Bytes, ReadError> + Send + Sync>,
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

/// Returns the result of `derivation` for `slice`, from the cache if the blocks have not changed. Returns `None` if
/// none of the blocks exists. Concurrent requests share one derivation. Errors are not cached.
///
/// # Errors
/// As [`read_slice`](super::read_slice); [`ReadError::NotRepresentable`] when the derivation fails.
pub async fn read_derived(
    container: &Container,
    freshness: Freshness,
    slice: &PlannedSlice,
    derivation: &Derivation,
) -> Result<Option<DerivedBytes>, ReadError> {
    let id = derivation.id ^ slice.region_hash();
    let source = DerivedSource { container, freshness, slice, derivation };
    let entries = &container.resources.objects.entries;
    let entry = entries.get(&ObjectCacheKey::Derived(id), freshness, freshness.data_since, &source).await?;
    Ok(entry.whole_object().map(|(meta, bytes)| DerivedBytes {
        bytes: bytes.clone(),
        etags_hash: entry.etags_hash,
        versions_hash: meta.version,
        dependency: entry.is_cacheable.then(|| Dependency::derived(id, &entry, freshness.request_start)),
    }))
}

/// Returns true if the blocks that `entry` was derived from are still those in the store.
async fn is_unchanged(
    container: &Container,
    freshness: Freshness,
    entry: &ObjectEntry,
    slice: &PlannedSlice,
) -> Result<bool, ReadError> {
    let checked_at = cache::now();
    let current = fingerprint(container, freshness, slice).await?;
    let is_unchanged = entry.version() == (current.blocks > 0).then_some(current.versions_hash);
    if is_unchanged {
        entry.validated_at.touch(checked_at);
    }
    Ok(is_unchanged)
}

async fn derive(
    container: &Container,
    freshness: Freshness,
    slice: &PlannedSlice,
    derivation: &Derivation,
    flight: FlightHandle,
) -> Result<ObjectEntry, ReadError> {
    let (data, mut memory, stats) = read_slice_for(container, freshness, slice, derivation.extra_bytes, false).await?;
    let checked_at = stats.oldest_check.unwrap_or(0);
    if stats.fingerprint.blocks == 0 {
        return Ok(ObjectEntry::missing(false, checked_at));
    }
    let (apply, priority) = (Arc::clone(&derivation.apply), Priority::for_input_bytes(data.len()));
    // The job owns its inputs. It runs to its end even without waiters, and its result should be cached then, too.
    let job = move || {
        flight.detach();
        let input_range = data.as_ptr_range();
        let bytes = apply(data)?;
        memory.shrink(bytes.len() as u64);
        let is_new_buffer = !input_range.contains(&bytes.as_ptr());
        Ok::<_, ReadError>((bytes, memory, is_new_buffer))
    };
    // Elements that are sent unchanged take no time.
    let result = match derivation.extra_bytes {
        0 => job(),
        _ => container.resources.cpu.run(priority, slice.dataset.id, job).await?,
    };
    let (bytes, memory, is_new_buffer) = result?;
    let (Fingerprint { etags_hash, versions_hash, .. }, len) = (stats.fingerprint, bytes.len() as u64);
    let meta = ObjectMeta { len, modified: None, etag: Arc::default(), version: versions_hash };
    // Unchanged elements belong to another budget, whose permit must not live on in this cache.
    if len > MAX_WHOLE_OBJECT_BYTES || !is_new_buffer {
        let uncached = ObjectEntry::uncached(StoredObject::Whole(meta, memory.own(bytes)), checked_at);
        return Ok(ObjectEntry { etags_hash, ..uncached });
    }
    // Cached results are charged like stored bytes. Waiting here cannot deadlock: no holder of transfer memory
    // waits for the slice budget.
    let permit = container.resources.objects.entries.take(len).await?;
    Ok(ObjectEntry { etags_hash, ..ObjectEntry::whole(meta, permit.own_for_cache(bytes, false), checked_at) })
}

/// The blocks of a slice as the source of a derived result.
struct DerivedSource<'a> {
    container: &'a Container,
    freshness: Freshness,
    slice: &'a PlannedSlice,
    derivation: &'a Derivation,
}

impl EntrySource<ObjectEntry> for DerivedSource<'_> {
    fn try_is_unchanged(&self, entry: &ObjectEntry) -> Option<bool> {
        is_unchanged(self.container, self.freshness.nonblocking(), entry, self.slice).now_or_never()?.ok()
    }

    fn load(
        &self,
        stale: Option<Arc<ObjectEntry>>,
        flight: FlightHandle,
    ) -> impl Future<Output = Result<Arc<ObjectEntry>, ReadError>> + Send + 'static {
        let (container, freshness) = (self.container.clone(), self.freshness);
        let (slice, derivation) = (self.slice.clone(), self.derivation.clone());
        async move {
            if let Some(stale) = stale
                && is_unchanged(&container, freshness, &stale, &slice).await?
            {
                return Ok(stale);
            }
            Ok(Arc::new(derive(&container, freshness, &slice, &derivation, flight).await?))
        }
    }
}
