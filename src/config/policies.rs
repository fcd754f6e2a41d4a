//! Policies that the configuration chooses among and that the parts of the server apply.

use serde::{Deserialize, Serialize};

/// Policy for symbolic links below the root of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SymlinkPolicy {
    /// Follow links whose target lies below the root, however the link spells it.
    #[default]
    Inside,
    /// Follow no link.
    Deny,
    /// Follow all links.
    Follow,
}

impl SymlinkPolicy {
    /// Returns the name that the configuration has for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inside => "inside",
            Self::Deny => "deny",
            Self::Follow => "follow",
        }
    }
}

/// Facts that a file's entity tag is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EntityTagSource {
    /// Length and modification time. Equal for equal copies on other machines, but also for a file and its replacement
    /// if both have the same length and time.
    #[default]
    Mtime,
    /// Also change time and inode, which differ for every other file. The change time is reported as the last
    /// modification.
    Inode,
}

/// Containers that must be readable for the server to be ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RequiredContainers {
    /// All containers. Another replica may be able to read a container that this one cannot.
    #[default]
    All,
    /// At least one container. For replicas that share their storage: the readable containers stay in service.
    Any,
}
