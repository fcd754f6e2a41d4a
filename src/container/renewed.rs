//! Resources of other bounds in place of those in use, and what is kept of them.

use std::hash::Hash;
use std::sync::Arc;

use moka::future::Cache;

use super::{Container, Resources, Settings};
use crate::cpu::Cpu;

/// How often a cache is told to free what it holds, at a time.
const EMPTYING: usize = 100;

impl Resources {
    /// Resources with the bounds `settings`, which take over all budgets, and every cache whose own bounds are the same; other
    /// caches begin empty. Both may be in use at once, as soon as these [come into force](Self::come_into_force).
    pub fn renewed(&self, settings: Settings) -> Arc<Self> {
        let (kept, wait) = (Kept::of(&self.settings, &settings), settings.budget_wait);
        let cpu = if kept.cpu { self.cpu.clone() } else { Cpu::new(settings.cores) };
        let fresh = Self::on(cpu.clone(), settings.clone());
        let of = |is_kept| if is_kept { self } else { &*fresh };
        let mut objects = of(kept.objects).objects.waiting(wait);
        objects.budget = self.objects.budget.with_size_of(&fresh.objects.budget);
        let mut blocks = of(kept.blocks).blocks.waiting(wait, &objects, &cpu);
        blocks.budget = self.blocks.budget.with_size_of(&fresh.blocks.budget);
        Arc::new(Self {
            slice_budget: self.slice_budget.with_size_of(&fresh.slice_budget),
            datasets: self.datasets.waiting(wait),
            containers: Arc::clone(&self.containers),
            blocks,
            objects,
            cpu,
            settings,
        })
    }

    /// Applies the sizes of these budgets, which the replaced resources share.
    pub fn come_into_force(&self) {
        for budget in [&self.slice_budget, &self.objects.budget, &self.blocks.budget] {
            budget.come_into_force();
        }
    }

    /// Frees what is cached here and was not taken over by those with the bounds `settings`. To be called until
    /// nothing uses these any more: what still does may put more into the caches.
    pub async fn give_way(&self, settings: &Settings) {
        let kept = Kept::of(&self.settings, settings);
        if !kept.objects {
            empty(&self.objects.cache).await;
        }
        if !kept.blocks {
            empty(&self.blocks.cache).await;
        }
    }
}

/// Frees all that is cached. The cache itself only marks it, and frees it when it is used, which this one may never be again.
async fn empty<K, V>(cache: &Cache<K, V>)
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    cache.invalidate_all();
    // Each frees as much as it can within a tenth of a second.
    for _ in 0..EMPTYING {
        cache.run_pending_tasks().await;
        if cache.entry_count() == 0 {
            return;
        }
        tokio::task::yield_now().await;
    }
}

/// What is taken over.
struct Kept {
    objects: bool,
    blocks: bool,
    cpu: bool,
}

impl Kept {
    fn of(old: &Settings, new: &Settings) -> Self {
        let stored = |settings: &Settings| (settings.stored_cache, settings.transfer_budget, settings.weigh_frequency);
        let decoded = |settings: &Settings| (settings.decoded_cache, settings.decode_budget);
        let objects = stored(old) == stored(new);
        let cpu = old.cores == new.cores;
        // Blocks are loaded by way of objects, and decoded on the lane.
        let blocks = objects && cpu && decoded(old) == decoded(new);
        Self { objects, blocks, cpu }
    }
}

impl Container {
    /// The same hierarchy with other resources; what those took over of the caches is found again.
    #[must_use]
    pub fn with_resources(&self, resources: &Arc<Resources>) -> Self {
        Self { resources: resources.of_one(), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::container::Recheck;

    fn settings() -> Settings {
        Settings {
            decoded_cache: 1 << 20,
            stored_cache: 1 << 20,
            weigh_frequency: false,
            recheck_metadata: Recheck::Always,
            recheck_data: Recheck::Always,
            slice: 1 << 30,
            slice_budget: 1 << 20,
            decode_budget: 1 << 20,
            transfer_budget: 1 << 20,
            decode_factor: 16,
            attributes: 1 << 20,
            budget_wait: Duration::from_secs(1),
            cores: 1,
        }
    }

    #[test]
    fn only_what_has_other_bounds_begins_anew() {
        let kept = |change: &dyn Fn(&mut Settings)| {
            let mut new = settings();
            change(&mut new);
            let Kept { objects, blocks, cpu } = Kept::of(&settings(), &new);
            [objects, blocks, cpu]
        };
        assert_eq!(kept(&|new| new.budget_wait = Duration::ZERO), [true; 3]);
        assert_eq!(kept(&|new| new.recheck_data = Recheck::Never), [true; 3]);
        assert_eq!(kept(&|new| new.slice_budget *= 2), [true, true, true]);
        assert_eq!(kept(&|new| new.decoded_cache *= 2), [true, false, true]);
        assert_eq!(kept(&|new| new.stored_cache *= 2), [false, false, true]);
    }

    #[tokio::test]
    async fn what_was_lent_before_counts_in_the_new_budget() {
        const MIB: u64 = 1 << 20;
        let old = Resources::new(settings());
        let held = old.slice_budget.take(MIB).await.unwrap();
        let larger = old.renewed(Settings { slice_budget: 2 * MIB, ..settings() });
        assert_eq!(old.slice_budget.free_bytes(), 0, "a configuration that does not come into force changes nothing");
        larger.come_into_force();
        assert_eq!(larger.slice_budget.free_bytes(), MIB);
        let smaller = larger.renewed(Settings { slice_budget: MIB / 2, ..settings() });
        smaller.come_into_force();
        assert!(smaller.slice_budget.take_at_once(1).is_none());
        drop(held);
        assert_eq!(smaller.slice_budget.free_bytes(), MIB / 2);
        // Of a request that began before, which was planned with more.
        let held = larger.slice_budget.take(2 * MIB).await.unwrap();
        assert!(smaller.slice_budget.take_at_once(1).is_none());
        drop(held);
        assert_eq!(smaller.slice_budget.free_bytes(), MIB / 2);
    }

    #[tokio::test]
    async fn caches_that_are_replaced_make_room_for_the_new_ones() {
        let old = Resources::new(settings());
        let permit = old.blocks.budget.take(1 << 20).await.unwrap().of_cache();
        let new = old.renewed(Settings { decoded_cache: 2 << 20, ..settings() });
        new.come_into_force();
        assert_eq!(new.blocks.budget.free_bytes() + (1 << 20), new.blocks.budget.capacity_bytes());
        drop(permit);
        assert_eq!(new.blocks.budget.free_bytes(), new.blocks.budget.capacity_bytes());
    }

    #[tokio::test]
    async fn shares_of_a_budget_that_is_kept_are_of_the_same_memory() {
        let old = Resources::new(settings());
        let new = old.renewed(Settings { budget_wait: Duration::ZERO, ..settings() });
        let held = old.slice_budget.take(1 << 20).await.unwrap();
        assert!(new.slice_budget.take(1 << 20).await.is_err());
        drop(held);
        assert!(new.slice_budget.take(1 << 20).await.is_ok());
        let larger = old.renewed(Settings { slice_budget: 2 << 20, ..settings() });
        larger.come_into_force();
        assert!(larger.slice_budget.take(2 << 20).await.is_ok());
    }
}
