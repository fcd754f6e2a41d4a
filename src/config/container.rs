//! What is said of containers: `[[containers]]` and `[container_defaults]`.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// One container to serve.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContainerConfig {
    /// First path segment; empty for the only container, which is then the root.
    #[serde(default)]
    pub name: String,
    /// Directory on the file system.
    #[serde(default)]
    pub root: PathBuf,
    /// What caches downstream may do.
    #[serde(default)]
    pub cache_control: CachePolicy,
    /// Which symbolic links are followed.
    #[serde(default)]
    pub symlinks: Symlinks,
    /// Whether it is served only while something is mounted at the directory.
    #[serde(default)]
    pub must_be_mount: bool,
    /// What a stored object's entity tag is made of.
    #[serde(default)]
    pub entity_tag: EntityTag,
}

/// `[container_defaults]`
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContainerDefaults {
    /// What caches downstream may do.
    pub cache_control: CachePolicy,
    /// Which symbolic links are followed.
    pub symlinks: Symlinks,
    /// Whether it is served only while something is mounted at the directory.
    pub must_be_mount: bool,
    /// What a stored object's entity tag is made of.
    pub entity_tag: EntityTag,
}

/// What `Cache-Control` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum CachePolicy {
    /// `public, max-age=31536000, immutable`
    Immutable,
    /// `no-cache`
    #[default]
    Revalidate,
    /// `max-age=N` in whole seconds.
    MaxAge(Duration),
}

/// Which symbolic links are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Symlinks {
    /// Those whose target lies inside the container.
    #[default]
    Inside,
    /// None.
    Deny,
    /// All.
    Follow,
}

/// What a stored object's entity tag is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EntityTag {
    /// Length and modification time.
    #[default]
    Mtime,
    /// Change time and inode, too.
    Inode,
}
