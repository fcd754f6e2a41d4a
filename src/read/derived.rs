//! Results that are derived from a region's elements, such as a block in another encoding. The cache of stored objects
//! also holds these results.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;

use super::plan::PlannedSlice;
use super::read_stats::{Fingerprint, compare_blocks, fingerprint};
use super::slice_reader::{ReadPurpose, SliceRead, SliceReader};
use crate::cache::{
    self, CacheEntry, EntrySource, FreshSince, MAX_NONBLOCKING_CHECKS, MAX_WHOLE_OBJECT_BYTES, ObjectCacheKey,
    ObjectEntry, ReadError, ReadOptions, StoredObject,
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
    /// True if a block that cannot be decoded is left out, so that its elements are 0. At least one block must be intact.
    pub skips_damaged: bool,
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
    /// Hash of the entity tags of the source blocks: their [`Fingerprint::etags_hash`](super::Fingerprint::etags_hash).
    pub etags_hash: u128,
    /// Hash of the versions of the source blocks: their
    /// [`Fingerprint::versions_hash`](super::Fingerprint::versions_hash).
    pub versions_hash: u64,
    /// Dependency of a reply on the cached result, so that the reply can be sent again while the blocks are
    /// unchanged; `None` if the result is not cached.
    pub dependency: Option<Dependency>,
}

/// Returns the result of `derivation` for `slice`, from the cache if the blocks have not changed. Returns `None` if
/// none of the blocks exists. Concurrent requests share one derivation. Errors are not cached.
///
/// # Errors
/// Returns the errors of [`SliceReader::read_whole`], and [`ReadError::NotRepresentable`] if the derivation fails.
pub async fn read_derived(
    container: &Container,
    options: ReadOptions,
    slice: &PlannedSlice,
    derivation: &Derivation,
) -> Result<Option<DerivedBytes>, ReadError> {
    let id = derivation.id ^ slice.region_hash();
    let source = DerivedSource { reader: SliceReader { container, options, slice }, derivation };
    let fresh_since = container.data_since(options);
    let entry = container.object_entries().get(&ObjectCacheKey::Derived(id), options, fresh_since, &source).await?;
    Ok(entry.whole_object().map(|(meta, bytes)| DerivedBytes {
        bytes: bytes.clone(),
        etags_hash: entry.etags_hash,
        versions_hash: meta.version,
        dependency: entry.is_cacheable.then(|| Dependency::derived(id, &entry, options.request_start)),
    }))
}

/// Returns the hash of the entity tags of the source blocks if the result of the derivation with the id `derivation_id`
/// is in the cache and fresh.
pub async fn cached_etags_hash(
    container: &Container,
    options: ReadOptions,
    slice: &PlannedSlice,
    derivation_id: u128,
) -> Option<u128> {
    let key = ObjectCacheKey::Derived(derivation_id ^ slice.region_hash());
    let entry = container.object_entries().cached(&key).await?;
    (entry.object.is_some() && entry.is_fresh(container.data_since(options))).then_some(entry.etags_hash)
}

/// Returns true if the blocks from which `entry` was derived are unchanged in the store.
async fn is_unchanged(reader: SliceReader<'_>, entry: &ObjectEntry) -> Result<bool, ReadError> {
    let checked_at = cache::now();
    let current = compare_blocks(reader.container, reader.options, reader.slice).await?;
    let Fingerprint { blocks, versions_hash, .. } = current.fingerprint;
    let is_unchanged = entry.version() == (blocks > 0).then_some(versions_hash);
    if is_unchanged {
        // A slice may touch no block at all.
        entry.validated_at.touch(current.oldest_check.unwrap_or(checked_at));
    }
    Ok(is_unchanged)
}

