//! Division of `memory.limit` among the caches and budgets. `docs/OPERATIONS.md` explains the shares.

use super::sections::{Config, MemorySizes, SystemMemorySource};
use super::values::{self, MemoryLimit};

const MIB: u64 = 1 << 20;

/// Part of the system's memory that the process may take by default, as a divisor.
const SYSTEM_MEMORY_DIVISOR: u64 = 4;

/// A cache or budget that shares `memory.limit`.
struct Share {
    key: &'static str,
    /// Size in bytes that it has at the least limit.
    least: u64,
    /// Parts that it gets of [`PARTS`] bytes above the least limit.
    parts: u64,
    /// Maximum size in bytes. Slices of up to three quarters of their budget are assembled before they are sent, so a
    /// budget that grew with the memory of the machine would delay the first byte more and more.
    max: u64,
    /// True for a cache, which shrinks if the limit is too low for the least sizes. A budget does not, because it decides
    /// which requests can be answered at all.
    is_cache: bool,
}

/// Sum of [`Share::parts`].
const PARTS: u64 = 32;

const fn cache(key: &'static str, least: u64, parts: u64) -> Share {
    Share { key, least, parts, max: u64::MAX, is_cache: true }
}

const fn budget(key: &'static str, least: u64, parts: u64, max: u64) -> Share {
    Share { key, least, parts, max, is_cache: false }
}

/// The order is that of [`MemorySizes`].
const SHARES: [Share; 5] = [
    cache("cache.decoded", 256 * MIB, 16),
    cache("cache.stored", 64 * MIB, 11),
    budget("limits.slice_budget", 128 * MIB, 2, 1024 * MIB),
    budget("limits.decode_budget", 80 * MIB, 2, 1024 * MIB),
    budget("limits.transfer_budget", 16 * MIB, 1, 256 * MIB),
];

/// Level of [`Config::sizes_at`] with the least sizes: the sum of those of the caches.
const LEAST_LEVEL: u64 = 320 * MIB;

impl MemorySizes {
    fn from_array([decoded_cache, stored_cache, slice_budget, decode_budget, transfer_budget]: [u64; 5]) -> Self {
        Self { decoded_cache, stored_cache, slice_budget, decode_budget, transfer_budget }
    }

    fn to_array(self) -> [u64; 5] {
        [self.decoded_cache, self.stored_cache, self.slice_budget, self.decode_budget, self.transfer_budget]
    }
}

impl Config {
    /// Returns the sizes of caches and budgets: those that are set, and shares of the rest of `memory.limit`. A reload
    /// keeps those of the running server if it can, because a cache whose size changes starts empty.
    pub fn memory_sizes(&self) -> MemorySizes {
        let limit = self.memory_limit_bytes();
        if self.memory.limit == MemoryLimit::Least {
            return self.sizes_at(LEAST_LEVEL);
        }
        self.sizes_in_force(limit).unwrap_or_else(|| self.sizes_within(limit))
    }

    /// Returns the maximum memory of the process in bytes that `memory.limit` allows. It includes the kernel's memory for
    /// the sockets.
    pub fn memory_limit_bytes(&self) -> u64 {
        let least = || self.unshared_bytes().saturating_add(self.sizes_at(LEAST_LEVEL).max_bytes());
        match self.memory.limit {
            MemoryLimit::Bytes(bytes) => bytes,
            MemoryLimit::Least => least(),
            MemoryLimit::Auto => least().max(self.share_of_system_bytes()),
        }
    }

    fn share_of_system_bytes(&self) -> u64 {
        self.memory.system.map_or(0, |memory| memory.bytes / SYSTEM_MEMORY_DIVISOR)
    }

    /// Returns the origin of `memory.limit` as a phrase for logs and summaries.
    pub fn memory_limit_origin(&self) -> String {
        let source = |source| match source {
            SystemMemorySource::Machine => "the machine's memory",
            SystemMemorySource::ControlGroup => "the control group's limit",
        };
        match (self.memory.limit, self.memory.system) {
            (MemoryLimit::Bytes(_), _) => "configured".to_owned(),
            (MemoryLimit::Least, _) => "the least, as configured".to_owned(),
            (MemoryLimit::Auto, None) => "the least, because the system's memory is not known".to_owned(),
            (MemoryLimit::Auto, Some(memory)) => {
                let system = format!("{}, {} MiB", source(memory.source), memory.bytes / MIB);
                if self.memory_limit_bytes() > self.share_of_system_bytes() {
                    format!("the least, which is more than a quarter of {system}")
                } else {
                    format!("a quarter of {system}")
                }
            }
        }
    }

