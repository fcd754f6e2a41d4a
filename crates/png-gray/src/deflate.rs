//! A deflate encoder for pictures. It encodes each block with its own Huffman codes. Of all repetitions, it finds only
//! runs of one byte: noise has no repetitions, and in other pictures, PNG's filters turn repetitions into runs.
//!
//! Source: RFC 1951.

use crate::huffman::{self, HuffmanCode};

/// Maximum number of bytes in a block. A stored block can hold this many, and buffers of this size are so small that
/// allocators do not map them from the system each time.
pub(crate) const BLOCK_BYTES: usize = 60 * 1024;

/// Maximum number of bytes that a block adds to its content.
pub(crate) const BLOCK_EXTRA_BYTES: usize = 6;

/// Number of symbols: bytes, the end of a block, and lengths of runs.
const SYMBOLS: usize = 286;
const END_OF_BLOCK: usize = 256;

/// Number of codes that are collected before whole bytes are written.
const CODES_PER_FLUSH: usize = 5;

/// Maximum length of a symbol's code in bits. [`CODES_PER_FLUSH`] codes and the rest of a byte fit into 64 bits.
const MAX_SYMBOL_BITS: usize = 11;

/// Maximum length of a code for code lengths, in bits.
const MAX_CODE_LENGTH_BITS: usize = 7;

/// Lengths of the runs that a single code can encode.
const RUN_BYTES: std::ops::RangeInclusive<usize> = 3..=258;

/// Runs are searched only if more than 1/64 of the groups of eight bytes in a block repeat a single byte.
const GROUPS_PER_RUN: usize = 64;

/// Appends a block of `bytes`, at most [`BLOCK_BYTES`]. After the last block and after an empty one, the stream ends at
/// a byte boundary.
///
/// `pending` holds the bits of the incomplete byte before the block, and their number. Returns the same for the
/// incomplete byte after the block.
pub(crate) fn write_block(out: &mut Vec<u8>, pending: (u64, u32), bytes: &[u8], is_last: bool) -> (u64, u32) {
    let has_runs = has_runs(bytes);
    let huffman = DynamicHuffman::new(&symbol_counts(bytes, has_runs));
    let is_coded = !bytes.is_empty() && huffman.total_bits < (bytes.len().saturating_add(4) as u64).saturating_mul(8);
    let reserved_bytes = if is_coded { usize::try_from(huffman.total_bits >> 3).unwrap_or(0) } else { bytes.len() };
    let start = out.len();
    // Bits are written in words of 8 bytes. The next word overwrites the bytes of a word that hold no bits yet.
    out.resize(start.saturating_add(reserved_bytes).saturating_add(24), 0);
    let mut bits = BitWriter {
        buffer: out.get_mut(start..).unwrap_or_default(),
        position: 0,
        word: pending.0,
        bit_count: pending.1,
    };
    bits.put(u64::from(is_last), 1);
    if is_coded {
        huffman.write(&mut bits, bytes, has_runs);
    } else {
        bits.put_stored(bytes);
    }
    if is_last {
        bits.align_to_byte();
    }
    let end = start.saturating_add(bits.position);
    let pending = (bits.word, bits.bit_count);
    out.truncate(end);
    pending
}

/// Collects bits and writes them as bytes, lowest bit first.
struct BitWriter<'a> {
    buffer: &'a mut [u8],
    position: usize,
    word: u64,
    bit_count: u32,
}

