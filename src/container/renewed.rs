//! Resources of other bounds in place of those in use, and what is kept of them.

use std::hash::Hash;
use std::sync::Arc;

use moka::future::Cache;

use super::budget::{Budget, bytes_of, units};
use super::{Container, Resources, Settings};
use crate::cpu::Cpu;
use crate::fair::Share;

/// What a new budget lends at least, as one part in so many of it, whatever the one before still lends.
const LEAST_PART: u64 = 16;

/// How often a cache is told to free what it holds, at a time.
const EMPTYING: usize = 100;

impl Resources {
    /// Resources with the bounds `settings`, which take over every cache and budget whose own bounds are the same; the
    /// others begin empty. Both may be in use at once.
    pub fn renewed(&self, settings: Settings) -> Arc<Self> {
        let (kept, wait) = (Kept::of(&self.settings, &settings), settings.budget_wait);
        let cpu = if kept.cpu { self.cpu.clone() } else { Cpu::new(settings.cores) };
        let fresh = Self::on(cpu.clone(), settings.clone());
        let of = |is_kept| if is_kept { self } else { &*fresh };
        let objects = of(kept.objects).objects.waiting(wait);
        Arc::new(Self {
            slice_budget: of(kept.slices).slice_budget.waiting(wait),
            datasets: self.datasets.waiting(wait),
            containers: Arc::clone(&self.containers),
            blocks: of(kept.blocks).blocks.waiting(wait, &objects, &cpu),
            objects,
            cpu,
            settings,
        })
    }

    /// What the budgets of `old` that were not taken over still lend. To be called before these resources are used.
    pub fn leftovers(&self, old: &Self) -> Leftovers {
        let kept = Kept::of(&old.settings, &self.settings);
        let budgets = [
            (kept.slices, &old.slice_budget, &self.slice_budget),
            (kept.objects, &old.objects.budget, &self.objects.budget),
            (kept.blocks, &old.blocks.budget, &self.blocks.budget),
        ];
        let replaced = budgets.into_iter().filter(|(is_kept, ..)| !is_kept);
        Leftovers(replaced.map(|(_, old, new)| Leftover::new(old, new)).collect())
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

/// Memory that replaced budgets still lend, to clients that are slow to take their answers. The budgets in their place lend as
/// much less, so that both together stay within the announced bound, however many reloads there are.
#[derive(Debug)]
pub struct Leftovers(Vec<Leftover>);

#[derive(Debug)]
struct Leftover {
    old: Budget,
    new: Budget,
    /// The part of the new budget that it does not lend.
    share: Option<Share>,
}

impl Leftovers {
    /// To be called now and then: lets the new budgets lend what the old ones have got back. Returns false while those
    /// lend nothing.
    pub fn follow(&mut self) -> bool {
        let mut is_any_lent = false;
        for leftover in &mut self.0 {
            is_any_lent |= leftover.follow();
        }
        is_any_lent
    }
}

impl Leftover {
    fn new(old: &Budget, new: &Budget) -> Self {
        let mut leftover = Self { old: old.clone(), new: new.clone(), share: None };
        leftover.follow();
        leftover
    }

    /// Sets as much aside as is still lent, but for a part with which requests go on. Returns false when nothing is lent.
    fn follow(&mut self) -> bool {
        let lent = self.old.lent_bytes();
        let capacity = self.new.capacity_bytes();
        let wanted = lent.min(capacity - capacity / LEAST_PART);
        let held = self.share.as_ref().map_or(0, bytes_of);
        if wanted < held {
            let free = usize::try_from(units(held - wanted)).unwrap_or(usize::MAX);
            drop(self.share.as_mut().map(|share| share.split(free)));
        } else if let Some(more) = self.new.set_aside(wanted - held) {
            match &mut self.share {
                Some(share) => share.merge(more),
                None => self.share = Some(more),
            }
        }
        lent > 0
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
#[expect(clippy::struct_excessive_bools, reason = "each is of its own")]
struct Kept {
    objects: bool,
    blocks: bool,
    slices: bool,
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
        Self { objects, blocks, cpu, slices: old.slice_budget == new.slice_budget }
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
            let Kept { objects, blocks, slices, cpu } = Kept::of(&settings(), &new);
            [objects, blocks, slices, cpu]
        };
        assert_eq!(kept(&|new| new.budget_wait = Duration::ZERO), [true; 4]);
        assert_eq!(kept(&|new| new.recheck_data = Recheck::Never), [true; 4]);
        assert_eq!(kept(&|new| new.slice_budget *= 2), [true, true, false, true]);
        assert_eq!(kept(&|new| new.decoded_cache *= 2), [true, false, true, true]);
        assert_eq!(kept(&|new| new.stored_cache *= 2), [false, false, true, true]);
    }

    #[tokio::test]
    async fn a_new_budget_lends_less_while_the_old_one_still_lends() {
        const KIB: u64 = 1 << 10;
        let old = Resources::new(settings());
        let new = old.renewed(Settings { slice_budget: 2 << 20, ..settings() });
        let mut held = old.slice_budget.take(1 << 20).await.unwrap();
        let mut leftovers = new.leftovers(&old);
        assert_eq!(new.slice_budget.free_bytes(), 1 << 20);
        held.shrink(300 * KIB);
        assert!(leftovers.follow());
        assert_eq!(new.slice_budget.free_bytes(), (2048 - 300) * KIB);
        held.merge(old.slice_budget.take(200 * KIB).await.unwrap());
        assert!(leftovers.follow());
        assert_eq!(new.slice_budget.free_bytes(), (2048 - 500) * KIB);
        drop(held);
        assert!(!leftovers.follow());
        assert_eq!(new.slice_budget.free_bytes(), 2 << 20);
    }

    #[tokio::test]
    async fn many_new_budgets_lend_little_more_than_one() {
        const MIB: u64 = 1 << 20;
        let (mut resources, mut held) = (Resources::new(settings()), Vec::new());
        let mut leftovers = Vec::new();
        for generation in 0..10 {
            let budget = resources.slice_budget.clone();
            held.extend(std::iter::from_fn(|| budget.take_at_once(MIB / 64)));
            let slice_budget = MIB + (generation + 1) % 2 * 1024;
            let new = resources.renewed(Settings { slice_budget, ..settings() });
            leftovers.push(new.leftovers(&resources));
            resources = new;
        }
        let bytes: u64 = held.iter().map(super::super::permit::Permit::bytes).sum();
        assert!(bytes > MIB && bytes < 2 * MIB, "{bytes}");
        assert!(resources.slice_budget.take_at_once(MIB / 64).is_some(), "requests go on");
        held.clear();
        for leftovers in &mut leftovers {
            assert!(!leftovers.follow());
        }
        assert_eq!(resources.slice_budget.free_bytes(), resources.slice_budget.capacity_bytes());
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
        assert!(larger.slice_budget.take(2 << 20).await.is_ok());
    }
}
