//! Settings of containers: `[[containers]]` and `[container_defaults]`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::policies::{EntityTagSource, SymlinkPolicy};
use super::values::CacheControl;

/// A table of `[[containers]]`: a container to serve.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContainerConfig {
    /// First path segment; empty if this is the only container and is served at the root.
    #[serde(default)]
    pub name: String,
    /// Directory of the container.
    #[serde(default)]
    pub root: PathBuf,
    /// Cache policy for browsers and proxies.
    #[serde(default)]
    pub cache_control: CacheControl,
    /// Symbolic links that are followed.
    #[serde(default)]
    pub symlinks: SymlinkPolicy,
    /// True if the container is served only while a file system is mounted at its directory.
    #[serde(default)]
    pub must_be_mount: bool,
    /// Properties of a file that its entity tag is made of.
    #[serde(default)]
    pub entity_tag: EntityTagSource,
}

/// Section `[container_defaults]`: settings of containers that do not override them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContainerDefaults {
    /// Cache policy for browsers and proxies.
    pub cache_control: CacheControl,
    /// Symbolic links that are followed.
    pub symlinks: SymlinkPolicy,
    /// True if the container is served only while a file system is mounted at its directory.
    pub must_be_mount: bool,
    /// Properties of a file that its entity tag is made of.
    pub entity_tag: EntityTagSource,
}
