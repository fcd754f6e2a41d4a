//! Entries of the object cache: an object as stored, a result derived from stored blocks, or the fact that there is none.

use bytes::Bytes;

use super::freshness::ValidatedAt;
use super::large_object::LargeObject;
use super::validated::CacheEntry;
use crate::store::{Key, ObjectMeta};

/// An object as stored.
#[derive(Debug, Clone)]
pub enum StoredObject {
    /// The object is small enough to be held in memory.
    Whole(ObjectMeta, Bytes),
    /// The object must be read in pieces.
    Large(LargeObject),
}

impl StoredObject {
    /// Returns the object's metadata.
    pub fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Whole(meta, _) => meta,
            Self::Large(large) => large.meta(),
        }
    }
}

/// A cached object, or the fact that there is none.
#[derive(Debug)]
pub(crate) struct ObjectEntry {
    pub(crate) content: ObjectContent,
    pub(crate) validated_at: ValidatedAt,
    /// True if the cache accounts for the memory of the content.
    pub(crate) is_cacheable: bool,
}

#[derive(Debug)]
pub(crate) enum ObjectContent {
    /// There is no object. If `is_name_absent` is true, there is no directory of that name either.
    Missing {
        is_name_absent: bool,
    },
    Found(StoredObject),
}

impl ObjectEntry {
    pub(crate) fn missing(is_name_absent: bool, checked_at: u64) -> Self {
        let content = ObjectContent::Missing { is_name_absent };
        Self { content, validated_at: ValidatedAt::at(checked_at), is_cacheable: true }
    }

    pub(crate) fn whole(meta: ObjectMeta, bytes: Bytes, checked_at: u64) -> Self {
        let content = ObjectContent::Found(StoredObject::Whole(meta, bytes));
        Self { content, validated_at: ValidatedAt::at(checked_at), is_cacheable: true }
    }

    /// Creates an entry that only the requests that wait for it get.
    pub(crate) fn uncached(object: StoredObject, checked_at: u64) -> Self {
        let content = ObjectContent::Found(object);
        Self { content, validated_at: ValidatedAt::at(checked_at), is_cacheable: false }
    }

    /// Returns the object's metadata, if there is one.
    pub(crate) fn meta(&self) -> Option<&ObjectMeta> {
        match &self.content {
            ObjectContent::Found(object) => Some(object.meta()),
            ObjectContent::Missing { .. } => None,
        }
    }

    /// Returns metadata and bytes of the object, if there is one and its bytes are in memory.
    pub(crate) fn whole_object(&self) -> Option<(&ObjectMeta, &Bytes)> {
        match &self.content {
            ObjectContent::Found(StoredObject::Whole(meta, bytes)) => Some((meta, bytes)),
            ObjectContent::Found(StoredObject::Large(_)) | ObjectContent::Missing { .. } => None,
        }
    }

    pub(crate) fn version(&self) -> Option<u64> {
        self.meta().map(|meta| meta.version)
    }

    /// Returns true if neither an object nor a directory has this name.
    pub(crate) fn is_name_absent(&self) -> bool {
        matches!(self.content, ObjectContent::Missing { is_name_absent: true })
    }

    pub(crate) fn to_stored_object(&self) -> Option<StoredObject> {
        match &self.content {
            ObjectContent::Found(object) => Some(object.clone()),
            ObjectContent::Missing { .. } => None,
        }
    }
}

impl CacheEntry for ObjectEntry {
    fn validated_at(&self) -> &ValidatedAt {
        &self.validated_at
    }

    fn is_missing(&self) -> bool {
        matches!(self.content, ObjectContent::Missing { .. })
    }

    fn is_cacheable(&self) -> bool {
        self.is_cacheable
    }
}

/// Key of the object cache.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ObjectCacheKey {
    /// A stored object: container and key.
    Stored(u32, Key),
    /// A result derived from stored blocks, identified by a hash of the region and the derivation.
    Derived(u128),
}
