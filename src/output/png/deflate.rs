//! A deflate encoder for pictures: Huffman codes made for each block, and runs of one byte. It does not search for
//! other repetitions. Noise has none, and filters turn those of other pictures into runs.
//!
//! Source: RFC 1951.

use super::huffman::{self, HuffmanCode};

/// Maximum number of bytes in a block. A stored block can hold as many, and `allocator.rs` does not take buffers of
/// this size from the system.
pub(super) const BLOCK_BYTES: usize = 60 * 1024;

/// Maximum number of bytes that a block adds to its content.
pub(super) const BLOCK_EXTRA_BYTES: usize = 6;

/// Number of symbols: bytes, the end of a block, and lengths of runs.
const SYMBOLS: usize = 286;
const END_OF_BLOCK: usize = 256;

/// Number of codes that are collected before whole bytes are written.
const CODES_PER_FLUSH: usize = 5;

/// Maximum length of a symbol's code in bits. [`CODES_PER_FLUSH`] codes and the rest of a byte fit into 64 bits.
const MAX_SYMBOL_BITS: usize = 11;

/// Maximum length of a code for code lengths, in bits.
const MAX_CODE_LENGTH_BITS: usize = 7;

/// Lengths of runs that have a code.
const RUN_BYTES: std::ops::RangeInclusive<usize> = 3..=258;

/// Runs are searched only if more than one in this many groups of eight bytes consists of a single byte value.
const GROUPS_PER_RUN: usize = 64;

/// Encoder of a stream of blocks. It holds the bits of the last byte while that is incomplete.
#[derive(Debug, Default)]
pub(super) struct DeflateEncoder {
    word: u64,
    held_bits: u32,
}

impl DeflateEncoder {
    /// Appends a block of `bytes`, at most [`BLOCK_BYTES`]. After the last block and after an empty one, the stream
    /// ends at a byte boundary.
    pub(super) fn write_block(&mut self, out: &mut Vec<u8>, bytes: &[u8], is_last: bool) {
        let text = BlockInput::new(bytes);
        let plan = DynamicHuffman::new(&text.counts());
        let is_coded = !bytes.is_empty() && plan.total_bits < (bytes.len().saturating_add(4) as u64).saturating_mul(8);
        let room_bytes = if is_coded { usize::try_from(plan.total_bits >> 3).unwrap_or(0) } else { bytes.len() };
        let start = out.len();
        // Words are written whole, and each one overwrites the unused bytes of the word before.
        out.resize(start.saturating_add(room_bytes).saturating_add(24), 0);
        let mut bits = BitWriter {
            buffer: out.get_mut(start..).unwrap_or_default(),
            position: 0,
            word: self.word,
            held_bits: self.held_bits,
        };
        bits.put(u64::from(is_last), 1);
        if is_coded {
            plan.write(&mut bits, &text);
        } else {
            bits.put_stored(bytes);
        }
        if is_last {
            bits.align_to_byte();
        }
        *self = Self { word: bits.word, held_bits: bits.held_bits };
        let end = start.saturating_add(bits.position);
        out.truncate(end);
    }
}

/// Collects bits and writes them as bytes, lowest bit first.
struct BitWriter<'a> {
    buffer: &'a mut [u8],
    position: usize,
    word: u64,
    held_bits: u32,
}

impl BitWriter<'_> {
    /// Adds `count` bits. Together with the bits held they must not exceed 64.
    fn put(&mut self, bits: u64, count: u32) {
        self.word |= bits.wrapping_shl(self.held_bits);
        self.held_bits = self.held_bits.wrapping_add(count);
    }

    fn put_code(&mut self, code: HuffmanCode) {
        self.put(code.bits.into(), code.length.into());
    }

    /// Writes all whole bytes. At most 7 bits are held afterwards.
    fn flush(&mut self) {
        if let Some(room) = self.buffer.get_mut(self.position..).and_then(<[u8]>::first_chunk_mut) {
            *room = self.word.to_le_bytes();
        }
        self.position = self.position.wrapping_add((self.held_bits >> 3) as usize);
        self.word = self.word.wrapping_shr(self.held_bits & !7);
        self.held_bits &= 7;
    }

    /// Adds zero bits up to the end of the current byte.
    fn align_to_byte(&mut self) {
        self.flush();
        if self.held_bits > 0 {
            self.held_bits = 8;
            self.flush();
        }
    }

    /// Writes the rest of a stored block that contains `bytes`. Source: §3.2.4.
    fn put_stored(&mut self, bytes: &[u8]) {
        self.put(0, 2);
        self.align_to_byte();
        let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        self.put(length.into(), 16);
        self.put((!length).into(), 16);
        self.flush();
        if let Some(room) = self.buffer.get_mut(self.position..).and_then(|room| room.get_mut(..bytes.len())) {
            room.copy_from_slice(bytes);
        }
        self.position = self.position.wrapping_add(bytes.len());
    }

    fn put_literals(&mut self, codes: &[HuffmanCode; SYMBOLS], bytes: &[u8]) {
        let (groups, others) = bytes.as_chunks::<CODES_PER_FLUSH>();
        for group in groups {
            for byte in group {
                self.put_code(code_of(codes, (*byte).into()));
            }
            self.flush();
        }
        for byte in others {
            self.put_code(code_of(codes, (*byte).into()));
        }
        self.flush();
    }
}

