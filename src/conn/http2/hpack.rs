//! Scans the fields that a client adds to the HPACK dynamic table (RFC 7541), to determine how much memory the table
//! retains.
//!
//! hyper keeps the value of a pseudo-header as a slice of the buffer in which the value was received or decoded. The
//! table thus retains the whole buffer. If a client sends 8 KiB between two pseudo-headers, a table of 4 KiB retains
//! 800 KiB.

use std::collections::VecDeque;

/// Maximum number of entries in the dynamic table. The table has 4,096 bytes (RFC 9113, section 6.5.2). An entry takes
/// 32 bytes in addition to its name and value (RFC 7541, section 4.1).
const MAX_ENTRIES: usize = 4096 / (32 + 1);

/// Number of buffer bytes that hyper allocates for each byte it receives between two entries: 2 in receive buffers and
/// 3.6 in decoding buffers, rounded up.
///
/// A receive buffer is released when the next frame does not fit, so at most half of it is unused. A decoding buffer
/// has room for twice the encoded string, and a byte of Huffman code yields at most 1.6 bytes.
const RETAINED_PER_BYTE: usize = 6;

/// Minimum length of a header list for the estimate of its buffers. An entry retains at most the buffers of its own
/// header list. The buffers of a shorter list may be as large as those of a list of this length.
const MIN_LIST_BUFFER_BYTES: usize = 16 << 10;

/// Scans the header lists of a connection.
#[derive(Debug, Default)]
pub(super) struct HpackTableScanner {
    state: HpackState,
    /// True if the current field is added to the table when its value ends. Meaningless for a field without strings.
    is_added: bool,
    /// True if the current string is the name of the field, false if it is the value.
    is_name: bool,
    /// True if the table would retain a buffer for the current field.
    retains_buffer: bool,
    /// Number of bytes passed to hyper since the last entry was added.
    bytes_since_entry: usize,
    /// Number of bytes of the current header list that have been scanned.
    list_bytes: usize,
    /// Number of fields of the current header list that have been scanned.
    pub(super) list_fields: usize,
    /// Upper bounds of the memory that the entries retain, starting with the oldest entry.
    entry_retained_bytes: VecDeque<u32>,
    /// Upper bound of the memory that all entries retain.
    pub(super) retained_bytes: usize,
}

/// State of the parser: the element to which the next byte of a header list belongs.
#[derive(Debug, Default, Clone, Copy)]
enum HpackState {
    #[default]
    FieldStart,
    /// Further bytes of an integer (section 5.1).
    Integer { value: usize, shift: u32, role: IntegerRole },
    /// Length of a string (section 5.2).
    StringLength,
    /// First byte of a string.
    StringStart { remaining_bytes: usize, is_huffman: bool },
    /// Further bytes of a string.
    StringRest { remaining_bytes: usize },
}

#[derive(Debug, Clone, Copy)]
enum IntegerRole {
    /// A field without strings, or a table size update.
    NoString,
    /// Index of a field's name; 0 if the name follows as a string.
    NameIndex,
    StringLength {
        is_huffman: bool,
    },
}

impl HpackTableScanner {
    /// Counts bytes of any frame that are passed to hyper.
    pub(super) fn count_forwarded(&mut self, bytes: usize) {
        self.bytes_since_entry = self.bytes_since_entry.saturating_add(bytes);
    }

    /// Begins a header list.
    pub(super) fn begin_list(&mut self) {
        self.state = HpackState::FieldStart;
        self.list_bytes = 0;
        self.list_fields = 0;
    }

    /// Scans the next `bytes` of the header list.
    pub(super) fn scan(&mut self, mut bytes: &[u8]) {
        self.list_bytes = self.list_bytes.saturating_add(bytes.len());
        while let Some((first, rest)) = bytes.split_first() {
            if let HpackState::StringRest { remaining_bytes } = self.state {
                let consumed = remaining_bytes.min(bytes.len());
                bytes = bytes.get(consumed..).unwrap_or_default();
                self.state = self.after_string_bytes(remaining_bytes - consumed);
            } else {
                self.state = self.next_state(*first);
                bytes = rest;
            }
        }
    }

