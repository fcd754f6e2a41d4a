//! What is made of a region's elements, such as a block in another encoding: kept in the cache of stored objects.

use std::fmt;
use std::sync::{Arc, Weak};

use bytes::Bytes;

use super::footprint;
use super::fresh::{self, Checked};
use super::objects::{ATTEMPTS, CACHE, Entry, EntryKey, WHOLE_BYTES};
use super::shared::share;
use super::{Access, Container, Fingerprint, Found, ReadError, Slice, forget};
use crate::cpu::Length;
use crate::fair;
use crate::metrics::{self, Lookup};
use crate::store::Meta;

/// Makes bytes of the elements of a region (little-endian, first axis fastest); an error is [`ReadError::Unmakeable`] or
/// [`ReadError::Convert`].
pub type Make = Arc<dyn Fn(Bytes) -> Result<Bytes, ReadError> + Send + Sync>;

/// How bytes are made of a region.
#[derive(Clone)]
pub struct Recipe {
    /// Stands for everything that they depend on besides the elements.
    pub id: u128,
    /// Memory that making them takes besides the elements, the result included.
    pub extra_bytes: u64,
    /// Does it, on the CPU lane.
    pub make: Make,
}

impl fmt::Debug for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recipe").field("id", &self.id).finish_non_exhaustive()
    }
}

/// What was made.
#[derive(Debug, Clone)]
pub struct Made {
    /// The bytes.
    pub bytes: Bytes,
    /// Tells apart the blocks that it was made of, as [`Fingerprint::tags`](super::Fingerprint::tags).
    pub tags: u128,
    /// As [`Fingerprint::versions`](super::Fingerprint::versions).
    pub versions: u64,
    /// How to find it again, where it is cached, as long as the blocks are the same.
    pub found: Option<Found>,
}

/// What a run of the recipe ends with when it leaves nothing to cache.
#[derive(Debug)]
enum Uncached {
    Failed(ReadError),
    /// And the moment of the earliest comparison with the store.
    Large(Made, u64),
}

/// The same as the cache hands it to those who wait for a run of another. It lets go of it some time later, perhaps when it is
/// next used: memory that others wait for must not hang on it, and is [held](fair::hold) for those who want it.
#[derive(Debug)]
enum Shared {
    Failed(ReadError),
    Large { bytes: Weak<Bytes>, tags: u128, versions: u64, checked: u64 },
}

/// What comes of a run for those who wait for it.
enum Run {
    Kept(Arc<Entry>),
    /// And the moment of the earliest comparison with the store.
    Large(Made, u64),
    /// Another run has begun before this one was looked at.
    Gone,
}

/// Bytes that several send.
struct Sent(Arc<Bytes>);

impl AsRef<[u8]> for Sent {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Container {
    /// What `recipe` makes of `slice`, from the cache where the blocks have not changed; `None` where none of them
    /// exists. One run, however many wait; what fails is not remembered.
    ///
    /// # Errors
    /// As [`Container::read_slice`]; [`ReadError::Unmakeable`] when the recipe fails.
    pub async fn made(&self, access: Access, slice: &Slice, recipe: &Recipe) -> Result<Option<Made>, ReadError> {
        let objects = &self.resources.objects;
        let id = recipe.id ^ slice.id();
        let key = EntryKey::Made(id);
        let since = access.data_since;
        for _ in 0..ATTEMPTS {
            let Some(entry) = objects.cache.get(&key).await else {
                access.may_wait().await;
                metrics::cache_requests(CACHE, Lookup::Miss, 1);
                match self.make_shared(access, key.clone(), slice, recipe).await? {
                    Run::Kept(entry) if entry.checked.is_fresh(since) => return Ok(Made::cached(id, &entry, access)),
                    Run::Large(large, checked) if checked >= since => return Ok(Some(large)),
                    // Of a run that began before this request, and read what may have changed since.
                    Run::Kept(_) | Run::Large(..) | Run::Gone => continue,
                }
            };
            if entry.checked.is_fresh(since) || self.is_unchanged(access, &entry, slice).await? {
                let result = if entry.object.is_some() { Lookup::Hit } else { Lookup::Absent };
                metrics::cache_requests(CACHE, result, access.counted());
                return Ok(Made::cached(id, &entry, access));
            }
            access.may_wait().await;
            metrics::cache_requests(CACHE, Lookup::Stale, 1);
            forget(&objects.cache, key.clone(), &entry).await;
        }
        match self.make(access, slice, recipe).await {
            Ok(entry) => Ok(Made::cached(id, &entry, access)),
            Err(Uncached::Large(made, _)) => Ok(Some(made)),
            Err(Uncached::Failed(error)) => Err(error),
        }
    }

