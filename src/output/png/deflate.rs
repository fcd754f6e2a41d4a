//! A compressor for pictures: prefix codes made for each block, and runs of one byte. It looks for no other
//! repetition: noise has none, and what there is in other pictures becomes runs by a filter.
//!
//! Source: RFC 1951.

use super::huffman::{self, Code};

/// Most bytes of a block: so many can be stored, and buffers of this size come from the heap (`allocator.rs`).
pub(super) const BLOCK_BYTES: usize = 60 * 1024;

/// Bytes that a block takes at most besides those that it holds.
pub(super) const BLOCK_EXTRA_BYTES: usize = 6;

/// Bytes, the end of a block, and lengths of runs.
const SYMBOLS: usize = 286;
const END: usize = 256;

/// Codes that are put together before whole bytes of them are written.
const CODES: usize = 5;

/// Longest code of a symbol: [`CODES`] of them and what is left of a byte fit into 64 bits.
const SYMBOL_BITS: usize = 11;

/// Longest code of a length of codes.
const LENGTH_BITS: usize = 7;

/// Longest run, and the shortest.
const RUN_BYTES: std::ops::RangeInclusive<usize> = 3..=258;

/// Of so many groups of eight bytes at least one is eight times the same byte, or runs are not looked for.
const GROUPS: usize = 64;

/// A stream of blocks: the bits of its last byte, as long as that is not full.
#[derive(Debug, Default)]
pub(super) struct Deflate {
    word: u64,
    held: u32,
}

impl Deflate {
    /// Appends a block of `bytes`, at most [`BLOCK_BYTES`]. After the last one, and one of no bytes, the stream ends
    /// with a whole byte.
    pub(super) fn block(&mut self, out: &mut Vec<u8>, bytes: &[u8], is_last: bool) {
        let text = Text::new(bytes);
        let plan = Plan::new(&text.counts());
        let is_coded = !bytes.is_empty() && plan.bits < (bytes.len().saturating_add(4) as u64).saturating_mul(8);
        let room_bytes = if is_coded { usize::try_from(plan.bits >> 3).unwrap_or(0) } else { bytes.len() };
        let start = out.len();
        // Words are written whole, of which the next one covers what is not used.
        out.resize(start.saturating_add(room_bytes).saturating_add(24), 0);
        let mut bits = Bits { room: out.get_mut(start..).unwrap_or_default(), at: 0, word: self.word, held: self.held };
        bits.put(u64::from(is_last), 1);
        if is_coded {
            plan.write(&mut bits, &text);
        } else {
            bits.stored(bytes);
        }
        if is_last {
            bits.fill_byte();
        }
        *self = Self { word: bits.word, held: bits.held };
        let end = start.saturating_add(bits.at);
        out.truncate(end);
    }
}

/// Bits on their way into bytes, lowest first.
struct Bits<'a> {
    room: &'a mut [u8],
    at: usize,
    word: u64,
    held: u32,
}

impl Bits<'_> {
    /// Adds `count` bits: together with those held at most 64.
    fn put(&mut self, bits: u64, count: u32) {
        self.word |= bits.wrapping_shl(self.held);
        self.held = self.held.wrapping_add(count);
    }

    fn code(&mut self, code: Code) {
        self.put(code.bits.into(), code.length.into());
    }

    /// Writes all whole bytes: at most 7 bits are held afterwards.
    fn flush(&mut self) {
        if let Some(room) = self.room.get_mut(self.at..).and_then(<[u8]>::first_chunk_mut) {
            *room = self.word.to_le_bytes();
        }
        self.at = self.at.wrapping_add((self.held >> 3) as usize);
        self.word = self.word.wrapping_shr(self.held & !7);
        self.held &= 7;
    }

    /// Adds zeros up to the end of a byte.
    fn fill_byte(&mut self) {
        self.flush();
        if self.held > 0 {
            self.held = 8;
            self.flush();
        }
    }

    /// The rest of a block that holds `bytes` as they are. Source: §3.2.4.
    fn stored(&mut self, bytes: &[u8]) {
        self.put(0, 2);
        self.fill_byte();
        let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        self.put(length.into(), 16);
        self.put((!length).into(), 16);
        self.flush();
        if let Some(room) = self.room.get_mut(self.at..).and_then(|room| room.get_mut(..bytes.len())) {
            room.copy_from_slice(bytes);
        }
        self.at = self.at.wrapping_add(bytes.len());
    }

    fn literals(&mut self, codes: &[Code; SYMBOLS], bytes: &[u8]) {
        let (groups, others) = bytes.as_chunks::<CODES>();
        for group in groups {
            for byte in group {
                self.code(code_of(codes, (*byte).into()));
            }
            self.flush();
        }
        for byte in others {
            self.code(code_of(codes, (*byte).into()));
        }
        self.flush();
    }
}

