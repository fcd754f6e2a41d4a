//! Simulates replicas of n5-server behind balancers: users walk through volumes of 10^12 blocks, and every layout
//! counts what its caches answer and what it requests from the bucket.
//!
//! The results are the same in every run. docs/SCALING.md shows and explains them.

mod layout;
mod lru;
mod random;
mod ring;
mod walk;

use std::collections::HashSet;
use std::hash::BuildHasherDefault;
use std::io::{self, Write};

use layout::{Layout, Outcome, ratio};
use lru::KeyHasher;
use walk::{Requests, Walk};

/// Cache of each replica, in bytes.
const CACHE_BYTES: u64 = 2 << 30;

/// Steps of all users together.
const STEPS: usize = 200_000;

/// HAProxy's `hash-balance-factor`, and the average numbers of requests in progress at a replica for which it is tried.
const BALANCE_FACTOR_PERCENT: u64 = 150;
const IN_PROGRESS: [usize; 2] = [16, 2];

/// Users and replicas of the first table.
const SCENARIOS: [(usize, usize); 7] = [(10, 1), (10, 4), (100, 4), (1000, 4), (1000, 16), (10_000, 16), (10_000, 64)];

/// Users, replicas and requests of the second table.
const KINDS: (usize, usize, [(&str, Requests); 2]) =
    (1000, 16, [("blocks", Requests::Blocks), ("slices", Requests::Slices)]);

/// Users, then replicas in the front and in the inner tier, of the third table.
const DIVISIONS: (usize, [(usize, usize); 5]) = (1000, [(14, 2), (12, 4), (8, 8), (4, 12), (2, 14)]);

fn main() -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "| users | replicas | layout | {COLUMNS} |\n|--:|--:|---|--:|--:|--:|--:|--:|")?;
    for (users, replicas) in SCENARIOS {
        let (distinct, outcomes) = simulate(users, Requests::Both, STEPS, comparison(replicas, CACHE_BYTES));
        for outcome in outcomes {
            writeln!(out, "| {users} | {replicas} | {} |", cells(&outcome, distinct))?;
        }
        out.flush()?;
    }
    let (users, replicas, kinds) = KINDS;
    writeln!(out, "\n| requests | layout | {COLUMNS} |\n|---|---|--:|--:|--:|--:|--:|")?;
    for (name, requests) in kinds {
        let mut layouts = comparison(replicas, CACHE_BYTES);
        layouts.truncate(4);
        let (distinct, outcomes) = simulate(users, requests, STEPS, layouts);
        for outcome in outcomes {
            writeln!(out, "| {name} | {} |", cells(&outcome, distinct))?;
        }
    }
    let (users, divisions) = DIVISIONS;
    writeln!(out, "\n| layout | {COLUMNS} |\n|---|--:|--:|--:|--:|--:|")?;
    let layouts = divisions.map(|(front, inner)| Layout::two_tiers((front, CACHE_BYTES), (inner, CACHE_BYTES)));
    let (distinct, outcomes) = simulate(users, Requests::Both, STEPS, layouts.into());
    for outcome in outcomes {
        writeln!(out, "| {} |", cells(&outcome, distinct))?;
    }
    Ok(())
}

/// Headings of [`cells`] after the layout.
const COLUMNS: &str =
    "hit ratio | bucket GETs per distinct block | front: greatest load / mean | inner: the same | between tiers";

/// Returns the cells of a row.
fn cells(outcome: &Outcome, distinct: u64) -> String {
    let (front, inner) = outcome.imbalance;
    let optional = |value: Option<String>| value.unwrap_or_else(|| "–".to_owned());
    format!(
        "{} | {:.1} % | {:.2} | {front:.2} | {} | {}",
        outcome.name,
        100.0 * outcome.hit_ratio,
        ratio(outcome.bucket_gets, distinct),
        optional(inner.map(|inner| format!("{inner:.2}"))),
        optional(outcome.between_tiers.map(|share| format!("{:.0} %", 100.0 * share))),
    )
}

/// Returns all layouts of so many replicas with the same total cache. Two tiers have half of the replicas each.
fn comparison(replicas: usize, cache_bytes: u64) -> Vec<Layout> {
    let mut layouts = vec![
        Layout::one_cache(replicas, cache_bytes),
        Layout::round_robin(replicas, cache_bytes),
        Layout::by_url(replicas, cache_bytes),
    ];
    let inner = replicas / 2;
    if inner == 0 {
        layouts.truncate(1);
    } else {
        let two_tiers = || Layout::two_tiers((replicas - inner, cache_bytes), (inner, cache_bytes));
        layouts.push(two_tiers());
        layouts.extend(IN_PROGRESS.map(|in_progress| two_tiers().with_bound(BALANCE_FACTOR_PERCENT, in_progress)));
    }
    layouts
}