    /// Whether the blocks that `entry` was made of are still the ones that the store holds.
    async fn is_unchanged(&self, access: Access, entry: &Entry, slice: &Slice) -> Result<bool, ReadError> {
        let moment = fresh::now();
        let now = self.fingerprint(access, slice).await?;
        let unchanged = entry.version() == (now.blocks > 0).then_some(now.versions);
        if unchanged {
            entry.checked.touch(moment);
        }
        Ok(unchanged)
    }

    /// Makes it once, however many want it.
    async fn make_shared(
        &self,
        access: Access,
        key: EntryKey,
        slice: &Slice,
        recipe: &Recipe,
    ) -> Result<Run, ReadError> {
        let (this, slice, recipe) = (self.clone(), slice.clone(), recipe.clone());
        let made = share(&self.resources.objects.loading, key.clone(), async move {
            let run = async {
                match this.make(access, &slice, &recipe).await {
                    Ok(entry) => Ok(entry),
                    Err(Uncached::Failed(error)) => Err(Shared::Failed(error)),
                    Err(Uncached::Large(Made { bytes, tags, versions, .. }, checked)) => {
                        let bytes = Arc::new(bytes);
                        fair::hold(&bytes);
                        Err(Shared::Large { bytes: Arc::downgrade(&bytes), tags, versions, checked })
                    }
                }
            };
            let cache = &this.resources.objects.cache;
            let made = cache.try_get_with(key, fair::leading(run)).await;
            // At once, while what is held is there.
            let made = made.map_or_else(|shared| shared.run(), |entry| Ok(Run::Kept(entry)));
            cache.run_pending_tasks().await;
            made
        });
        made.await?
    }

    async fn make(&self, access: Access, slice: &Slice, recipe: &Recipe) -> Result<Arc<Entry>, Uncached> {
        let (data, mut memory, stats) =
            self.read_slice_for(access, slice, recipe.extra_bytes, false).await.map_err(Uncached::Failed)?;
        let checked = Checked::at(stats.checked.unwrap_or(0));
        if stats.fingerprint.blocks == 0 {
            return Ok(Arc::new(Entry { object: None, is_nothing: false, checked }));
        }
        let (make, length) = (Arc::clone(&recipe.make), Length::of(data.len()));
        // The job holds what it uses: it runs on when whoever waits for it has gone, and then what it makes shall be kept.
        let keeper = fair::keeper();
        let job = move || {
            keeper.keep();
            let elements = data.as_ptr_range();
            let bytes = make(data)?;
            memory.shrink(bytes.len() as u64);
            let is_made = !elements.contains(&bytes.as_ptr());
            Ok::<_, ReadError>((bytes, memory, is_made))
        };
        // Elements that are sent as they are take no time.
        let done = match recipe.extra_bytes {
            0 => job(),
            _ => self
                .resources
                .cpu
                .run(length, slice.dataset.id, job)
                .await
                .map_err(|died| Uncached::Failed(died.into()))?,
        };
        let (bytes, memory, is_made) = done.map_err(Uncached::Failed)?;
        let (Fingerprint { tags, versions, .. }, len) = (stats.fingerprint, bytes.len() as u64);
        // Elements as they are belong to another budget, whose share must not live on in this cache.
        if len > WHOLE_BYTES || !is_made {
            let made = Made { bytes: memory.own(bytes), tags, versions, found: None };
            return Err(Uncached::Large(made, checked.moment()));
        }
        // What is cached counts as stored bytes do. (Nobody who holds these waits for a share of the other.)
        let permit = self.resources.objects.take(len).await.map_err(Uncached::Failed)?;
        let bytes = permit.of_cache().own(footprint::cached(bytes, false));
        let meta = Meta { len, modified: None, etag: format!("{tags:032x}").into(), version: versions };
        Ok(Arc::new(Entry { object: Some((meta, bytes)), is_nothing: false, checked }))
    }
}

impl Shared {
    fn run(&self) -> Result<Run, ReadError> {
        match self {
            Self::Failed(error) => Err(error.clone()),
            Self::Large { bytes, tags, versions, checked } => Ok(bytes.upgrade().map_or(Run::Gone, |bytes| {
                let bytes = Bytes::from_owner(Sent(bytes));
                Run::Large(Made { bytes, tags: *tags, versions: *versions, found: None }, *checked)
            })),
        }
    }
}

impl Made {
    fn cached(id: u128, entry: &Arc<Entry>, access: Access) -> Option<Self> {
        let (meta, bytes) = entry.object.as_ref()?;
        let tags = u128::from_str_radix(&meta.etag, 16).unwrap_or(0);
        Some(Self {
            bytes: bytes.clone(),
            tags,
            versions: meta.version,
            found: Some(Found::made(id, entry, access.begun)),
        })
    }
}
