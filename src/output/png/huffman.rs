//! Prefix codes made for the symbols at hand. Source: RFC 1951 §3.2.2.

/// A symbol's code: its bits, the first one lowest, and how many there are; 0 where the symbol has none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Code {
    /// The bits as they are written.
    pub(super) bits: u16,
    /// Their number.
    pub(super) length: u8,
}

/// Longest code of all.
const MOST_BITS: usize = 15;

/// Lengths of the codes that make a text with these counts of symbols shortest, none longer than `limit`; 0 for
/// symbols that do not occur. Where at least two occur, no bits are left over: the code is complete.
pub(super) fn lengths<const N: usize>(counts: &[u32; N], limit: usize) -> [u8; N] {
    let mut lengths = [0; N];
    // Rare ones first; the symbol, which makes equal ones differ, below the count.
    let mut leaves: Vec<u64> = (0u64..)
        .zip(counts)
        .filter(|(_, count)| **count > 0)
        .map(|(symbol, count)| u64::from(*count) << 16 | symbol)
        .collect();
    leaves.sort_unstable();
    let mut by_length = [0u32; MOST_BITS + 1];
    for depth in depths(&leaves) {
        if let Some(number) = by_length.get_mut(depth.min(limit)) {
            *number = number.wrapping_add(1);
        }
    }
    shorten(&mut by_length, limit);
    let mut common_first = leaves.iter().rev();
    for (length, number) in (0..).zip(by_length) {
        for leaf in common_first.by_ref().take(number as usize) {
            if let Some(of_symbol) = lengths.get_mut(usize::from(u16::try_from(leaf & 0xffff).unwrap_or(0))) {
                *of_symbol = length;
            }
        }
    }
    lengths
}

/// How deep the leaves of Huffman's tree lie, in no order; a single one lies at 1.
///
/// Nodes are made by weight, so both the leaves and the nodes made of two others wait in line.
fn depths(leaves: &[u64]) -> impl Iterator<Item = usize> {
    let mut alone = leaves.iter().map(|leaf| leaf >> 16).peekable();
    let inner = leaves.len().saturating_sub(1);
    let mut weights: Vec<u64> = Vec::with_capacity(inner);
    // Of every node but the last, which is the root, the number of the node that took it.
    let mut parents: Vec<usize> = Vec::with_capacity(inner);
    for made in 0..inner {
        let mut weight = 0u64;
        for _ in 0..2 {
            let of_node = weights.get(parents.len()).copied();
            let lighter = alone.next_if(|of_leaf| of_node.is_none_or(|of_node| *of_leaf <= of_node));
            if lighter.is_none() {
                parents.push(made);
            }
            weight = weight.saturating_add(lighter.or(of_node).unwrap_or(0));
        }
        weights.push(weight);
    }
    let mut depth_of = vec![0usize; inner];
    for (node, parent) in parents.iter().enumerate().rev() {
        let depth = depth_of.get(*parent).map_or(0, |depth| depth.saturating_add(1));
        if let Some(of_node) = depth_of.get_mut(node) {
            *of_node = depth;
        }
    }
    // Below the nodes of a depth lie twice as many nodes and leaves.
    let mut nodes = [0usize; 64];
    for depth in depth_of {
        if let Some(number) = nodes.get_mut(depth) {
            *number = number.saturating_add(1);
        }
    }
    let below = nodes.into_iter().map(|number| number.saturating_mul(2));
    let single = usize::from(leaves.len() == 1);
    let levels = below.zip(nodes.into_iter().skip(1).chain([0])).enumerate();
    levels
        .flat_map(|(level, (below, nodes))| std::iter::repeat_n(level.saturating_add(1), below.saturating_sub(nodes)))
        .chain(std::iter::repeat_n(1, single))
}