    /// Keeps the sizes of the server that runs with the configuration `running`, unless the limit, the size of a cache
    /// or of a budget, or the system's memory has changed.
    pub fn keep_memory_sizes(&mut self, running: &Self) {
        let is_same = (self.memory.limit, self.memory.system) == (running.memory.limit, running.memory.system)
            && self.configured_sizes() == running.configured_sizes();
        self.memory.in_force = is_same.then(|| running.memory_sizes());
    }

    /// Checks that the sizes that are set, and the least budgets of the others, fit into `memory.limit`.
    ///
    /// # Errors
    /// Returns an error if they do not.
    pub fn check_memory_limit(&self) -> anyhow::Result<()> {
        self.validate_memory_limit(u64::MAX).map_err(|message| anyhow::anyhow!("memory.limit: {message}"))
    }

    /// Checks `memory.limit` as [`Self::check_memory_limit`] does, and against `max_bytes`. Returns the message about a
    /// limit that is not valid.
    pub(super) fn validate_memory_limit(&self, max_bytes: u64) -> Result<(), String> {
        let MemoryLimit::Bytes(limit) = self.memory.limit else { return Ok(()) };
        if limit > max_bytes {
            let [limit, max] = [limit, max_bytes].map(values::size::format);
            return Err(format!("{limit} is too large, the maximum is {max}"));
        }
        let smallest = self.sizes_at(0);
        let needed = self.unshared_bytes().saturating_add(smallest.max_bytes());
        if needed <= limit {
            return Ok(());
        }
        let mut keys = Vec::new();
        let mut named_bytes = 0_u64;
        for ((share, bytes), set) in SHARES.iter().zip(smallest.to_array()).zip(self.configured_sizes()) {
            let at_least = if set.is_some() { "" } else { "at least " };
            if bytes > 0 {
                keys.push(format!("{} ({at_least}{})", share.key, values::size::format(bytes)));
            }
            named_bytes = named_bytes.saturating_add(bytes);
        }
        let mib = |bytes: u64| bytes.div_ceil(MIB);
        Err(format!(
            "{} is too low: {} need {} MiB, and the program with its threads, connections and sockets needs {} MiB. Set the limit \
             to at least {} MiB, or lower these keys, server.max_connections or server.threads",
            values::size::format(limit),
            keys.join(", "),
            mib(named_bytes),
            mib(needed.saturating_sub(named_bytes)),
            mib(needed),
        ))
    }

    /// Returns the sizes that the configuration sets.
    fn configured_sizes(&self) -> [Option<u64>; 5] {
        let (cache, limits) = (&self.cache, &self.limits);
        [cache.decoded, cache.stored, limits.slice_budget, limits.decode_budget, limits.transfer_budget]
    }

    /// Returns the sizes at a level: at 0 the smallest, at [`LEAST_LEVEL`] the least, and above it larger ones. A size that
    /// is set is the same at every level.
    fn sizes_at(&self, level: u64) -> MemorySizes {
        let shared = |share: &Share| {
            let size = match level.checked_sub(LEAST_LEVEL) {
                Some(above) => {
                    let part = u128::from(above) * u128::from(share.parts) / u128::from(PARTS);
                    share.least.saturating_add(u64::try_from(part).unwrap_or(u64::MAX)).min(share.max)
                }
                // Both factors are less than 2^30.
                None if share.is_cache => share.least.saturating_mul(level) / LEAST_LEVEL,
                None => share.least,
            };
            size - size % MIB
        };
        let mut sizes = self.configured_sizes().into_iter();
        MemorySizes::from_array(SHARES.each_ref().map(|share| sizes.next().flatten().unwrap_or_else(|| shared(share))))
    }

