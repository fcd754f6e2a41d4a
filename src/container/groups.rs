//! Lookups of groups and datasets by their attributes.

use std::sync::Arc;

use bytes::Bytes;

use super::handle::Container;
use crate::cache::{
    ATTRIBUTES, AXES_BYTES, Dataset, GROUP_BYTES, Group, GroupState, MAX_WHOLE_OBJECT_BYTES, ReadError, ReadOptions,
    StoredObject, dataset_id,
};
use crate::runtime::cpu_pool::Priority;
use crate::store::{Key, ObjectMeta};
use crate::telemetry::metrics::{self, CacheLabel, LookupResult};
use n5_format::{AttributesDocument, MAX_INTERPRETED_BYTES};

/// Maximum memory that is assumed for the interpreted members of a document, as a multiple of the length of its text.
/// The worst case that was measured is 128 times: a B-tree node for each `{"":`.
const MAX_PARSED_FACTOR: u64 = 256;

/// Length of the longest document that is processed on the calling thread, in bytes. Longer ones go to the CPU pool.
const MAX_INLINE_BYTES: usize = 32 << 10;

/// Length of the longest document that is processed at high priority, in bytes. Parsing takes 2 to 5 ms for a MiB.
const MAX_SHORT_JOB_BYTES: usize = 1 << 20;

/// Approximate memory that a name takes in addition to its text, in bytes.
const NAME_BYTES: usize = 56;

impl Container {
    /// Returns the group at `key`, which its attributes describe.
    ///
    /// # Errors
    /// Returns an error if the attributes cannot be read or are too large.
    pub async fn group(&self, options: ReadOptions, key: &Key) -> Result<Arc<Group>, ReadError> {
        let Ok(file) = key.child(ATTRIBUTES) else { return Ok(Group::without_attributes()) };
        let attributes = &self.resources.attributes;
        let limit_bytes = self.max_attributes_bytes();
        let mut send_permit = None;
        loop {
            let (meta, bytes) = match self.object(options, &file).await? {
                None => return Ok(Group::without_attributes()),
                Some(StoredObject::Whole(meta, bytes)) if meta.len <= limit_bytes => (meta, bytes),
                Some(stored) => {
                    let bytes = stored.meta().len;
                    return Err(ReadError::AttributesTooLarge { key: key.clone(), bytes, limit_bytes });
                }
            };
            let cache_key = (self.id, key.clone(), meta.version);
            if let Some(group) = attributes.cache.get(&cache_key).await {
                metrics::cache_requests(CacheLabel::Attributes, LookupResult::Hit, options.lookup_weight());
                return Ok(self.apply_visibility(group));
            }
            // Everything below may wait: for memory, for a core, or for another request that parses the attributes.
            options.pend_if_nonblocking().await;
            // The bytes are charged to the client until they are parsed. Otherwise a client that requests many
            // documents could take the memory of other clients.
            let Some(bytes) = self.charge_or_wait(&mut send_permit, bytes).await? else {
                // Another request may have parsed the attributes meanwhile. Then they need not be read again.
                if let Some(group) = attributes.cache.get(&cache_key).await {
                    return Ok(self.apply_visibility(group));
                }
                continue;
            };
            metrics::cache_requests(CacheLabel::Attributes, LookupResult::Miss, 1);
            let parse = Box::pin(self.parse_group(key, meta, bytes));
            let result = attributes.cache.try_get_with(cache_key, parse).await;
            return result.map(|group| self.apply_visibility(group)).map_err(|error| (*error).clone());
        }
    }

    /// Parses `bytes`, the attributes of the group at `key`.
    async fn parse_group(&self, key: &Key, meta: ObjectMeta, bytes: Bytes) -> Result<Arc<Group>, ReadError> {
        let len = bytes.len();
        let id = dataset_id(self.id, key, meta.version);
        let owned_key = key.clone();
        let max_bytes = (len as u64).saturating_mul(MAX_PARSED_FACTOR).min(MAX_INTERPRETED_BYTES);
        // Waiting for this permit while holding the bytes cannot deadlock, because holders of such permits wait only
        // for a core.
        let permit = self.resources.attributes.parsing_budget.take(max_bytes + GROUP_BYTES).await?;
        let codecs = self.resources.attributes.codecs.clone();
        let parse = move || (Group::parse(&bytes, &codecs, id, owned_key, (meta.etag, meta.version)), permit);
        let (group, _permit) = self.run_document_job(len, parse).await?;
        Ok(Arc::new(group))
    }

    /// Returns the bytes of the `attributes.json` of the group at `key`; empty if the file does not exist or has more
    /// than `max_bytes`.
    ///
    /// # Errors
    /// Returns an error if the store fails or there is not enough memory.
    pub async fn attributes_bytes(&self, options: ReadOptions, key: &Key, max_bytes: u64) -> Result<Bytes, ReadError> {
        let Ok(file) = key.child(ATTRIBUTES) else { return Ok(Bytes::new()) };
        Ok(match self.object(options, &file).await? {
            Some(StoredObject::Whole(_, bytes)) if bytes.len() as u64 <= max_bytes => bytes,
            Some(StoredObject::Whole(..) | StoredObject::Large(_)) | None => Bytes::new(),
        })
    }