    fn next_state(&mut self, byte: u8) -> HpackState {
        match self.state {
            HpackState::FieldStart => {
                self.list_fields += 1;
                // Sections 6.1, 6.2.1 and 6.3, then 6.2.2 and 6.2.3.
                let (prefix_bits, role) = match byte {
                    0x80.. => (7, IntegerRole::NoString),
                    0x40..0x80 => (6, IntegerRole::NameIndex),
                    0x20..0x40 => (5, IntegerRole::NoString),
                    0..0x20 => (4, IntegerRole::NameIndex),
                };
                self.is_added = byte >= 0x40;
                self.start_integer(byte, prefix_bits, role)
            }
            HpackState::Integer { value, shift, role } => {
                let value = value.saturating_add(usize::from(byte & 0x7f).checked_shl(shift).unwrap_or(usize::MAX));
                if byte & 0x80 != 0 {
                    return HpackState::Integer { value, shift: shift.saturating_add(7), role };
                }
                self.after_integer(value, role)
            }
            HpackState::StringLength => {
                self.start_integer(byte, 7, IntegerRole::StringLength { is_huffman: byte & 0x80 != 0 })
            }
            HpackState::StringStart { remaining_bytes, is_huffman } => {
                if self.is_name {
                    // A pseudo-header. The Huffman code of `:` is 1011100 (appendix B).
                    self.retains_buffer = if is_huffman { byte >> 1 == 0b101_1100 } else { byte == b':' };
                }
                self.after_string_bytes(remaining_bytes - 1)
            }
            // Not reached: `scan` consumes these bytes itself.
            HpackState::StringRest { remaining_bytes } => self.after_string_bytes(remaining_bytes - 1),
        }
    }

    /// Begins an integer in the last `bits` of `byte`.
    fn start_integer(&mut self, byte: u8, bits: u8, role: IntegerRole) -> HpackState {
        let max_prefix = (1_usize << bits) - 1;
        let value = usize::from(byte) & max_prefix;
        if value == max_prefix {
            HpackState::Integer { value, shift: 0, role }
        } else {
            self.after_integer(value, role)
        }
    }

    fn after_integer(&mut self, value: usize, role: IntegerRole) -> HpackState {
        match role {
            IntegerRole::NoString => HpackState::FieldStart,
            IntegerRole::NameIndex => {
                self.is_name = value == 0;
                // Of the names in the static table (appendix A), hyper keeps the values of `:authority`, `:path` and
                // `:scheme` as slices of the buffer. The scanner does not know the names in the dynamic table and
                // assumes the worst.
                self.retains_buffer = matches!(value, 1 | 4..=7 | 62..);
                HpackState::StringLength
            }
            IntegerRole::StringLength { .. } if value == 0 => self.after_string_bytes(0),
            IntegerRole::StringLength { is_huffman } => HpackState::StringStart { remaining_bytes: value, is_huffman },
        }
    }

    /// Returns the state after some bytes of a string that has `remaining_bytes` more.
    fn after_string_bytes(&mut self, remaining_bytes: usize) -> HpackState {
        if remaining_bytes > 0 {
            return HpackState::StringRest { remaining_bytes };
        }
        if self.is_name {
            self.is_name = false;
            return HpackState::StringLength;
        }
        if self.is_added {
            self.add_entry(self.retains_buffer);
        }
        HpackState::FieldStart
    }