fn code_of(codes: &[Code; SYMBOLS], symbol: usize) -> Code {
    codes.get(symbol).copied().unwrap_or_default()
}

/// A part of what a block holds.
enum Token<'a> {
    Bytes(&'a [u8]),
    /// Repeats the byte before so many times.
    Run(usize),
}

/// The bytes of a block, and whether runs are looked for.
struct Text<'a> {
    bytes: &'a [u8],
    has_runs: bool,
}

impl<'a> Text<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        let groups = bytes.as_chunks::<8>().0;
        let alike = |group: &[u8; 8]| {
            let group = u64::from_le_bytes(*group);
            usize::from(group == group.rotate_left(8))
        };
        let runs = groups.iter().map(alike).fold(0, usize::wrapping_add);
        Self { bytes, has_runs: runs.saturating_mul(GROUPS) > groups.len() }
    }

    /// Gives the tokens in their order. Runs of fewer than eight bytes are left alone.
    #[inline]
    fn tokens(&self, mut take: impl FnMut(Token<'a>)) {
        if !self.has_runs {
            return take(Token::Bytes(self.bytes));
        }
        let mut rest = self.bytes;
        let mut before = None;
        while let Some((group, after)) = rest.split_first_chunk::<8>() {
            if before.is_some_and(|byte| [byte; 8] == *group) {
                let groups = rest.as_chunks().0.iter().take_while(|other| *other == group).count();
                let (_, after) = rest.split_at_checked(groups.wrapping_mul(8)).unwrap_or_default();
                let more = after.iter().take_while(|byte| before == Some(**byte)).count();
                run(groups.wrapping_mul(8).wrapping_add(more), rest, &mut take);
                rest = after.get(more..).unwrap_or_default();
            } else {
                // Up to where a run begins, if one does within these eight.
                let [.., last] = *group;
                let others = u64::from_le_bytes(*group) ^ u64::from_le_bytes([last; 8]);
                let kept = 9usize.wrapping_sub((others.leading_zeros() >> 3) as usize);
                let is_begun = rest.get(kept..).and_then(<[u8]>::first_chunk) == Some(&[last; 8]);
                let (bytes, after) = if is_begun {
                    rest.split_at_checked(kept).unwrap_or((rest, &[]))
                } else {
                    (group.as_slice(), after)
                };
                take(Token::Bytes(bytes));
                before = Some(last);
                rest = after;
            }
        }
        take(Token::Bytes(rest));
    }

    /// How often each symbol occurs.
    fn counts(&self) -> [u32; SYMBOLS] {
        // Equal bytes next to each other are not counted in the same place, where they would wait for each other.
        let mut bytes = [[0u32; 256]; 4];
        let mut counts = [0; SYMBOLS];
        self.tokens(|token| match token {
            Token::Bytes(text) => {
                let (fours, others) = text.as_chunks::<4>();
                for four in fours {
                    for (counts, byte) in bytes.iter_mut().zip(four) {
                        count(counts, (*byte).into());
                    }
                }
                for (counts, byte) in bytes.iter_mut().zip(others) {
                    count(counts, (*byte).into());
                }
            }
            Token::Run(length) => count(&mut counts, Run::of(length).symbol),
        });
        for bytes in bytes {
            counts.iter_mut().zip(bytes).for_each(|(sum, count)| *sum = sum.wrapping_add(count));
        }
        count(&mut counts, END);
        counts
    }
}

fn count<const N: usize>(counts: &mut [u32; N], symbol: usize) {
    if let Some(count) = counts.get_mut(symbol) {
        *count = count.wrapping_add(1);
    }
}

/// A run of `length` bytes at the beginning of `bytes`, in tokens that can be written.
fn run<'a>(length: usize, bytes: &'a [u8], take: &mut impl FnMut(Token<'a>)) {
    let mut left = length;
    while left >= *RUN_BYTES.start() {
        let some = left.min(*RUN_BYTES.end());
        take(Token::Run(some));
        left = left.wrapping_sub(some);
    }
    take(Token::Bytes(bytes.get(..left).unwrap_or_default()));
}

/// A length of a run as it is written: a symbol and bits that follow it. Source: §3.2.5.
struct Run {
    symbol: usize,
    extra: u64,
}

impl Run {
    /// Of 3 to 258 bytes.
    #[inline]
    fn of(length: usize) -> Self {
        let above = length.wrapping_sub(*RUN_BYTES.start());
        match above {
            255 => Self { symbol: 285, extra: 0 },
            0..8 => Self { symbol: above.wrapping_add(257), extra: 0 },
            // Four symbols for each power of two.
            _ => {
                let extra_bits = above.ilog2().wrapping_sub(2);
                let quarter = above.wrapping_shr(extra_bits) & 3;
                let symbol = (extra_bits as usize).wrapping_mul(4).wrapping_add(261).wrapping_add(quarter);
                let extra = above & !usize::MAX.wrapping_shl(extra_bits);
                Self { symbol, extra: extra as u64 }
            }
        }
    }
}

