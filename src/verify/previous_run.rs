//! Consistency check of the report of a previous run. A checkpoint is accepted only if it agrees with the lines before
//! it and if its position is one that the walk can reach.

use std::collections::BTreeSet;

use super::event::{Checkpoint, DatasetTally, Totals};
use crate::store::Key;

/// State of a previous run, from its report.
#[derive(Debug, Clone, Default)]
pub struct PreviousRun {
    /// Position at which the run stopped.
    pub checkpoint: Checkpoint,
    /// Datasets that the run finished.
    pub finished_datasets: Vec<DatasetTally>,
    /// Keys of datasets that were already reported as changed.
    pub reported_changed: BTreeSet<String>,
}

impl Checkpoint {
    /// Checks this checkpoint against the report before it: the roots of the run, the counts of its findings, and the
    /// datasets that it finished. Returns the reason why the checkpoint does not belong to this report, or `None` if it
    /// does.
    pub fn inconsistency(&self, roots: &[Key], findings: &Totals, finished: &[DatasetTally]) -> Option<&'static str> {
        let Self { root: root_index, after, totals, open } = self;
        let Some(root) = roots.get(*root_index) else { return Some("it refers to a root that the run does not have") };
        let Some(after) = Key::parse(after).ok().filter(|key| is_below(root, key)) else {
            return Some("its key is not below its root");
        };
        let finding_counts = |totals: &Totals| (totals.errors, totals.warnings, totals.notes, totals.kinds.clone());
        if finding_counts(totals) != finding_counts(findings) {
            return Some("its totals do not match the findings before it");
        }
        let mut outer = None;
        for DatasetTally { dataset, .. } in open {
            let key = parse_key(dataset).filter(|key| *key == *root || is_below(root, key));
            match key.filter(|key| is_below(key, &after) && outer.as_ref().is_none_or(|outer| is_below(outer, key))) {
                Some(key) => outer = Some(key),
                None => return Some("its key is not below one of its open datasets"),
            }
        }
        let is_passed = |key: &Key| {
            let is_below_earlier_root = roots.iter().take(*root_index).any(|root| key == root || is_below(root, key));
            let is_below_current_root = *key == *root || is_below(root, key);
            is_below_earlier_root
                || is_below_current_root && !is_below(key, &after) && key.segments().lt(after.segments())
        };
        if !finished.iter().all(|tally| parse_key(&tally.dataset).is_some_and(|key| is_passed(&key))) {
            return Some("a dataset that is recorded before it comes after it in the walk");
        }
        let sum = |count: fn(&DatasetTally) -> u64, tallies: &[DatasetTally]| {
            tallies.iter().map(count).fold(0, u64::saturating_add)
        };
        let minimum = |count: fn(&DatasetTally) -> u64| sum(count, finished).saturating_add(sum(count, open));
        let datasets = finished.len().saturating_add(open.len());
        let is_consistent = totals.missing == sum(|tally| tally.missing, finished)
            && totals.blocks >= minimum(|tally| tally.blocks)
            && totals.unverified >= minimum(|tally| tally.unverified)
            && totals.unverified <= totals.blocks
            && totals.stored_bytes >= minimum(|tally| tally.stored_bytes)
            && usize::try_from(totals.datasets).is_ok_and(|count| count >= datasets);
        (!is_consistent).then_some("its totals do not match the datasets before it")
    }
}

fn parse_key(path: &str) -> Option<Key> {
    if path.is_empty() { Some(Key::root()) } else { Key::parse(path).ok() }
}

/// Returns the names that lead from `root` to `key`, or `None` if `key` is not below `root`.
pub(super) fn names_below(root: &Key, key: &str) -> Option<Vec<String>> {
    let key = Key::parse(key).ok()?;
    let mut names = key.segments();
    for name in root.segments() {
        if names.next() != Some(name) {
            return None;
        }
    }
    Some(names.map(str::to_owned).collect())
}

fn is_below(ancestor: &Key, key: &Key) -> bool {
    names_below(ancestor, key.as_str()).is_some_and(|names| !names.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(dataset: &str, blocks: u64) -> DatasetTally {
        let json = serde_json::json!({"dataset": dataset, "attributes": "", "grid_blocks": blocks, "blocks": blocks,
            "missing": 0, "unverified": 0, "stored_bytes": 0});
        serde_json::from_value(json).unwrap()
    }

    fn consistent_report() -> (Vec<Key>, Totals, Vec<DatasetTally>, Checkpoint) {
        let roots = ["a", "c"].map(|key| Key::parse(key).unwrap()).to_vec();
        let mut findings = Totals::default();
        assert!(findings.count_named("empty-block", "error") && findings.count_named("stray-file", "note"));
        let finished = vec![tally("a", 4), tally("c/b", 2)];
        let totals = Totals { datasets: 4, blocks: 9, ..findings.clone() };
        let open = vec![tally("c/d", 1), tally("c/d/e", 2)];
        (roots, findings, finished, Checkpoint { root: 1, after: "c/d/e/7/1".to_owned(), totals, open })
    }

    #[test]
    fn a_checkpoint_that_matches_the_report_is_accepted() {
        let (roots, findings, finished, checkpoint) = consistent_report();
        assert_eq!(checkpoint.inconsistency(&roots, &findings, &finished), None);
    }

    #[test]
    fn every_change_of_a_checkpoint_is_detected() {
        let changes: &[fn(&mut Checkpoint)] = &[
            |it| it.root = 0,
            |it| it.root = usize::MAX,
            |it| it.after = "zzz".to_owned(),
            |it| it.after = "c".to_owned(),
            |it| it.after = String::new(),
            |it| it.after = "c/../c/d/e/9".to_owned(),
            |it| it.after = "c/d/f".to_owned(),
            |it| it.after = "c/a/0".to_owned(),
            |it| it.totals.errors = 0,
            |it| it.totals.notes = u64::MAX,
            |it| {
                it.totals.kinds.insert("bogus".to_owned(), 1);
            },
            |it| it.totals.kinds.clear(),
            |it| it.totals.blocks = 8,
            |it| it.totals.datasets = 3,
            |it| it.totals.missing = 1,
            |it| it.totals.unverified = 10,
            |it| it.open.reverse(),
            |it| it.open.push(tally("c/x", 0)),
            |it| it.open.push(tally("c/d/e", 0)),
            |it| it.open[0].blocks = u64::MAX,
            |it| it.open[0].stored_bytes = 1,
        ];
        for (number, change) in changes.iter().enumerate() {
            let (roots, findings, finished, mut checkpoint) = consistent_report();
            change(&mut checkpoint);
            assert!(checkpoint.inconsistency(&roots, &findings, &finished).is_some(), "{number}");
        }
        let (roots, findings, mut finished, checkpoint) = consistent_report();
        for key in ["c/d", "c/d/f", "c/d/e/8", "x", "c//b"] {
            finished[1].dataset = key.to_owned();
            assert!(checkpoint.inconsistency(&roots, &findings, &finished).is_some(), "{key}");
        }
    }

    #[test]
    fn findings_of_unknown_kind_or_wrong_severity_are_not_counted() {
        let mut findings = Totals::default();
        assert!(!findings.count_named("bogus", "error") && !findings.count_named("empty-block", "note"));
    }
}