    /// Adds an entry to the table and removes the oldest one from a full table.
    fn add_entry(&mut self, retains_buffer: bool) {
        if self.entry_retained_bytes.len() == MAX_ENTRIES
            && let Some(oldest) = self.entry_retained_bytes.pop_front()
        {
            self.retained_bytes -= oldest as usize;
        }
        if !retains_buffer {
            self.entry_retained_bytes.push_back(0);
            return;
        }
        let buffered_bytes = self.bytes_since_entry.min(self.list_bytes.max(MIN_LIST_BUFFER_BYTES));
        let bytes = u32::try_from(buffered_bytes.saturating_mul(RETAINED_PER_BYTE)).unwrap_or(u32::MAX);
        self.entry_retained_bytes.push_back(bytes);
        self.retained_bytes += bytes as usize;
        self.bytes_since_entry = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan_lists(lists: &[&[u8]]) -> HpackTableScanner {
        let mut scanner = HpackTableScanner::default();
        for list in lists {
            scanner.begin_list();
            scanner.count_forwarded(list.len());
            scanner.scan(list);
        }
        scanner
    }

    /// Returns the number of entries that retain buffers.
    fn retaining_entries(scanner: &HpackTableScanner) -> usize {
        scanner.entry_retained_bytes.iter().filter(|bytes| **bytes > 0).count()
    }

    /// `:path` in Huffman code (RFC 7541, appendix B).
    const HUFFMAN_PATH: &[u8] = &[0x84, 0xb9, 0x58, 0xd3, 0x3f];

    #[test]
    fn only_added_pseudo_headers_retain_buffers() {
        for (list, entries) in [
            (&[0x82, 0x86, 0x84][..], 0),
            (b"\x04\x01/\x14\x01/", 0),
            (b"\x44\x01/", 1),
            (b"\x41\x01x\x46\x01x\x47\x01x\x45\x01x", 4),
            // `:method`, `accept`, and a table size update.
            (b"\x42\x03PUT\x53\x01*\x3f\xe1\x1f", 0),
            // An entry of the dynamic table, by an index of one byte and of more.
            (b"\x7e\x01x\x7f\x00\x01x", 2),
            (b"\x40\x05:path\x01/\x40\x01x\x01/\x00\x05:path\x01/", 1),
            (&[&[0x40], HUFFMAN_PATH, b"\x81\x63"].concat(), 1),
            (b"\x40\x81\xf3\x81\x63", 0),
            (b"\x44\x00\x40\x02:x\x00", 2),
            (&[b"\x44\x7f\x80\x01".as_slice(), &[b'a'; 255], b"\x44\x01/"].concat(), 2),
        ] {
            let scanner = scan_lists(&[list]);
            let mut bytewise = HpackTableScanner::default();
            bytewise.begin_list();
            for byte in list {
                bytewise.count_forwarded(1);
                bytewise.scan(&[*byte]);
            }
            assert_eq!(bytewise.entry_retained_bytes.len(), scanner.entry_retained_bytes.len(), "{list:x?}");
            assert_eq!(retaining_entries(&bytewise), entries, "{list:x?} byte by byte");
        }
    }

    #[test]
    fn a_truncated_list_does_not_continue_in_the_next() {
        assert_eq!(scan_lists(&[b"\x44\x05/a", b"\x82\x41\x01x"]).entry_retained_bytes.len(), 1);
    }

    #[test]
    fn bytes_between_entries_count_up_to_the_length_of_a_buffer() {
        let mut scanner = scan_lists(&[b"\x44\x01/"]);
        scanner.count_forwarded(1000);
        scanner.begin_list();
        scanner.count_forwarded(3);
        scanner.scan(b"\x44\x01/");
        assert_eq!(scanner.retained_bytes, 6 * (3 + 1003));
        scanner.count_forwarded(1 << 30);
        scanner.scan(b"\x44\x01/");
        assert_eq!(scanner.retained_bytes, 6 * (3 + 1003 + MIN_LIST_BUFFER_BYTES));
    }

    #[test]
    fn old_entries_are_evicted() {
        let scanner = scan_lists(&[&b"\x44\x01/".repeat(10_000)]);
        assert_eq!(scanner.entry_retained_bytes.len(), MAX_ENTRIES);
        assert_eq!(scanner.retained_bytes, 0, "all of one list");
    }

    #[test]
    fn nothing_overflows() {
        let mut scanner = scan_lists(&[&[&b"\x44"[..], &[0xff; 100]].concat(), &[0x7f; 100], &[0xff; 100]]);
        scanner.count_forwarded(usize::MAX);
        scanner.scan(b"\x44\x01/");
    }
}
