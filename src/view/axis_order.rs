//! Orders of axes that OME-NGFF requires: time first, then channels, then space.
//!
//! The order of a Zarr array is that of the stored elements, with N5's first axis last. If OME-NGFF requires another
//! order of a level, the level is also an array with reordered axes. Its name is that of the dataset followed by `@` and
//! the order: the axes of `s0@02134` are the first, third, second, fourth and fifth axis of `s0`. Because the name
//! contains the order, a chunk depends only on its own dataset.
//!
//! Source: <https://ngff.openmicroscopy.org/0.5/#axes-md>.

use n5_metadata::{Axis, AxisKind, CoordinateSpace};

/// Maximum number of axes of an OME-NGFF image, and of an order.
const MAX_RANK: usize = 5;

/// Minimum number of axes of an OME-NGFF image.
const MIN_RANK: usize = 2;

/// Minimum and maximum number of axes of space.
const SPACE_AXES: std::ops::RangeInclusive<usize> = 2..=3;

/// Separator between the name of a dataset and an order.
const SEPARATOR: char = '@';

/// An order of axes that differs from that of the stored elements: for each axis of the array, the number of the axis
/// of the array in stored order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AxisPermutation {
    axes: [u8; MAX_RANK],
    rank: usize,
}

impl AxisPermutation {
    /// Creates an order. Returns `None` if `axes` is not a permutation of 2 to 5 axes, or leaves them as they are.
    fn new(axes: &[u8]) -> Option<Self> {
        let is_permutation = (0..axes.len()).all(|axis| axes.iter().any(|other| usize::from(*other) == axis));
        let is_identity = axes.iter().enumerate().all(|(axis, other)| usize::from(*other) == axis);
        if !(MIN_RANK..=MAX_RANK).contains(&axes.len()) || !is_permutation || is_identity {
            return None;
        }
        let mut order = Self { axes: [0; MAX_RANK], rank: axes.len() };
        for (slot, axis) in order.axes.iter_mut().zip(axes) {
            *slot = *axis;
        }
        Some(order)
    }

    /// Returns false if no name in a path has an order. Most paths have none, and this test is fast.
    pub(super) fn may_be_in_name(path: &str) -> bool {
        path.contains(SEPARATOR)
    }

    /// Splits a name such as `s0@02134` into the name of the dataset and the order.
    pub(super) fn split_name(name: &str) -> Option<(&str, Self)> {
        let (dataset, digits) = name.rsplit_once(SEPARATOR).filter(|(dataset, _)| !dataset.is_empty())?;
        let axes: Option<Vec<u8>> = digits.bytes().take(MAX_RANK + 1).map(|digit| digit.checked_sub(b'0')).collect();
        Some((dataset, Self::new(&axes?)?))
    }

    /// Returns the name of the array with this order of the dataset named `dataset`.
    pub(super) fn name_of(&self, dataset: &str) -> String {
        let digits: String = self.axes().map(|axis| axis.to_string()).collect();
        format!("{dataset}{SEPARATOR}{digits}")
    }

    /// Returns the number of axes.
    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    /// Returns, for each axis of the array, the number of the axis in stored order.
    pub(super) fn axes(&self) -> impl DoubleEndedIterator<Item = usize> + '_ {
        self.axes.iter().take(self.rank).map(|axis| usize::from(*axis))
    }

    /// Returns, for each axis in stored order, the number of the axis of the array.
    pub(super) fn inverse(&self) -> Vec<usize> {
        (0..self.rank).filter_map(|stored| self.axes().position(|axis| axis == stored)).collect()
    }

    /// Reorders a list in stored order.
    pub(super) fn apply<T: Clone>(&self, stored: &[T]) -> Vec<T> {
        self.axes().filter_map(|axis| stored.get(axis).cloned()).collect()
    }

    /// Returns true if the elements of a chunk of `shape`, which is in stored order, do not move when the axes are
    /// reordered: the order of the axes along which the chunk has several elements stays the same.
    pub(super) fn keeps_elements(&self, shape: &[u64]) -> bool {
        let mut moving = self.axes().filter(|axis| shape.get(*axis).is_some_and(|size| *size > 1));
        let mut previous = None;
        moving.all(|axis| previous.replace(axis).is_none_or(|before| before < axis))
    }
}

/// Axes of an OME-NGFF image.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ImageAxes {
    /// Kinds of the axes, in stored order, slowest first.
    pub(super) kinds: Vec<AxisKind>,
    /// Order that OME-NGFF requires, or `None` if it is the stored order.
    pub(super) order: Option<AxisPermutation>,
}

