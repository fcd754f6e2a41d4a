//! Huffman codes made for given symbol counts. Source: RFC 1951 §3.2.2.

/// Code of a symbol. The length is 0 if the symbol has no code.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct HuffmanCode {
    /// Bits in the order in which they are written, the first one lowest.
    pub(crate) bits: u16,
    /// Number of bits.
    pub(crate) length: u8,
}

/// Maximum length of a code in bits.
const MAX_CODE_BITS: usize = 15;

/// Returns the code lengths that make a text with these symbol counts shortest. No code is longer than `limit` bits.
/// Symbols that do not occur have length 0. If at least two symbols occur, the code is complete.
pub(crate) fn code_lengths<const N: usize>(counts: &[u32; N], limit: usize) -> [u8; N] {
    let mut lengths = [0; N];
    // The rarest symbols come first. The number of the symbol in the low bits makes equal counts distinct.
    let mut leaves: Vec<u64> = (0u64..)
        .zip(counts)
        .filter(|(_, count)| **count > 0)
        .map(|(symbol, count)| u64::from(*count) << 16 | symbol)
        .collect();
    leaves.sort_unstable();
    let mut by_length = [0u32; MAX_CODE_BITS + 1];
    for depth in leaf_depths(&leaves) {
        if let Some(number) = by_length.get_mut(depth.min(limit)) {
            *number = number.wrapping_add(1);
        }
    }
    limit_lengths(&mut by_length, limit);
    let mut common_first = leaves.iter().rev();
    for (length, number) in (0..).zip(by_length) {
        for leaf in common_first.by_ref().take(number as usize) {
            if let Some(symbol_length) = lengths.get_mut(usize::from(u16::try_from(leaf & 0xffff).unwrap_or(0))) {
                *symbol_length = length;
            }
        }
    }
    lengths
}

/// Returns the depths of the leaves of the Huffman tree, in no particular order. A single leaf has depth 1.
///
/// Nodes are made in order of weight, so the leaves and the inner nodes wait in two sorted queues.
fn leaf_depths(leaves: &[u64]) -> impl Iterator<Item = usize> {
    let mut leaf_weights = leaves.iter().map(|leaf| leaf >> 16).peekable();
    let inner_count = leaves.len().saturating_sub(1);
    let mut weights: Vec<u64> = Vec::with_capacity(inner_count);
    // Parent of every inner node except the last, which is the root.
    let mut parents: Vec<usize> = Vec::with_capacity(inner_count);
    for node in 0..inner_count {
        let mut weight = 0u64;
        for _ in 0..2 {
            let node_weight = weights.get(parents.len()).copied();
            let lighter =
                leaf_weights.next_if(|leaf_weight| node_weight.is_none_or(|inner_weight| *leaf_weight <= inner_weight));
            if lighter.is_none() {
                parents.push(node);
            }
            weight = weight.saturating_add(lighter.or(node_weight).unwrap_or(0));
        }
        weights.push(weight);
    }
    let mut depths = vec![0usize; inner_count];
    for (node, parent) in parents.iter().enumerate().rev() {
        let depth = depths.get(*parent).map_or(0, |depth| depth.saturating_add(1));
        if let Some(node_depth) = depths.get_mut(node) {
            *node_depth = depth;
        }
    }
    // Number of inner nodes at each depth. Each has two children, so the next depth has twice as many nodes.
    let mut nodes = [0usize; 64];
    for depth in depths {
        if let Some(number) = nodes.get_mut(depth) {
            *number = number.saturating_add(1);
        }
    }
    let children = nodes.into_iter().map(|number| number.saturating_mul(2));
    let single = usize::from(leaves.len() == 1);
    let levels = children.zip(nodes.into_iter().skip(1).chain([0])).enumerate();
    levels
        .flat_map(|(level, (children, nodes))| {
            std::iter::repeat_n(level.saturating_add(1), children.saturating_sub(nodes))
        })
        .chain(std::iter::repeat_n(1, single))
}

/// Makes the code lengths valid again after all longer codes were cut to `limit` bits. `by_length` is the number of
/// codes of each length. The cut codes take more code space than there is, so a shorter code is lengthened for each
/// excess code.
fn limit_lengths(by_length: &mut [u32; MAX_CODE_BITS + 1], limit: usize) {
    let capacity = 1u64.wrapping_shl(u32::try_from(limit).unwrap_or(0));
    let used = |by_length: &[u32]| -> u64 {
        let lengths = by_length.iter().take(limit.saturating_add(1)).rev().zip(0u32..);
        lengths.map(|(number, shift)| u64::from(*number).wrapping_shl(shift)).fold(0, u64::saturating_add)
    };
    for _ in capacity..used(by_length) {
        // The longest of the shorter codes becomes one bit longer, and one of the codes of `limit` bits becomes its
        // sibling.
        let (shorter, longest) = by_length.split_at_mut(limit);
        let split = shorter.iter().rposition(|number| *number > 0);
        if let (Some(split), Some(longest)) = (split, longest.first_mut()) {
            *longest = longest.wrapping_sub(1);
            if let Some(number) = by_length.get_mut(split) {
                *number = number.wrapping_sub(1);
            }
            if let Some(number) = by_length.get_mut(split.saturating_add(1)) {
                *number = number.wrapping_add(2);
            }
        }
    }
}