/// Makes a code of `by_length`, how many codes there are of each length, of which those at `limit` were longer: a
/// shorter one is lengthened for each that there is no room for.
fn shorten(by_length: &mut [u32; MOST_BITS + 1], limit: usize) {
    let room = 1u64.wrapping_shl(u32::try_from(limit).unwrap_or(0));
    let taken = |by_length: &[u32]| -> u64 {
        let lengths = by_length.iter().take(limit.saturating_add(1)).rev().zip(0u32..);
        lengths.map(|(number, free)| u64::from(*number).wrapping_shl(free)).fold(0, u64::saturating_add)
    };
    for _ in room..taken(by_length) {
        // One of the longest goes below the longest that is shorter, which moves down beside it.
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

/// The codes of these lengths.
pub(super) fn codes<const N: usize>(lengths: &[u8; N]) -> [Code; N] {
    let mut numbers = [0u16; MOST_BITS + 1];
    for length in lengths.iter().filter(|length| **length > 0) {
        if let Some(number) = numbers.get_mut(usize::from(*length)) {
            *number = number.wrapping_add(1);
        }
    }
    let mut next = [0u16; MOST_BITS + 1];
    let mut first = 0u16;
    for (next, number) in next.iter_mut().zip(numbers).skip(1) {
        *next = first;
        first = first.wrapping_add(number).wrapping_shl(1);
    }
    lengths.map(|length| {
        let Some(next) = next.get_mut(usize::from(length)).filter(|_| length > 0) else { return Code::default() };
        let bits = next.reverse_bits().wrapping_shr(16u32.wrapping_sub(length.into()));
        *next = next.wrapping_add(1);
        Code { bits, length }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bits of a text with these counts, by a tree whose nodes are merged one pair after the other.
    fn least_bits(counts: &[u32]) -> u64 {
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

    /// In parts of the room of codes of 15 bits.
    fn taken(lengths: &[u8]) -> u64 {
        lengths.iter().filter(|length| **length > 0).map(|length| 1 << (15 - length)).sum()
    }

    #[test]
    fn codes_are_those_of_the_specification() {
        // RFC 1951 §3.2.2: the code of ABCDEFGH, its bits from left to right.
        let codes = codes(&[3, 3, 3, 3, 3, 2, 4, 4]);
        let text = |code: Code| (0..code.length).map(|n| (code.bits >> n & 1).to_string()).collect::<String>();
        assert_eq!(codes.map(text), ["010", "011", "100", "101", "110", "00", "1110", "1111"]);
    }

    #[test]
    fn one_symbol_has_one_bit_and_none_has_none() {
        assert_eq!(lengths(&[0, 0, 5, 0], 7), [0, 0, 1, 0]);
        assert_eq!(lengths(&[0, 0], 7), [0, 0]);
    }

    #[test]
    fn long_codes_are_cut_off_and_room_is_made_for_them() {
        // Weights like Fibonacci's make a tree as deep as it has leaves.
        let mut counts = [0u32; 30];
        let (mut a, mut b) = (1, 1);
        for count in &mut counts {
            *count = a;
            (a, b) = (b, a + b);
        }
        for limit in [5, 7, 12, 15] {
            let lengths = lengths(&counts, limit);
            assert_eq!(usize::from(*lengths.iter().max().unwrap()), limit);
            assert_eq!(taken(&lengths), 1 << 15, "{limit}: {lengths:?}");
        }
    }

    proptest! {
        #[test]
        fn no_code_is_shorter_and_none_is_left_over(
            counts in prop::collection::vec(prop_oneof![Just(0u32), 1u32..20, 1u32..60_000], 40),
        ) {
            let counts: [u32; 40] = counts.try_into().unwrap();
            let free = lengths(&counts, 15);
            let some = counts.iter().filter(|n| **n > 0).count();
            prop_assume!(some > 1);
            prop_assert_eq!(taken(&free), 1 << 15);
            // 40 counts of at most 60,000 make codes of 15 bits only by chance.
            if free.iter().all(|length| *length < 15) {
                prop_assert_eq!(bits(&counts, &free), least_bits(&counts));
            }
            let short = lengths(&counts, 7);
            prop_assert_eq!(taken(&short), 1 << 15);
            prop_assert!(short.iter().all(|length| *length <= 7));
            for (n, length) in counts.iter().zip(short) {
                prop_assert_eq!(*n > 0, length > 0);
            }
        }
    }
}