    /// Returns the largest sizes with which the process stays within `limit`; the smallest ones if there are none.
    fn sizes_within(&self, limit: u64) -> MemorySizes {
        let shared = limit.saturating_sub(self.unshared_bytes());
        let fits = |level: u64| self.sizes_at(level).max_bytes() <= shared;
        // At the upper bound, any share is larger than the limit, or has its maximum size.
        let mut fitting = 0;
        let mut beyond = limit.saturating_mul(PARTS).max(LEAST_LEVEL).saturating_add(1);
        while beyond - fitting > 1 {
            let middle = fitting + (beyond - fitting) / 2;
            if fits(middle) {
                fitting = middle;
            } else {
                beyond = middle;
            }
        }
        self.sizes_at(fitting)
    }

    /// Returns the sizes of the running server if the process stays within `limit`. What exceeds it, such as the memory of
    /// an additional container, is taken from `limits.slice_budget`, because a budget can shrink without losing data.
    fn sizes_in_force(&self, limit: u64) -> Option<MemorySizes> {
        let mut sizes = self.memory.in_force?;
        let excess = self.unshared_bytes().saturating_add(sizes.max_bytes()).saturating_sub(limit);
        if excess > 0 {
            let [_, _, slices, ..] = &SHARES;
            let reduced = sizes.slice_budget.checked_sub(excess.checked_next_multiple_of(MIB)?)?;
            if self.limits.slice_budget.is_some() || reduced < slices.least {
                return None;
            }
            sizes.slice_budget = reduced;
        }
        Some(sizes)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::super::sections::{ContainerConfig, SystemMemory};
    use super::*;

    fn with_system(bytes: u64, source: SystemMemorySource) -> Config {
        let mut config = Config::default();
        config.server.threads = 2;
        config.memory.system = Some(SystemMemory { bytes, source });
        config
    }

    fn with_limit(bytes: u64) -> Config {
        let mut config = with_system(64 << 30, SystemMemorySource::Machine);
        config.memory.limit = MemoryLimit::Bytes(bytes);
        config
    }

    fn mebibytes(config: &Config) -> [u64; 5] {
        config.memory_sizes().to_array().map(|bytes| bytes / MIB)
    }

    #[test]
    fn the_parts_add_up() {
        assert_eq!(SHARES.iter().map(|share| share.parts).sum::<u64>(), PARTS);
        assert_eq!(SHARES.iter().filter(|share| share.is_cache).map(|share| share.least).sum::<u64>(), LEAST_LEVEL);
    }

    #[test]
    fn small_systems_get_the_least_sizes_and_large_ones_a_quarter_of_their_memory() {
        const LEAST: [u64; 5] = [256, 64, 128, 80, 16];
        assert_eq!(mebibytes(&Config::default()), LEAST);
        let small = with_system(2 << 30, SystemMemorySource::ControlGroup);
        assert_eq!((mebibytes(&small), small.memory_limit_bytes()), (LEAST, 1272 * MIB));
        assert_eq!(
            small.memory_limit_origin(),
            "the least, which is more than a quarter of the control group's limit, 2048 MiB"
        );
        let mut large = with_system(64 << 30, SystemMemorySource::Machine);
        assert_eq!(large.memory_limit_bytes(), 16 << 30);
        assert_eq!(large.memory_limit_origin(), "a quarter of the machine's memory, 65536 MiB");
        let [decoded, stored, budgets @ ..] = mebibytes(&large);
        assert!(decoded > 7_000 && stored > 4_500, "{decoded} {stored}");
        assert_eq!(budgets, [1024, 983, 256]);
        large.memory.limit = MemoryLimit::Least;
        assert_eq!(mebibytes(&large), LEAST);
    }

    #[test]
    fn a_limit_below_the_least_one_shrinks_the_caches_first() {
        let [decoded, stored, budgets @ ..] = mebibytes(&with_limit(1112 * MIB));
        assert_eq!((decoded, stored, budgets), (128, 32, [128, 80, 16]));
        let lowest = with_limit(952 * MIB);
        assert_eq!(lowest.validate_memory_limit(u64::MAX), Ok(()));
        assert_eq!(mebibytes(&lowest), [0, 0, 128, 80, 16]);
    }

    #[test]
    fn a_limit_that_is_too_low_names_the_keys_and_what_to_do() {
        let mut config = with_limit(1 << 30);
        config.cache.decoded = Some(1 << 30);
        let message = config.validate_memory_limit(u64::MAX).unwrap_err();
        for part in [
            "1GiB is too low: cache.decoded (1GiB), limits.slice_budget (at least 128MiB)",
            "need 1248 MiB",
            "at least 2027 MiB",
            "server.max_connections",
        ] {
            assert!(message.contains(part), "{part}: {message}");
        }
        config.memory.limit = MemoryLimit::Bytes(2027 * MIB);
        assert_eq!(config.validate_memory_limit(u64::MAX), Ok(()));
        // Without a limit of its own, the configuration is valid on every system.
        config.memory.limit = MemoryLimit::Auto;
        config.memory.system = None;
        assert_eq!(config.validate_memory_limit(u64::MAX), Ok(()));
        assert_eq!(mebibytes(&config), [1024, 64, 128, 80, 16]);
    }

    #[test]
    fn a_reload_with_a_further_container_keeps_the_caches() {
        let running = with_limit(4 << 30);
        let mut next = running.clone();
        next.containers = vec![ContainerConfig::default(); 40];
        assert_ne!(next.memory_sizes().decoded_cache, running.memory_sizes().decoded_cache);
        next.keep_memory_sizes(&running);
        let (before, after) = (running.memory_sizes(), next.memory_sizes());
        assert_eq!(MemorySizes { slice_budget: before.slice_budget, ..after }, before);
        assert!(after.slice_budget < before.slice_budget);
        assert!(next.max_process_bytes() <= 4 << 30);
        // A further reload without these containers leaves the rest free.
        let mut last = running.clone();
        last.keep_memory_sizes(&next);
        assert_eq!(last.memory_sizes(), after);
        last.memory.limit = MemoryLimit::Bytes(5 << 30);
        last.keep_memory_sizes(&next);
        assert!(last.memory_sizes().decoded_cache > before.decoded_cache);
    }

    static DEFAULT: LazyLock<Config> = LazyLock::new(|| with_system(0, SystemMemorySource::Machine));
    static CONTAINER: LazyLock<ContainerConfig> = LazyLock::new(ContainerConfig::default);

    fn size() -> impl Strategy<Value = Option<u64>> {
        prop::option::of((0..40_u32, 1..4_u64).prop_map(|(bits, factor)| (factor << bits).max(MIB)))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn the_sum_never_exceeds_the_limit_and_equals_it_if_no_size_is_set(
            limit in (28..44_u32, 0..1_u64 << 28).prop_map(|(bits, more)| (1 << bits) + more),
            sizes in [size(), size(), size(), size(), size()],
            (is_set, is_auto, containers) in (any::<bool>(), any::<bool>(), 0..50_usize),
            max_connections in prop::sample::select(vec![100_usize, 10_240, 100_000]),
        ) {
            let mut config = DEFAULT.clone();
            config.memory.system = Some(SystemMemory { bytes: limit * 4, source: SystemMemorySource::Machine });
            config.server.max_connections = max_connections;
            config.containers = vec![CONTAINER.clone(); containers];
            if !is_auto {
                config.memory.limit = MemoryLimit::Bytes(limit);
            }
            if is_set {
                let [decoded, stored, slice_budget, decode_budget, transfer_budget] = sizes;
                (config.cache.decoded, config.cache.stored) = (decoded, stored);
                config.limits.slice_budget = slice_budget;
                (config.limits.decode_budget, config.limits.transfer_budget) = (decode_budget, transfer_budget);
            }
            prop_assume!(config.validate_memory_limit(u64::MAX).is_ok());
            let (limit, sum) = (config.memory_limit_bytes(), config.max_process_bytes());
            prop_assert!(sum <= limit, "{sum} of {limit}");
            if !is_set {
                prop_assert!(limit - sum < 6 * MIB, "{sum} of {limit}");
            }
            let set = config.configured_sizes();
            for ((share, bytes), set) in SHARES.iter().zip(config.memory_sizes().to_array()).zip(set) {
                prop_assert!(set.is_none_or(|set| set == bytes), "{}", share.key);
                prop_assert!(set.is_some() || share.is_cache || bytes >= share.least, "{}", share.key);
            }
        }
    }
}