impl ImageAxes {
    /// Returns the axes of an image with this coordinate space, or `None` if OME-NGFF cannot describe them.
    ///
    /// OME-NGFF requires two or three axes of space, and allows one of time and one of channels or of another kind. An
    /// axis of unknown kind counts as space if this is the only way to satisfy the rule, and so does one that is named x,
    /// y or z but has a unit of time.
    pub(super) fn of(space: &CoordinateSpace) -> Option<Self> {
        if !(MIN_RANK..=MAX_RANK).contains(&space.axes.len()) {
            return None;
        }
        let mut kinds: Vec<AxisKind> = space.axes.iter().rev().map(|axis| axis.kind).collect();
        let count = |kinds: &[AxisKind], kind: AxisKind| kinds.iter().filter(|other| **other == kind).count();
        let others = |kinds: &[AxisKind]| count(kinds, AxisKind::Channel) + count(kinds, AxisKind::Other);
        while count(&kinds, AxisKind::Space) < *SPACE_AXES.start()
            || (others(&kinds) > 1 && count(&kinds, AxisKind::Space) < *SPACE_AXES.end())
        {
            // The fastest axes are most likely to be those of space.
            let candidates = || space.axes.iter().zip(kinds.iter().rev()).enumerate();
            let is_named_as_space = |axis: &Axis| matches!(axis.name.to_ascii_lowercase().as_str(), "x" | "y" | "z");
            let fastest = candidates()
                .find(|(_, (_, kind))| **kind == AxisKind::Other)
                .or_else(|| candidates().find(|(_, (axis, kind))| **kind == AxisKind::Time && is_named_as_space(axis)));
            let (index, _) = fastest?;
            *kinds.iter_mut().rev().nth(index)? = AxisKind::Space;
        }
        let is_valid = SPACE_AXES.contains(&count(&kinds, AxisKind::Space))
            && count(&kinds, AxisKind::Time) <= 1
            && others(&kinds) <= 1;
        let mut axes: Vec<u8> = (0..).take(kinds.len()).collect();
        axes.sort_by_key(|axis| match kinds.get(usize::from(*axis)) {
            Some(AxisKind::Time) => 0,
            Some(AxisKind::Channel | AxisKind::Other) => 1,
            Some(AxisKind::Space) | None => 2,
        });
        is_valid.then(|| Self { order: AxisPermutation::new(&axes), kinds })
    }
}

#[cfg(test)]
mod tests {
    use n5_format::{AttributesDocument, DescribedDataset};
    use serde_json::json;

    use super::*;

    fn axes_of(names: &[&str]) -> Option<ImageAxes> {
        let ones = vec![1; names.len()];
        let text = json!({"dimensions": ones, "blockSize": ones, "dataType": "uint8", "axes": names,
            "compression": {"type": "raw"}});
        let document = AttributesDocument::parse(text.to_string().as_bytes()).unwrap();
        ImageAxes::of(&CoordinateSpace::of_dataset(&DescribedDataset::parse(document).unwrap(), &[]))
    }

    #[test]
    fn a_name_has_the_order_after_an_at_sign() {
        let (dataset, order) = AxisPermutation::split_name("s0@02134").unwrap();
        assert_eq!((dataset, order.rank(), order.name_of("s1").as_str()), ("s0", 5, "s1@02134"));
        assert_eq!(AxisPermutation::split_name("a@b@10").unwrap().0, "a@b");
        for other in ["s0", "@10", "s0@", "s0@01", "s0@0", "s0@00", "s0@02", "s0@210x", "s0@1023456", "s0@+1"] {
            assert_eq!(AxisPermutation::split_name(other), None, "{other}");
        }
    }

    #[test]
    fn lists_are_reordered_and_the_inverse_restores_them() {
        let (_, order) = AxisPermutation::split_name("a@201").unwrap();
        assert_eq!(order.apply(&["a", "b", "c"]), ["c", "a", "b"]);
        assert_eq!(order.inverse(), [1, 2, 0]);
    }

    #[test]
    fn elements_stay_if_the_longer_axes_keep_their_order() {
        let (_, order) = AxisPermutation::split_name("a@02134").unwrap();
        assert!(order.keeps_elements(&[1, 8, 1, 64, 64]) && order.keeps_elements(&[4, 1, 3, 64, 64]));
        assert!(!order.keeps_elements(&[1, 8, 3, 64, 64]));
    }

    #[test]
    fn time_comes_first_then_channels_then_space() {
        for (names, order) in [
            // N5's order, fastest first.
            (vec!["x", "y", "z"], None),
            (vec!["z", "y", "x"], None),
            (vec!["x", "y", "z", "c", "t"], None),
            (vec!["x", "y", "c", "z", "t"], Some("a@02134")),
            (vec!["x", "y", "z", "t", "c"], Some("a@10234")),
            (vec!["c", "x", "y"], Some("a@201")),
            (vec!["t", "x", "y", "z"], Some("a@3012")),
            (vec!["a", "b", "c"], None),
            (vec!["x", "y", "depth"], None),
        ] {
            let order = order.map(|name| AxisPermutation::split_name(name).unwrap().1);
            assert_eq!(axes_of(&names).unwrap().order, order, "{names:?}");
        }
    }

    #[test]
    fn axes_that_ome_ngff_cannot_describe_make_no_image() {
        for names in [vec!["x"], vec!["x", "t"], vec!["x", "y", "t", "time"], vec!["x", "y", "z", "c", "ch"]] {
            assert_eq!(axes_of(&names), None, "{names:?}");
        }
        assert_eq!(axes_of(&["x", "y", "z", "t", "c", "d"]), None);
    }

    #[test]
    fn an_axis_named_as_space_counts_as_space_whatever_its_unit() {
        let text = json!({"dimensions": [4, 4], "blockSize": [4, 4], "dataType": "uint8", "axes": ["x", "y"],
            "units": ["nm", "s"], "resolution": [10, 20], "compression": {"type": "raw"}});
        let document = AttributesDocument::parse(text.to_string().as_bytes()).unwrap();
        let space = CoordinateSpace::of_dataset(&DescribedDataset::parse(document).unwrap(), &[]);
        assert_eq!(ImageAxes::of(&space).unwrap().kinds, [AxisKind::Space, AxisKind::Space]);
    }

    #[test]
    fn axes_of_unknown_kind_count_as_space_where_it_is_lacking() {
        use AxisKind::{Channel, Other, Space};

        assert_eq!(axes_of(&["p", "q"]).unwrap().kinds, [Space, Space]);
        assert_eq!(axes_of(&["p", "q", "r"]).unwrap().kinds, [Other, Space, Space]);
        assert_eq!(axes_of(&["x", "y", "angle"]).unwrap().kinds, [Other, Space, Space]);
        assert_eq!(axes_of(&["x", "y", "depth", "c"]).unwrap().kinds, [Channel, Space, Space, Space]);
    }
}