/// How many bits follow a symbol, with the one of the distance.
fn bits_after(symbol: usize) -> u32 {
    match symbol {
        0..=END => 0,
        265..285 => u32::try_from(symbol.wrapping_sub(261) >> 2).unwrap_or(0).wrapping_add(1),
        _ => 1,
    }
}

/// The codes of a block and what it takes with them.
struct Plan {
    lengths: [u8; SYMBOLS],
    /// Lengths of codes as they are written: a symbol, bits that follow it, and their number. Source: §3.2.7.
    written: Vec<(u8, u8, u8)>,
    /// Lengths of the codes of those symbols.
    of_written: [u8; 19],
    /// Bits of the block.
    bits: u64,
}

/// The order in which the lengths of the codes of lengths are written. Source: §3.2.7.
const ORDER: [u8; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

impl Plan {
    fn new(counts: &[u32; SYMBOLS]) -> Self {
        let lengths = huffman::lengths(counts, SYMBOL_BITS);
        let used = lengths.iter().rposition(|length| *length > 0).unwrap_or(END);
        let mut written = Vec::with_capacity(SYMBOLS);
        // One distance follows, that of the byte before: it has a bit even where it is not used.
        for equal in lengths.get(..=used).unwrap_or_default().chunk_by(|a, b| a == b).chain([&[1u8][..]]) {
            write_lengths(&mut written, equal);
        }
        let mut counts_of_written = [0; 19];
        for (symbol, ..) in &written {
            count(&mut counts_of_written, usize::from(*symbol));
        }
        let of_written = huffman::lengths(&counts_of_written, LENGTH_BITS);
        let length = |symbol: u8| of_written.get(usize::from(symbol)).copied().unwrap_or(0);
        let header = written.iter().map(|(symbol, _, bits)| u64::from(length(*symbol)).wrapping_add((*bits).into()));
        let symbols = counts.iter().zip(lengths).enumerate().map(|(symbol, (count, length))| {
            u64::from(*count).wrapping_mul(u64::from(length).wrapping_add(bits_after(symbol).into()))
        });
        let bits = header.chain(symbols).fold(3 + 14 + 3 * 19, u64::wrapping_add);
        Self { lengths, written, of_written, bits }
    }

    /// The rest of a block that holds `text`.
    fn write(&self, bits: &mut Bits<'_>, text: &Text<'_>) {
        let used = self.lengths.iter().rposition(|length| *length > 0).unwrap_or(END);
        bits.put(2, 2);
        bits.put(used.wrapping_sub(END) as u64, 5);
        bits.put(0, 5);
        bits.put(19 - 4, 4);
        bits.flush();
        for symbol in ORDER {
            bits.put(self.of_written.get(usize::from(symbol)).copied().unwrap_or(0).into(), 3);
            bits.flush();
        }
        let codes = huffman::codes(&self.of_written);
        for (symbol, extra, extra_bits) in &self.written {
            bits.code(codes.get(usize::from(*symbol)).copied().unwrap_or_default());
            bits.put((*extra).into(), (*extra_bits).into());
            bits.flush();
        }
        let codes = huffman::codes(&self.lengths);
        text.tokens(|token| match token {
            Token::Bytes(bytes) => bits.literals(&codes, bytes),
            Token::Run(length) => {
                let run = Run::of(length);
                bits.code(code_of(&codes, run.symbol));
                // The distance's own bit is a zero.
                bits.put(run.extra, bits_after(run.symbol));
                bits.flush();
            }
        });
        bits.code(code_of(&codes, END));
        bits.flush();
    }
}

/// Appends what stands for these lengths, which are all the same. Source: §3.2.7.
fn write_lengths(written: &mut Vec<(u8, u8, u8)>, equal: &[u8]) {
    let Some(length) = equal.first().copied() else { return };
    let mut left = equal.len();
    if length > 0 {
        written.push((length, 0, 0));
        left = left.wrapping_sub(1);
    }
    while left > 0 {
        let (some, entry) = match (length, left) {
            (0, 11..) => {
                let some = left.min(138);
                (some, (18, some.wrapping_sub(11), 7))
            }
            (0, 3..) => (left, (17, left.wrapping_sub(3), 3)),
            (1.., 3..) => {
                let some = left.min(6);
                (some, (16, some.wrapping_sub(3), 2))
            }
            _ => (1, (length, 0, 0)),
        };
        written.push((entry.0, u8::try_from(entry.1).unwrap_or(0), entry.2));
        left = left.wrapping_sub(some);
    }
}