fn code_of(codes: &[HuffmanCode; SYMBOLS], symbol: usize) -> HuffmanCode {
    codes.get(symbol).copied().unwrap_or_default()
}

/// Part of a block's content.
enum DeflateToken<'a> {
    Literals(&'a [u8]),
    /// Repeats the previous byte this many times.
    Run(usize),
}

/// Uncompressed bytes of a block, with a flag that tells if runs are searched.
struct BlockInput<'a> {
    bytes: &'a [u8],
    has_runs: bool,
}

impl<'a> BlockInput<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        let groups = bytes.as_chunks::<8>().0;
        let alike = |group: &[u8; 8]| {
            let group = u64::from_le_bytes(*group);
            usize::from(group == group.rotate_left(8))
        };
        let runs = groups.iter().map(alike).fold(0, usize::wrapping_add);
        Self { bytes, has_runs: runs.saturating_mul(GROUPS_PER_RUN) > groups.len() }
    }

    /// Passes the tokens to `take` in order. Runs shorter than eight bytes remain literals.
    #[inline]
    fn tokens(&self, mut take: impl FnMut(DeflateToken<'a>)) {
        if !self.has_runs {
            return take(DeflateToken::Literals(self.bytes));
        }
        let mut rest = self.bytes;
        let mut before = None;
        while let Some((group, after)) = rest.split_first_chunk::<8>() {
            if before.is_some_and(|byte| [byte; 8] == *group) {
                let groups = rest.as_chunks().0.iter().take_while(|other| *other == group).count();
                let (_, after) = rest.split_at_checked(groups.wrapping_mul(8)).unwrap_or_default();
                let more = after.iter().take_while(|byte| before == Some(**byte)).count();
                emit_run(groups.wrapping_mul(8).wrapping_add(more), rest, &mut take);
                rest = after.get(more..).unwrap_or_default();
            } else {
                // The literals end where a run begins, if one begins within these eight bytes.
                let [.., last] = *group;
                let others = u64::from_le_bytes(*group) ^ u64::from_le_bytes([last; 8]);
                let kept = 9usize.wrapping_sub((others.leading_zeros() >> 3) as usize);
                let is_begun = rest.get(kept..).and_then(<[u8]>::first_chunk) == Some(&[last; 8]);
                let (bytes, after) = if is_begun {
                    rest.split_at_checked(kept).unwrap_or((rest, &[]))
                } else {
                    (group.as_slice(), after)
                };
                take(DeflateToken::Literals(bytes));
                before = Some(last);
                rest = after;
            }
        }
        take(DeflateToken::Literals(rest));
    }

    /// Returns how often each symbol occurs.
    fn counts(&self) -> [u32; SYMBOLS] {
        // Adjacent bytes are counted in different tables. Otherwise increments of the same counter would wait for each
        // other.
        let mut bytes = [[0u32; 256]; 4];
        let mut counts = [0; SYMBOLS];
        self.tokens(|token| match token {
            DeflateToken::Literals(text) => {
                let (fours, others) = text.as_chunks::<4>();
                for four in fours {
                    for (counts, byte) in bytes.iter_mut().zip(four) {
                        increment(counts, (*byte).into());
                    }
                }
                for (counts, byte) in bytes.iter_mut().zip(others) {
                    increment(counts, (*byte).into());
                }
            }
            DeflateToken::Run(length) => increment(&mut counts, LengthCode::of(length).symbol),
        });
        for bytes in bytes {
            counts.iter_mut().zip(bytes).for_each(|(sum, count)| *sum = sum.wrapping_add(count));
        }
        increment(&mut counts, END_OF_BLOCK);
        counts
    }
}

fn increment<const N: usize>(counts: &mut [u32; N], symbol: usize) {
    if let Some(count) = counts.get_mut(symbol) {
        *count = count.wrapping_add(1);
    }
}

/// Passes a run of `length` bytes, with which `bytes` begin, to `take` as tokens of valid lengths.
fn emit_run<'a>(length: usize, bytes: &'a [u8], take: &mut impl FnMut(DeflateToken<'a>)) {
    let mut left = length;
    while left >= *RUN_BYTES.start() {
        let some = left.min(*RUN_BYTES.end());
        take(DeflateToken::Run(some));
        left = left.wrapping_sub(some);
    }
    take(DeflateToken::Literals(bytes.get(..left).unwrap_or_default()));
}