impl BitWriter<'_> {
    /// Adds `count` bits. The writer must not hold more than 64 bits afterwards.
    fn put(&mut self, bits: u64, count: u32) {
        self.word |= bits.wrapping_shl(self.bit_count);
        self.bit_count = self.bit_count.wrapping_add(count);
    }

    fn put_code(&mut self, code: HuffmanCode) {
        self.put(code.bits.into(), code.length.into());
    }

    /// Writes all whole bytes. The writer then holds at most 7 bits.
    fn flush(&mut self) {
        if let Some(slot) = self.buffer.get_mut(self.position..).and_then(<[u8]>::first_chunk_mut) {
            *slot = self.word.to_le_bytes();
        }
        self.position = self.position.wrapping_add((self.bit_count >> 3) as usize);
        self.word = self.word.wrapping_shr(self.bit_count & !7);
        self.bit_count &= 7;
    }

    /// Adds zero bits up to the end of the current byte.
    fn align_to_byte(&mut self) {
        self.flush();
        if self.bit_count > 0 {
            self.bit_count = 8;
            self.flush();
        }
    }

    /// Writes a stored block that contains `bytes`, except for its first bit, which the caller has written. Source: RFC
    /// 1951 §3.2.4.
    fn put_stored(&mut self, bytes: &[u8]) {
        self.put(0, 2);
        self.align_to_byte();
        let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        self.put(length.into(), 16);
        self.put((!length).into(), 16);
        self.flush();
        if let Some(slot) = self.buffer.get_mut(self.position..).and_then(|rest| rest.get_mut(..bytes.len())) {
            slot.copy_from_slice(bytes);
        }
        self.position = self.position.wrapping_add(bytes.len());
    }

    fn put_literals(&mut self, codes: &[HuffmanCode; SYMBOLS], bytes: &[u8]) {
        let (groups, remainder) = bytes.as_chunks::<CODES_PER_FLUSH>();
        for group in groups {
            for byte in group {
                self.put_code(code_of(codes, (*byte).into()));
            }
            self.flush();
        }
        for byte in remainder {
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

/// Returns true if enough groups of eight bytes repeat a single byte for a search for runs to pay off.
fn has_runs(bytes: &[u8]) -> bool {
    let groups = bytes.as_chunks::<8>().0;
    let is_uniform = |group: &[u8; 8]| {
        let group = u64::from_le_bytes(*group);
        usize::from(group == group.rotate_left(8))
    };
    let uniform_groups = groups.iter().map(is_uniform).fold(0, usize::wrapping_add);
    uniform_groups.saturating_mul(GROUPS_PER_RUN) > groups.len()
}

/// Passes the tokens of a block to `emit` in order. Runs shorter than eight bytes remain literals.
#[inline]
fn tokens<'a>(bytes: &'a [u8], has_runs: bool, mut emit: impl FnMut(DeflateToken<'a>)) {
    if !has_runs {
        return emit(DeflateToken::Literals(bytes));
    }
    let mut remaining = bytes;
    let mut previous = None;
    while let Some((group, after)) = remaining.split_first_chunk::<8>() {
        if previous.is_some_and(|byte| [byte; 8] == *group) {
            let groups = remaining.as_chunks().0.iter().take_while(|other| *other == group).count();
            let (_, after) = remaining.split_at_checked(groups.wrapping_mul(8)).unwrap_or_default();
            let extra_bytes = after.iter().take_while(|byte| previous == Some(**byte)).count();
            emit_run(groups.wrapping_mul(8).wrapping_add(extra_bytes), remaining, &mut emit);
            remaining = after.get(extra_bytes..).unwrap_or_default();
        } else {
            // If a run begins within these eight bytes, the literals end there.
            let [.., last] = *group;
            let difference = u64::from_le_bytes(*group) ^ u64::from_le_bytes([last; 8]);
            let literal_count = 9usize.wrapping_sub((difference.leading_zeros() >> 3) as usize);
            let starts_run = remaining.get(literal_count..).and_then(<[u8]>::first_chunk) == Some(&[last; 8]);
            let (bytes, after) = if starts_run {
                remaining.split_at_checked(literal_count).unwrap_or((remaining, &[]))
            } else {
                (group.as_slice(), after)
            };
            emit(DeflateToken::Literals(bytes));
            previous = Some(last);
            remaining = after;
        }
    }
    emit(DeflateToken::Literals(remaining));
}

/// Returns how often each symbol occurs in a block.
fn symbol_counts(bytes: &[u8], has_runs: bool) -> [u32; SYMBOLS] {
    // Adjacent bytes are counted in different tables, because successive increments of the same counter would have to
    // wait for each other.
    let mut byte_counts = [[0u32; 256]; 4];
    let mut counts = [0; SYMBOLS];
    tokens(bytes, has_runs, |token| match token {
        DeflateToken::Literals(literals) => {
            let (groups, remainder) = literals.as_chunks::<4>();
            for group in groups {
                for (table, byte) in byte_counts.iter_mut().zip(group) {
                    increment(table, (*byte).into());
                }
            }
            for (table, byte) in byte_counts.iter_mut().zip(remainder) {
                increment(table, (*byte).into());
            }
        }
        DeflateToken::Run(length) => increment(&mut counts, length_code(length).0),
    });
    for table in byte_counts {
        counts.iter_mut().zip(table).for_each(|(sum, count)| *sum = sum.wrapping_add(count));
    }
    increment(&mut counts, END_OF_BLOCK);
    counts
}

fn increment<const N: usize>(counts: &mut [u32; N], symbol: usize) {
    if let Some(count) = counts.get_mut(symbol) {
        *count = count.wrapping_add(1);
    }
}

/// Passes the run of `length` bytes at the start of `bytes` to `emit`, as tokens of valid lengths.
fn emit_run<'a>(length: usize, bytes: &'a [u8], emit: &mut impl FnMut(DeflateToken<'a>)) {
    let mut remaining = length;
    while remaining >= *RUN_BYTES.start() {
        let run_length = remaining.min(*RUN_BYTES.end());
        emit(DeflateToken::Run(run_length));
        remaining = remaining.wrapping_sub(run_length);
    }
    emit(DeflateToken::Literals(bytes.get(..remaining).unwrap_or_default()));
}

/// Returns the code for a run of 3 to 258 bytes: a symbol and the extra bits that follow it. Source: RFC 1951 §3.2.5.
#[inline]
fn length_code(length: usize) -> (usize, u64) {
    let offset = length.wrapping_sub(*RUN_BYTES.start());
    match offset {
        255 => (285, 0),
        0..8 => (offset.wrapping_add(257), 0),
        // There are four symbols for each power of two.
        _ => {
            let extra_bits = offset.ilog2().wrapping_sub(2);
            let quarter = offset.wrapping_shr(extra_bits) & 3;
            let symbol = (extra_bits as usize).wrapping_mul(4).wrapping_add(261).wrapping_add(quarter);
            let extra = offset & !usize::MAX.wrapping_shl(extra_bits);
            (symbol, extra as u64)
        }
    }
}

/// Number of bits that follow a symbol, including the bit for the distance.
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
    /// Code lengths in encoded form: a symbol, extra bits, and the number of extra bits. Source: RFC 1951 §3.2.7.
    encoded_lengths: Vec<(u8, u8, u8)>,
    /// Lengths of the codes for the symbols of `encoded_lengths`.
    code_length_lengths: [u8; 19],
    /// Size of the block in bits.
    total_bits: u64,
}

/// Order in which the lengths of the code length codes are written. Source: RFC 1951 §3.2.7.
const CODE_LENGTH_ORDER: [u8; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

impl DynamicHuffman {
    fn new(counts: &[u32; SYMBOLS]) -> Self {
        let lengths = huffman::code_lengths(counts, MAX_SYMBOL_BITS);
        let last_symbol = lengths.iter().rposition(|length| *length > 0).unwrap_or(END_OF_BLOCK);
        let mut encoded_lengths = Vec::with_capacity(SYMBOLS);
        // The code lengths are followed by the length of the only distance code, for distance 1. It is 1 even if no run
        // occurs.
        for run in lengths.get(..=last_symbol).unwrap_or_default().chunk_by(|a, b| a == b).chain([&[1u8][..]]) {
            encode_lengths(&mut encoded_lengths, run);
        }
        let mut code_length_counts = [0; 19];
        for (symbol, ..) in &encoded_lengths {
            increment(&mut code_length_counts, usize::from(*symbol));
        }
        let code_length_lengths = huffman::code_lengths(&code_length_counts, MAX_CODE_LENGTH_BITS);
        let length = |symbol: u8| code_length_lengths.get(usize::from(symbol)).copied().unwrap_or(0);
        let header_bits =
            encoded_lengths.iter().map(|(symbol, _, bits)| u64::from(length(*symbol)).wrapping_add((*bits).into()));
        let symbol_bits = counts.iter().zip(lengths).enumerate().map(|(symbol, (count, length))| {
            u64::from(*count).wrapping_mul(u64::from(length).wrapping_add(extra_bit_count(symbol).into()))
        });
        let total_bits = header_bits.chain(symbol_bits).fold(3 + 14 + 3 * 19, u64::wrapping_add);
        Self { lengths, encoded_lengths, code_length_lengths, total_bits }
    }

    /// Writes a block that contains `bytes`, except for its first bit, which the caller has written.
    fn write(&self, bits: &mut BitWriter<'_>, bytes: &[u8], has_runs: bool) {
        let last_symbol = self.lengths.iter().rposition(|length| *length > 0).unwrap_or(END_OF_BLOCK);
        bits.put(2, 2);
        bits.put(last_symbol.wrapping_sub(END_OF_BLOCK) as u64, 5);
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
        tokens(bytes, has_runs, |token| match token {
            DeflateToken::Literals(bytes) => bits.put_literals(&codes, bytes),
            DeflateToken::Run(length) => {
                let (symbol, extra) = length_code(length);
                bits.put_code(code_of(&codes, symbol));
                // The last of these bits, a zero, is the distance code.
                bits.put(extra, extra_bit_count(symbol));
                bits.flush();
            }
        });
        bits.put_code(code_of(&codes, END_OF_BLOCK));
        bits.flush();
    }
}

/// Appends the run-length encoding of `run`, whose code lengths are all the same. Source: RFC 1951 §3.2.7.
fn encode_lengths(encoded: &mut Vec<(u8, u8, u8)>, run: &[u8]) {
    let Some(length) = run.first().copied() else { return };
    let mut remaining = run.len();
    if length > 0 {
        encoded.push((length, 0, 0));
        remaining = remaining.wrapping_sub(1);
    }
    while remaining > 0 {
        let (count, entry) = match (length, remaining) {
            (0, 11..) => {
                let count = remaining.min(138);
                (count, (18, count.wrapping_sub(11), 7))
            }
            (0, 3..) => (remaining, (17, remaining.wrapping_sub(3), 3)),
            (1.., 3..) => {
                let count = remaining.min(6);
                (count, (16, count.wrapping_sub(3), 2))
            }
            _ => (1, (length, 0, 0)),
        };
        encoded.push((entry.0, u8::try_from(entry.1).unwrap_or(0), entry.2));
        remaining = remaining.wrapping_sub(count);
    }
}
