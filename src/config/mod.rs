//! Configuration: defaults < file < environment < flags, merged as tables and deserialized once.
//!
//! This module holds plain data and reads neither files nor the environment. `cli` passes their text to
//! [`Config::load`], so tests need neither. `config/default.toml` ([`DEFAULTS`]) documents every key.

mod container;
mod default;
mod error;
mod load;
mod memory_bounds;
mod policies;
mod sections;
mod source;
mod summary;
mod validate;
mod values;

pub use container::{ContainerConfig, ContainerDefaults};
pub use default::DEFAULTS;
pub use error::{ConfigError, ConfigErrors, SettingOrigin};
pub use policies::{EntityTagSource, RequiredContainers, SymlinkPolicy};
pub use sections::{
    AccessConfig, CacheConfig, ClientsConfig, CompressionConfig, Config, CorsConfig, DefaultAccess, EvictionPolicy,
    JwtConfig, LimitsConfig, LogConfig, LogFormat, ServerConfig, TlsConfig, TracingConfig,
};
pub use source::{ConfigFile, ConfigSources, RootArgument};
pub use values::{CacheControl, ListenAddress, RevalidationPolicy};