/// Returns the canonical codes of these lengths.
pub(crate) fn canonical_codes<const N: usize>(lengths: &[u8; N]) -> [HuffmanCode; N] {
    let mut numbers = [0u16; MAX_CODE_BITS + 1];
    for length in lengths.iter().filter(|length| **length > 0) {
        if let Some(number) = numbers.get_mut(usize::from(*length)) {
            *number = number.wrapping_add(1);
        }
    }
    let mut next = [0u16; MAX_CODE_BITS + 1];
    let mut first = 0u16;
    for (next, number) in next.iter_mut().zip(numbers).skip(1) {
        *next = first;
        first = first.wrapping_add(number).wrapping_shl(1);
    }
    lengths.map(|length| {
        let Some(next) = next.get_mut(usize::from(length)).filter(|_| length > 0) else {
            return HuffmanCode::default();
        };
        let bits = next.reverse_bits().wrapping_shr(16u32.wrapping_sub(length.into()));
        *next = next.wrapping_add(1);
        HuffmanCode { bits, length }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the size in bits of a text with these counts, by merging the two lightest nodes of a tree repeatedly.
    fn minimal_bits(counts: &[u32]) -> u64 {
        let mut weights: Vec<u64> = counts.iter().filter(|n| **n > 0).map(|n| u64::from(*n)).collect();
        let mut bits = 0;
        while weights.len() > 1 {
            weights.sort_unstable_by(|a, b| b.cmp(a));
            let pair = weights.pop().unwrap() + weights.pop().unwrap();
            bits += pair;
            weights.push(pair);
        }
        bits
    }

    fn bits(counts: &[u32], lengths: &[u8]) -> u64 {
        counts.iter().zip(lengths).map(|(n, length)| u64::from(*n) * u64::from(*length)).sum()
    }

    /// Code space that codes of these lengths take, in units of a code of 15 bits.
    fn used_code_space(lengths: &[u8]) -> u64 {
        lengths.iter().filter(|length| **length > 0).map(|length| 1 << (15 - length)).sum()
    }

    #[test]
    fn codes_are_those_of_the_specification() {
        // RFC 1951 §3.2.2: the codes of ABCDEFGH, with their bits from left to right.
        let codes = canonical_codes(&[3, 3, 3, 3, 3, 2, 4, 4]);
        let text = |code: HuffmanCode| (0..code.length).map(|n| (code.bits >> n & 1).to_string()).collect::<String>();
        assert_eq!(codes.map(text), ["010", "011", "100", "101", "110", "00", "1110", "1111"]);
    }

    #[test]
    fn a_single_symbol_has_a_code_of_one_bit() {
        assert_eq!(code_lengths(&[0, 0, 5, 0], 7), [0, 0, 1, 0]);
        assert_eq!(code_lengths(&[0, 0], 7), [0, 0]);
    }

    #[test]
    fn long_codes_are_limited_and_the_code_stays_complete() {
        // Fibonacci numbers as weights make a tree of maximum depth.
        let mut counts = [0u32; 30];
        let mut a = 1;
        let mut b = 1;
        for count in &mut counts {
            *count = a;
            (a, b) = (b, a + b);
        }
        for limit in [5, 7, 12, 15] {
            let lengths = code_lengths(&counts, limit);
            assert_eq!(usize::from(*lengths.iter().max().unwrap()), limit);
            assert_eq!(used_code_space(&lengths), 1 << 15, "{limit}: {lengths:?}");
        }
    }

    proptest! {
        #[test]
        fn codes_are_optimal_and_complete(
            counts in prop::collection::vec(prop_oneof![Just(0u32), 1u32..20, 1u32..60_000], 40),
        ) {
            let counts: [u32; 40] = counts.try_into().unwrap();
            let unlimited = code_lengths(&counts, 15);
            let used_symbols = counts.iter().filter(|n| **n > 0).count();
            prop_assume!(used_symbols > 1);
            prop_assert_eq!(used_code_space(&unlimited), 1 << 15);
            // The reference is valid only if the codes need not be limited, as is usual for 40 counts of at most
            // 60,000.
            if unlimited.iter().all(|length| *length < 15) {
                prop_assert_eq!(bits(&counts, &unlimited), minimal_bits(&counts));
            }
            let limited = code_lengths(&counts, 7);
            prop_assert_eq!(used_code_space(&limited), 1 << 15);
            prop_assert!(limited.iter().all(|length| *length <= 7));
            for (n, length) in counts.iter().zip(limited) {
                prop_assert_eq!(*n > 0, length > 0);
            }
        }
    }
}
