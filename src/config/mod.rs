//! Configuration: defaults < file < environment < flags, merged as tables and deserialized once.
//!
//! This module reads neither files nor the environment. `cli` reads them and passes their text to [`Config::load`].
//! `config/default.toml` ([`DEFAULTS`]) documents every key.

mod load;
mod memory_bounds;
mod memory_sizes;
mod root_address;
mod roots;
mod sections;
mod similar;
mod store_settings;
mod summary;
mod validate;
mod values;

pub use load::{ConfigFile, ConfigSources};
pub use memory_bounds::{
    KNOWN_MISSING_BYTES, MAX_DISK_THREADS_PER_CONTAINER, MAX_UNANNOUNCED_BYTES, RESERVED_DISK_THREADS_PER_CONTAINER,
    SEND_QUEUES_BYTES, SHARED_DISK_THREADS, STORE_LISTING_BYTES, UNANNOUNCED_OBJECTS,
};
pub use root_address::{Provider, RemoteRoot, RootAddress};
pub use roots::{short_name, split_root};
pub use sections::{
    AccessConfig, CacheConfig, ClientsConfig, CompressionConfig, Config, ContainerConfig, ContainerDefaults,
    CorsConfig, DEFAULTS, DefaultAccess, DiskCacheConfig, EntityTagSource, EvictionPolicy, JwtConfig, LimitsConfig,
    LogConfig, LogFormat, MemoryConfig, MemorySizes, RequiredContainers, ServerConfig, SymlinkPolicy, SystemMemory,
    SystemMemorySource, TlsConfig, TracingConfig,
};
pub(crate) use similar::most_similar;
pub use store_settings::{AddressingStyle, CredentialSource, ForbiddenPolicy, StoreSettings};
pub use validate::{ConfigError, ConfigErrors};
pub use values::{CacheControl, ListenAddress, MemoryLimit, MinFree, RevalidationPolicy};