/// Runs the same walk through all layouts. Returns the number of distinct blocks, and the outcome of every layout.
fn simulate(users: usize, requests: Requests, steps: usize, mut layouts: Vec<Layout>) -> (u64, Vec<Outcome>) {
    let mut walk = Walk::new(users, requests, 1);
    let mut distinct: HashSet<u64, BuildHasherDefault<KeyHasher>> = HashSet::default();
    for step in 0..steps {
        walk.step(step, |request| {
            distinct.extend(request.blocks);
            for layout in &mut layouts {
                layout.answer(request);
            }
        });
    }
    (distinct.len() as u64, layouts.iter().map(Layout::outcome).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache that is large enough for all blocks of a test.
    const UNBOUNDED: u64 = u64::MAX >> 8;

    #[test]
    fn equal_runs_have_equal_results() {
        assert_eq!(
            simulate(20, Requests::Both, 2000, comparison(4, 64 << 20)),
            simulate(20, Requests::Both, 2000, comparison(4, 64 << 20))
        );
    }

    #[test]
    fn every_layout_sends_the_same_blocks_and_requests_each_at_least_once() {
        let (distinct, outcomes) = simulate(20, Requests::Both, 5000, comparison(4, 64 << 20));
        assert_eq!(outcomes.len(), 6);
        for outcome in &outcomes {
            assert_eq!(outcome.reads, outcomes[0].reads);
            assert!((distinct..=outcome.reads).contains(&outcome.bucket_gets), "{outcome:?}");
            assert!(outcome.imbalance.0 >= 1.0 && outcome.imbalance.1.is_none_or(|inner| inner >= 1.0), "{outcome:?}");
            assert!(outcome.between_tiers.is_none_or(|share| (0.0..=1.0).contains(&share)), "{outcome:?}");
        }
    }

    #[test]
    fn caches_without_bound_request_a_block_once_for_each_replica_that_may_need_it() {
        let (distinct, outcomes) = simulate(20, Requests::Both, 5000, comparison(4, UNBOUNDED));
        let gets: Vec<u64> = outcomes.iter().map(|outcome| outcome.bucket_gets).collect();
        let [one, round_robin, by_url, two_tiers, bounded, tightly_bounded] = gets[..] else { panic!("{gets:?}") };
        assert_eq!((one, two_tiers), (distinct, distinct));
        assert!((distinct + 1..=4 * distinct).contains(&round_robin), "{round_robin} of {distinct}");
        assert!((distinct + 1..=4 * distinct).contains(&by_url), "{by_url} of {distinct}");
        // A skipped replica does not get the block; another one of the two requests it, too.
        assert!(bounded >= distinct && tightly_bounded > bounded && tightly_bounded <= 2 * distinct, "{gets:?}");
    }

    #[test]
    fn the_document_shows_the_results() {
        let document = include_str!("../../../docs/SCALING.md");
        let (users, replicas) = SCENARIOS[0];
        let (distinct, outcomes) = simulate(users, Requests::Both, STEPS, comparison(replicas, CACHE_BYTES));
        let row = format!("| {users} | {replicas} | {} |", cells(&outcomes[0], distinct));
        assert!(document.contains(&row), "docs/SCALING.md has no row {row}; run the simulation again");
        for (users, replicas) in SCENARIOS {
            assert!(document.contains(&format!("| {users} | {replicas} | one cache of that size |")));
        }
    }

    #[test]
    fn a_hash_of_the_url_is_one_cache_for_blocks_and_not_for_slices() {
        for (requests, is_one_cache) in [(Requests::Blocks, true), (Requests::Slices, false)] {
            let (distinct, outcomes) = simulate(20, requests, 5000, vec![Layout::by_url(4, UNBOUNDED)]);
            assert_eq!(outcomes[0].bucket_gets == distinct, is_one_cache, "{outcomes:?} of {distinct}");
        }
    }

    #[test]
    fn one_replica_is_one_cache_whatever_the_balancer_does() {
        let layouts =
            vec![Layout::one_cache(1, 64 << 20), Layout::round_robin(1, 64 << 20), Layout::by_url(1, 64 << 20)];
        let (_, outcomes) = simulate(20, Requests::Both, 5000, layouts);
        assert!(outcomes.iter().all(|outcome| outcome.bucket_gets == outcomes[0].bucket_gets), "{outcomes:?}");
        assert!(outcomes.iter().all(|outcome| outcome.imbalance == (1.0, None)), "{outcomes:?}");
    }

    #[test]
    fn a_larger_cache_never_requests_more() {
        let layouts = (20..30).map(|shift| Layout::one_cache(1, 1 << shift)).collect();
        let (distinct, outcomes) = simulate(20, Requests::Both, 5000, layouts);
        assert!(outcomes.is_sorted_by(|smaller, larger| smaller.bucket_gets >= larger.bucket_gets), "{outcomes:?}");
        assert!(outcomes[0].bucket_gets > 2 * distinct, "the smallest cache is too large to show anything");
    }

    #[test]
    fn without_front_caches_every_byte_passes_between_the_tiers() {
        let bytes = |front| Layout::two_tiers((2, front), (2, UNBOUNDED));
        let (distinct, outcomes) = simulate(20, Requests::Both, 5000, vec![bytes(0), bytes(UNBOUNDED)]);
        assert_eq!(outcomes[0].between_tiers, Some(1.0));
        assert!(outcomes[1].between_tiers.is_some_and(|share| share < 0.5), "{outcomes:?}");
        assert!(outcomes.iter().all(|outcome| outcome.bucket_gets == distinct), "{outcomes:?}");
    }
}
