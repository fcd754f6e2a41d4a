//! Nested loops over memory at constant distances, which copies and statistics share.

use smallvec::SmallVec;

/// One loop over a source and a target: `count` elements or runs, and the distances in bytes between neighbours in both.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StridedLoop {
    pub(crate) count: usize,
    pub(crate) from_stride: usize,
    pub(crate) to_stride: usize,
}

/// Nested loops, innermost first.
pub(crate) type StridedLoops = SmallVec<[StridedLoop; 6]>;

/// Calls `visit` with the offsets in the target and in the source for every iteration of `loops`. Both begin at the
/// given offsets. Without a loop, there is one iteration.
///
/// Every count must be at least 1. Offsets wrap around; the caller checks them against its buffers.
pub(crate) fn for_each_offset(
    loops: &[StridedLoop],
    (mut to_at, mut from_at): (usize, usize),
    mut visit: impl FnMut(usize, usize),
) {
    let mut cursor: SmallVec<[usize; 6]> = loops.iter().map(|_| 0).collect();
    loop {
        visit(to_at, from_at);
        let mut axis = 0;
        loop {
            let Some(level) = loops.get(axis) else { return };
            cursor[axis] += 1;
            from_at = from_at.wrapping_add(level.from_stride);
            to_at = to_at.wrapping_add(level.to_stride);
            if cursor[axis] < level.count {
                break;
            }
            from_at = from_at.wrapping_sub(level.from_stride.wrapping_mul(level.count));
            to_at = to_at.wrapping_sub(level.to_stride.wrapping_mul(level.count));
            cursor[axis] = 0;
            axis += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_loop_advances_first() {
        let level = |count, from_stride, to_stride| StridedLoop { count, from_stride, to_stride };
        let offsets = |loops: &[StridedLoop]| {
            let mut all = Vec::new();
            for_each_offset(loops, (100, 7), |to, from| all.push((to - 100, from - 7)));
            all
        };
        assert_eq!(offsets(&[]), [(0, 0)]);
        let expected = [(0, 0), (1, 10), (5, 1), (6, 11), (10, 2), (11, 12)];
        assert_eq!(offsets(&[level(2, 10, 1), level(3, 1, 5)]), expected);
    }
}
