//! Errors in a configuration and the places where the settings were written.

use std::fmt;

/// The place where a setting was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingOrigin {
    /// A file, by the name that it was opened with, and the line, counted from 1.
    File(String, usize),
    /// An environment variable.
    Environment(String),
    /// The command line: the option as given.
    Flag(String),
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(name, line) => write!(f, "{name}:{line}"),
            Self::Environment(variable) => write!(f, "environment variable {variable}"),
            Self::Flag(text) => f.write_str(text),
        }
    }
}

/// An error in a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// Place where the setting was written; `None` if it is a default or the error concerns no single setting.
    pub origin: Option<SettingOrigin>,
    /// Key of the setting, such as `cache.decoded` or `containers[1].name`; empty if the error concerns a whole source.
    pub key: String,
    /// Description of the error and of the allowed values.
    pub message: String,
}

impl ConfigError {
    pub(super) fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self { origin: None, key: key.into(), message: message.into() }
    }

    pub(super) fn with_origin(self, origin: SettingOrigin) -> Self {
        Self { origin: Some(origin), ..self }
    }
}

impl fmt::Display for ConfigError {
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

/// All errors in a configuration; never empty.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            1 => write!(f, "the configuration has a fault:")?,
            count => write!(f, "the configuration has {count} faults:")?,
        }
        self.0.iter().try_for_each(|fault| write!(f, "\n  {fault}"))
    }
}
