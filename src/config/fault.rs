//! What is wrong with a configuration, and where that was written.

use std::fmt;

/// Where a setting was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A file, by the name it was opened with, and the line, from 1.
    File(String, usize),
    /// An environment variable.
    Environment(String),
    /// The command line: the option as typed.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(name, line) => write!(f, "{name}:{line}"),
            Self::Environment(variable) => write!(f, "environment variable {variable}"),
            Self::Flag(text) => f.write_str(text),
        }
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Where the setting was written; `None` when it is a default or the whole is at fault.
    pub origin: Option<Origin>,
    /// The setting, such as `cache.decoded` or `containers[1].name`; empty when the whole source is at fault.
    pub key: String,
    /// What is wrong, what is allowed.
    pub message: String,
}

impl Fault {
    pub(super) fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self { origin: None, key: key.into(), message: message.into() }
    }

    pub(super) fn at(self, origin: Origin) -> Self {
        Self { origin: Some(origin), ..self }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(origin) = &self.origin {
            write!(f, "{origin}: ")?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

/// All that is wrong with a configuration; never empty.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Faults(pub Vec<Fault>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            1 => write!(f, "the configuration has a fault:")?,
            many => write!(f, "the configuration has {many} faults:")?,
        }
        self.0.iter().try_for_each(|fault| write!(f, "\n  {fault}"))
    }
}