/// Code of a run's length: a symbol and the extra bits that follow it. Source: §3.2.5.
struct LengthCode {
    symbol: usize,
    extra: u64,
}

impl LengthCode {
    /// Returns the code of a length from 3 to 258 bytes.
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

/// Number of bits that follow a symbol, including the one of the distance.
fn extra_bit_count(symbol: usize) -> u32 {
    match symbol {
        0..=END_OF_BLOCK => 0,
        265..285 => u32::try_from(symbol.wrapping_sub(261) >> 2).unwrap_or(0).wrapping_add(1),
        _ => 1,
    }
}

/// Codes of a block, and the size of the block when encoded with them.
struct DynamicHuffman {
    lengths: [u8; SYMBOLS],
    /// Code lengths in encoded form: a symbol, extra bits, and the number of extra bits. Source: §3.2.7.
    encoded_lengths: Vec<(u8, u8, u8)>,
    /// Code lengths of those symbols.
    code_length_lengths: [u8; 19],
    /// Size of the block in bits.
    total_bits: u64,
}

/// Order in which the lengths of the code length codes are written. Source: §3.2.7.
const CODE_LENGTH_ORDER: [u8; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

impl DynamicHuffman {
    fn new(counts: &[u32; SYMBOLS]) -> Self {
        let lengths = huffman::code_lengths(counts, MAX_SYMBOL_BITS);
        let used = lengths.iter().rposition(|length| *length > 0).unwrap_or(END_OF_BLOCK);
        let mut encoded_lengths = Vec::with_capacity(SYMBOLS);
        // One distance code follows, that of distance 1. It has one bit even if it is not used.
        for equal in lengths.get(..=used).unwrap_or_default().chunk_by(|a, b| a == b).chain([&[1u8][..]]) {
            encode_lengths(&mut encoded_lengths, equal);
        }
        let mut counts_of_written = [0; 19];
        for (symbol, ..) in &encoded_lengths {
            increment(&mut counts_of_written, usize::from(*symbol));
        }
        let code_length_lengths = huffman::code_lengths(&counts_of_written, MAX_CODE_LENGTH_BITS);
        let length = |symbol: u8| code_length_lengths.get(usize::from(symbol)).copied().unwrap_or(0);
        let header =
            encoded_lengths.iter().map(|(symbol, _, bits)| u64::from(length(*symbol)).wrapping_add((*bits).into()));
        let symbols = counts.iter().zip(lengths).enumerate().map(|(symbol, (count, length))| {
            u64::from(*count).wrapping_mul(u64::from(length).wrapping_add(extra_bit_count(symbol).into()))
        });
        let total_bits = header.chain(symbols).fold(3 + 14 + 3 * 19, u64::wrapping_add);
        Self { lengths, encoded_lengths, code_length_lengths, total_bits }
    }

    /// Writes the rest of a block that contains `text`.
    fn write(&self, bits: &mut BitWriter<'_>, text: &BlockInput<'_>) {
        let used = self.lengths.iter().rposition(|length| *length > 0).unwrap_or(END_OF_BLOCK);
        bits.put(2, 2);
        bits.put(used.wrapping_sub(END_OF_BLOCK) as u64, 5);
        bits.put(0, 5);
        bits.put(19 - 4, 4);
        bits.flush();
        for symbol in CODE_LENGTH_ORDER {
            bits.put(self.code_length_lengths.get(usize::from(symbol)).copied().unwrap_or(0).into(), 3);
            bits.flush();
        }
        let codes = huffman::canonical_codes(&self.code_length_lengths);
        for (symbol, extra, extra_bits) in &self.encoded_lengths {
            bits.put_code(codes.get(usize::from(*symbol)).copied().unwrap_or_default());
            bits.put((*extra).into(), (*extra_bits).into());
            bits.flush();
        }
        let codes = huffman::canonical_codes(&self.lengths);
        text.tokens(|token| match token {
            DeflateToken::Literals(bytes) => bits.put_literals(&codes, bytes),
            DeflateToken::Run(length) => {
                let run = LengthCode::of(length);
                bits.put_code(code_of(&codes, run.symbol));
                // The last of these bits is the distance code, a zero.
                bits.put(run.extra, extra_bit_count(run.symbol));
                bits.flush();
            }
        });
        bits.put_code(code_of(&codes, END_OF_BLOCK));
        bits.flush();
    }
}

/// Appends the run-length encoding of `equal`, whose code lengths are all the same. Source: §3.2.7.
fn encode_lengths(written: &mut Vec<(u8, u8, u8)>, equal: &[u8]) {
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