/// Reads the slice and derives the result, on behalf of all requests that wait for `flight`.
async fn derive(
    reader: SliceReader<'_>,
    derivation: &Derivation,
    flight: FlightHandle,
) -> Result<ObjectEntry, ReadError> {
    let resources = &reader.container.resources;
    // Of all blocks, damaged ones included. It is older than the elements, so that a repaired block is noticed.
    let all_blocks = if derivation.skips_damaged {
        Some(fingerprint(reader.container, reader.options, reader.slice).await?)
    } else {
        None
    };
    let purpose = if derivation.skips_damaged { ReadPurpose::Preview } else { ReadPurpose::Derivation };
    let read = reader.read_whole(derivation.extra_bytes, purpose).await?;
    let SliceRead { pieces, mut memory, stats } = read;
    let data = pieces.into_iter().next().unwrap_or_default();
    let checked_at = stats.oldest_check.unwrap_or(0);
    if stats.fingerprint.blocks == 0 {
        let hole = ObjectEntry::missing(false, checked_at);
        // Holes that are remembered elsewhere must not fill the cache.
        return Ok(ObjectEntry { is_cacheable: reader.container.missing_names().is_none(), ..hole });
    }
    let depends_on_missing = stats.missing > 0;
    let apply = Arc::clone(&derivation.apply);
    let priority = Priority::for_input_bytes(data.len());
    // The job owns its inputs, so that it runs to completion and its result is cached even if no request waits any
    // more.
    let job = move || {
        flight.detach();
        let input_range = data.as_ptr_range();
        let bytes = apply(data)?;
        memory.shrink(bytes.len() as u64);
        let is_new_buffer = !input_range.contains(&bytes.as_ptr());
        Ok::<_, ReadError>((bytes, memory, is_new_buffer))
    };
    // A derivation that takes no memory returns the elements unchanged, which takes no time.
    let result = match derivation.extra_bytes {
        0 => job(),
        _ => resources.cpu.run(priority, reader.slice.dataset.id, job).await?,
    };
    let (bytes, memory, is_new_buffer) = result?;
    let len = bytes.len() as u64;
    let read_blocks = all_blocks.filter(|_| stats.damage.is_some()).unwrap_or(stats.fingerprint);
    let Fingerprint { etags_hash, versions_hash, .. } = read_blocks;
    let meta = ObjectMeta { len, modified: None, etag: Arc::default(), version: versions_hash };
    // Unchanged elements hold a permit of another budget, which must not stay in this cache.
    if len > MAX_WHOLE_OBJECT_BYTES || !is_new_buffer {
        let uncached = ObjectEntry::uncached(StoredObject::Whole(meta, memory.own_pooled(bytes)), checked_at);
        return Ok(ObjectEntry { etags_hash, depends_on_missing, ..uncached });
    }
    // Cached results are charged like stored bytes. Waiting here cannot deadlock: no holder of transfer memory
    // waits for the slice budget.
    let permit = reader.container.object_entries().take(len).await?;
    Ok(ObjectEntry {
        etags_hash,
        depends_on_missing,
        ..ObjectEntry::whole(meta, permit.own_for_cache(bytes, false), checked_at)
    })
}

/// The blocks of a slice as the source of a derived result.
struct DerivedSource<'a> {
    reader: SliceReader<'a>,
    derivation: &'a Derivation,
}

impl EntrySource<ObjectEntry> for DerivedSource<'_> {
    fn try_is_unchanged(&self, entry: &ObjectEntry) -> Option<bool> {
        let reader = SliceReader { options: self.reader.options.nonblocking(), ..self.reader };
        is_unchanged(reader, entry).now_or_never()?.ok()
    }

    fn known_missing(&self, fresh_since: FreshSince) -> Option<ObjectEntry> {
        let SliceReader { container, slice, .. } = self.reader;
        container.missing_names()?;
        let positions = slice.dataset.attributes.grid().covering(&slice.region);
        if positions.total() > MAX_NONBLOCKING_CHECKS as u128 {
            return None;
        }
        let source = container.block_source(&slice.dataset);
        let mut oldest_check = None::<u64>;
        for position in positions {
            let checked_at = source.known_missing(&position, fresh_since)?;
            oldest_check = Some(oldest_check.map_or(checked_at, |oldest| oldest.min(checked_at)));
        }
        oldest_check.map(ObjectEntry::known_missing)
    }

    fn load(
        &self,
        stale: Option<Arc<ObjectEntry>>,
        flight: FlightHandle,
    ) -> impl Future<Output = Result<Arc<ObjectEntry>, ReadError>> + Send + 'static {
        let container = self.reader.container.clone();
        // A nonblocking read may start this load in the background.
        let options = self.reader.options.blocking();
        let slice = self.reader.slice.clone();
        let derivation = self.derivation.clone();
        async move {
            let reader = SliceReader { container: &container, options, slice: &slice };
            if let Some(stale) = stale
                && is_unchanged(reader, &stale).await?
            {
                return Ok(stale);
            }
            Ok(Arc::new(derive(reader, &derivation, flight).await?))
        }
    }
}