    /// Returns the maximum length of an `attributes.json` that is read: `limits.attributes`, or less if the transfer
    /// budget or the limit for whole objects is smaller.
    pub fn max_attributes_bytes(&self) -> u64 {
        let settings = self.resources.settings();
        settings.max_attributes_bytes.min(settings.transfer_budget).min(MAX_WHOLE_OBJECT_BYTES)
    }

    /// Runs `work` on a document of `len` bytes, on the CPU pool if the document is long.
    ///
    /// # Errors
    /// Returns [`ReadError::Internal`] if the job fails.
    pub async fn run_document_job<T: Send + 'static>(
        &self,
        len: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ReadError> {
        if len <= MAX_INLINE_BYTES {
            return Ok(work());
        }
        let priority = if len <= MAX_SHORT_JOB_BYTES { Priority::High } else { Priority::Low };
        Ok(self.resources.cpu.run(priority, u64::from(self.id), work).await?)
    }

    /// Returns the group at `key` as [`Self::group`] does, for callers that inspect surrounding groups. Returns `None`
    /// if the attributes are too large or hidden
    /// ([`StoreError::hides_object`](crate::store::StoreError::hides_object)). Such a caller may treat a dataset with
    /// such attributes as a plain group, because it reads no blocks.
    ///
    /// # Errors
    /// Returns an error if the attributes cannot be read for another reason.
    pub async fn group_if_readable(&self, options: ReadOptions, key: &Key) -> Result<Option<Arc<Group>>, ReadError> {
        match self.group(options, key).await {
            Err(ReadError::AttributesTooLarge { .. }) => Ok(None),
            result => ReadError::hidden_as_none(result.map(Some)),
        }
    }

    /// Returns the group, or a group without attributes in place of a dataset that the caller may not see as a whole.
    fn apply_visibility(&self, group: Arc<Group>) -> Arc<Group> {
        match &group.state {
            GroupState::Dataset(dataset) if !self.check_subtree_visible(&dataset.key) => Group::without_attributes(),
            GroupState::Dataset(_)
            | GroupState::NoAttributes
            | GroupState::Broken(_)
            | GroupState::Attributes(_)
            | GroupState::Unusable(..) => group,
        }
    }

    /// Returns the dataset at `key`.
    ///
    /// # Errors
    /// Returns [`ReadError::NotFound`] or [`ReadError::NotADataset`], which gives the reason, or an error of
    /// [`Self::group`].
    pub async fn dataset(&self, options: ReadOptions, key: &Key) -> Result<Arc<Dataset>, ReadError> {
        let (_group, dataset) = self.group_of_dataset(options, key).await?;
        Ok(dataset)
    }

    /// Returns the dataset at `key` and the names of its axes, which `parse_axes` finds in the dataset's document. The
    /// names are cached with the group, because parsing a long document takes time. Names of more than 4 KiB together
    /// are left out.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::dataset`].
    pub async fn dataset_and_axes(
        &self,
        options: ReadOptions,
        key: &Key,
        parse_axes: impl FnOnce(AttributesDocument) -> Vec<String>,
    ) -> Result<(Arc<Dataset>, Arc<[String]>), ReadError> {
        let (group, dataset) = self.group_of_dataset(options, key).await?;
        let axes = group.axes.get_or_init(|| {
            let names = group.dataset_document.clone().map_or_else(Vec::new, parse_axes);
            let bytes: usize = names.iter().map(|name| NAME_BYTES + name.len()).sum();
            if bytes <= AXES_BYTES { names.into() } else { Arc::default() }
        });
        Ok((dataset, Arc::clone(axes)))
    }

    async fn group_of_dataset(&self, options: ReadOptions, key: &Key) -> Result<(Arc<Group>, Arc<Dataset>), ReadError> {
        let not_a_dataset = |reason: String| Err(ReadError::NotADataset { key: key.clone(), reason });
        let group = self.group(options, key).await?;
        match &group.state {
            GroupState::Dataset(dataset) => {
                let dataset = Arc::clone(dataset);
                Ok((group, dataset))
            }
            GroupState::Broken(error) => not_a_dataset(error.to_string()),
            GroupState::Unusable(_, reason) => not_a_dataset(reason.clone()),
            GroupState::Attributes(_) => not_a_dataset(
                "it is a group; its attributes lack dimensions, blockSize, dataType or compression".to_owned(),
            ),
            GroupState::NoAttributes if self.is_directory(options, key).await? => {
                not_a_dataset("it is a group without attributes".to_owned())
            }
            GroupState::NoAttributes => Err(ReadError::NotFound(key.clone())),
        }
    }
}
