//! Reconfiguration: new resources replace those in use and take over some of their parts.

use std::sync::Arc;

use super::handle::Container;
use super::resources::{Resources, Settings};
use crate::cpu_pool::CpuPool;

impl Resources {
    /// Returns resources for `settings`. They take over all budgets, and every cache whose own settings are unchanged.
    /// Other caches start empty. Old and new resources can be used at the same time once the new ones' budgets are
    /// [applied](Self::apply_budgets).
    pub fn reconfigured(&self, settings: Settings) -> Arc<Self> {
        let (retained, max_wait) = (RetainedParts::compare(&self.settings, &settings), settings.budget_wait);
        let cpu = if retained.cpu { self.cpu.clone() } else { CpuPool::new(settings.cores) };
        let replacement = Self::with_cpu(cpu.clone(), settings.clone(), self.codecs().clone());
        let choose = |is_kept| if is_kept { self } else { &*replacement };
        let mut objects = choose(retained.objects).objects.with_max_wait(max_wait);
        objects.memory.budget = self.objects.memory.budget.with_size_of(&replacement.objects.memory.budget);
        let mut blocks = choose(retained.blocks).blocks.with_max_wait(max_wait, &cpu);
        blocks.memory.budget = self.blocks.memory.budget.with_size_of(&replacement.blocks.memory.budget);
        Arc::new(Self {
            slice_budget: self.slice_budget.with_size_of(&replacement.slice_budget),
            datasets: self.datasets.with_max_wait(max_wait),
            next_container_id: Arc::clone(&self.next_container_id),
            blocks,
            objects,
            cpu,
            settings,
        })
    }

    /// Applies the sizes of these budgets, which are shared with the replaced resources.
    pub fn apply_budgets(&self) {
        for budget in [&self.slice_budget, &self.objects.memory.budget, &self.blocks.memory.budget] {
            budget.apply_size();
        }
    }

    /// Frees cached entries that resources for `settings` have not taken over. Must be called repeatedly until nothing
    /// uses these resources any more, since their remaining users may cache more.
    pub async fn drain_caches(&self, settings: &Settings) {
        let retained = RetainedParts::compare(&self.settings, settings);
        if !retained.objects {
            self.objects.entries.drain().await;
        }
        if !retained.blocks {
            self.blocks.entries.drain().await;
        }
    }
}

/// The parts that new resources take over.
struct RetainedParts {
    objects: bool,
    blocks: bool,
    cpu: bool,
}

impl RetainedParts {
    fn compare(old: &Settings, new: &Settings) -> Self {
        let stored = |settings: &Settings| (settings.stored_cache, settings.transfer_budget, settings.use_tiny_lfu);
        let decoded = |settings: &Settings| (settings.decoded_cache, settings.decode_budget);
        let objects = stored(old) == stored(new);
        let cpu = old.cores == new.cores;
        // Blocks are loaded through the object cache and decoded on the CPU pool.
        let blocks = objects && cpu && decoded(old) == decoded(new);
        Self { objects, blocks, cpu }
    }
}

impl Container {
    /// Returns the same container with other resources. Caches that they took over still serve it.
    #[must_use]
    pub fn with_resources(&self, resources: &Arc<Resources>) -> Self {
        Self { resources: resources.for_container(), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cache::RevalidationPolicy;
    use crate::cache::object_entry::{ObjectCacheKey, ObjectEntry};
    use crate::fair_queue::FlightHandle;

    fn settings() -> Settings {
        Settings {
            decoded_cache: 1 << 20,
            stored_cache: 1 << 20,
            use_tiny_lfu: false,
            recheck_metadata: RevalidationPolicy::Always,
            recheck_data: RevalidationPolicy::Always,
            max_slice_bytes: 1 << 30,
            slice_budget: 1 << 20,
            decode_budget: 1 << 20,
            transfer_budget: 1 << 20,
            decode_factor: 16,
            max_attributes_bytes: 1 << 20,
            budget_wait: Duration::from_secs(1),
            cores: 1,
        }
    }

    #[test]
    fn only_parts_with_changed_settings_are_replaced() {
        let retained = |change: &dyn Fn(&mut Settings)| {
            let mut new = settings();
            change(&mut new);
            let RetainedParts { objects, blocks, cpu } = RetainedParts::compare(&settings(), &new);
            [objects, blocks, cpu]
        };
        assert_eq!(retained(&|new| new.budget_wait = Duration::ZERO), [true; 3]);
        assert_eq!(retained(&|new| new.recheck_data = RevalidationPolicy::Never), [true; 3]);
        assert_eq!(retained(&|new| new.slice_budget *= 2), [true, true, true]);
        assert_eq!(retained(&|new| new.decoded_cache *= 2), [true, false, true]);
        assert_eq!(retained(&|new| new.stored_cache *= 2), [false, false, true]);
    }

    #[tokio::test]
    async fn permits_taken_before_count_in_the_new_budget() {
        const MIB: u64 = 1 << 20;
        let old = Resources::new(settings());
        let permit = old.slice_budget.take(MIB).await.unwrap();
        let larger = old.reconfigured(Settings { slice_budget: 2 * MIB, ..settings() });
        assert_eq!(old.slice_budget.free_bytes(), 0, "budget sizes change only when they are applied");
        larger.apply_budgets();
        assert_eq!(larger.slice_budget.free_bytes(), MIB);
        let smaller = larger.reconfigured(Settings { slice_budget: MIB / 2, ..settings() });
        smaller.apply_budgets();
        assert!(smaller.slice_budget.try_take(1).is_none());
        drop(permit);
        assert_eq!(smaller.slice_budget.free_bytes(), MIB / 2);
        // A permit of a request that started earlier and was planned with a larger budget.
        let permit = larger.slice_budget.take(2 * MIB).await.unwrap();
        assert!(smaller.slice_budget.try_take(1).is_none());
        drop(permit);
        assert_eq!(smaller.slice_budget.free_bytes(), MIB / 2);
    }

    #[tokio::test]
    async fn memory_of_a_replaced_cache_is_freed_by_the_new_one() {
        let old = Resources::new(settings());
        let new = old.reconfigured(Settings { stored_cache: 2 << 20, ..settings() });
        let key = ObjectCacheKey::Derived(1);
        let load = |_: &FlightHandle| Some(ObjectEntry::missing(false, 1));
        for objects in [&old.objects, &new.objects] {
            assert!(objects.entries.try_load(key.clone(), load).is_some());
        }
        new.objects.memory.cache.evict_part(1).await;
        assert!(new.objects.entries.try_cached(&key).is_none() && old.objects.entries.try_cached(&key).is_some());
    }

    #[tokio::test]
    async fn replaced_caches_free_memory_for_the_new_ones() {
        let old = Resources::new(settings());
        let permit = old.blocks.memory.budget.take(1 << 20).await.unwrap().into_cache_owned();
        let new = old.reconfigured(Settings { decoded_cache: 2 << 20, ..settings() });
        new.apply_budgets();
        assert_eq!(new.blocks.memory.budget.free_bytes() + (1 << 20), new.blocks.memory.budget.capacity_bytes());
        drop(permit);
        assert_eq!(new.blocks.memory.budget.free_bytes(), new.blocks.memory.budget.capacity_bytes());
    }

    #[tokio::test]
    async fn permits_of_a_retained_budget_come_from_the_same_memory() {
        let old = Resources::new(settings());
        let new = old.reconfigured(Settings { budget_wait: Duration::ZERO, ..settings() });
        let permit = old.slice_budget.take(1 << 20).await.unwrap();
        assert!(new.slice_budget.take(1 << 20).await.is_err());
        drop(permit);
        assert!(new.slice_budget.take(1 << 20).await.is_ok());
        let larger = old.reconfigured(Settings { slice_budget: 2 << 20, ..settings() });
        larger.apply_budgets();
        assert!(larger.slice_budget.take(2 << 20).await.is_ok());
    }
}
