//! The fields that a client adds to the dynamic table of HPACK (RFC 7541), as far as they decide how much memory the table
//! holds.
//!
//! The HTTP library keeps the value of a pseudo-header as a part of the buffer that it was received or decoded in, and so
//! the whole buffer. A client that lets 8 KiB lie between two such fields makes a table of 4 KiB hold 800.

use std::collections::VecDeque;

/// Most entries of the dynamic table: 4,096 bytes (RFC 9113, section 6.5.2), of which each entry takes 32, its name and its
/// value (RFC 7541, section 4.1).
const ENTRIES: usize = 4096 / (32 + 1);

/// Memory of buffers for each byte received between two entries. A buffer for what is received is given up when the next
/// frame does not fit, so that at most half is unused: 2. One for what is decoded has room for twice the string, of which
/// Huffman's code yields at most 1.6 bytes for each, and is given up likewise: 3.6.
const HELD_PER_BYTE: usize = 6;

/// An entry holds no more than the buffers of its own header list, and these are not larger than for one of this length.
const SHORT_LIST_BYTES: usize = 16 << 10;

/// Follows the header lists of a connection.
#[derive(Debug, Default)]
pub(super) struct TableScanner {
    step: Step,
    /// Bytes that the library was given since the last entry was added.
    since_last: usize,
    list_bytes: usize,
    list_fields: usize,
    /// Memory that each entry holds at most, the oldest first.
    held: VecDeque<u32>,
    held_bytes: usize,
}

/// What the next byte of a header list belongs to.
#[derive(Debug, Default, Clone, Copy)]
enum Step {
    #[default]
    Field,
    /// Further bytes of an integer (section 5.1).
    Integer {
        value: usize,
        shift: u32,
        of: Integer,
    },
    /// The length of a string (section 5.2).
    Length(Part),
    Text(Text),
}

/// A string of which some bytes are still to come.
#[derive(Debug, Clone, Copy)]
struct Text {
    left: usize,
    part: Part,
    /// Whether the next byte is its first.
    is_first: bool,
    is_huffman: bool,
}

#[derive(Debug, Clone, Copy)]
enum Integer {
    /// Of a field without strings, or of a table's size.
    Whole,
    /// The index of a field's name; 0 where the name follows.
    Name {
        is_added: bool,
    },
    Length {
        part: Part,
        is_huffman: bool,
    },
}

/// Which of a field's strings, and whether the field is added to the table and its value kept as it came.
#[derive(Debug, Clone, Copy)]
enum Part {
    Name { is_added: bool, is_pseudo: bool },
    Value { is_added: bool, is_held: bool },
}

impl TableScanner {
    /// Memory that the table's entries hold at most.
    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Fields of the current header list so far.
    pub(super) fn list_fields(&self) -> usize {
        self.list_fields
    }

    /// The library is given so many bytes of any frames.
    pub(super) fn pass(&mut self, bytes: usize) {
        self.since_last = self.since_last.saturating_add(bytes);
    }

    /// A header list begins.
    pub(super) fn begin_list(&mut self) {
        (self.step, self.list_bytes, self.list_fields) = (Step::Field, 0, 0);
    }

    /// `bytes` follow in the header list.
    pub(super) fn scan(&mut self, mut bytes: &[u8]) {
        self.list_bytes = self.list_bytes.saturating_add(bytes.len());
        while let Some((first, rest)) = bytes.split_first() {
            if let Step::Text(text @ Text { left, is_first: false, .. }) = self.step {
                let passed = left.min(bytes.len());
                bytes = bytes.get(passed..).unwrap_or_default();
                self.step = self.after_text(Text { left: left - passed, ..text });
                continue;
            }
            self.step = self.next(*first);
            bytes = rest;
        }
    }

    fn next(&mut self, byte: u8) -> Step {
        self.list_fields += usize::from(matches!(self.step, Step::Field));
        match self.step {
            // Sections 6.1, 6.2.1, 6.3, and 6.2.2 and 6.2.3.
            Step::Field if byte & 0x80 != 0 => self.integer(byte, 7, Integer::Whole),
            Step::Field if byte & 0x40 != 0 => self.integer(byte, 6, Integer::Name { is_added: true }),
            Step::Field if byte & 0x20 != 0 => self.integer(byte, 5, Integer::Whole),
            Step::Field => self.integer(byte, 4, Integer::Name { is_added: false }),
            Step::Integer { value, shift, of } => {
                let value = value.saturating_add(usize::from(byte & 0x7f).checked_shl(shift).unwrap_or(usize::MAX));
                if byte & 0x80 != 0 {
                    return Step::Integer { value, shift: shift.saturating_add(7), of };
                }
                self.after_integer(value, of)
            }
            Step::Length(part) => self.integer(byte, 7, Integer::Length { part, is_huffman: byte & 0x80 != 0 }),
            Step::Text(text) => {
                let part = match text.part {
                    // `:` is 1011100 in Huffman's code (appendix B).
                    Part::Name { is_added, .. } => {
                        let is_pseudo = if text.is_huffman { byte >> 1 == 0b101_1100 } else { byte == b':' };
                        Part::Name { is_added, is_pseudo }
                    }
                    Part::Value { .. } => text.part,
                };
                self.after_text(Text { left: text.left - 1, part, is_first: false, ..text })
            }
        }
    }

    /// An integer begins in the last `bits` of `byte`.
    fn integer(&mut self, byte: u8, bits: u8, of: Integer) -> Step {
        let most = (1_usize << bits) - 1;
        let value = usize::from(byte) & most;
        if value == most { Step::Integer { value, shift: 0, of } } else { self.after_integer(value, of) }
    }

    fn after_integer(&mut self, value: usize, of: Integer) -> Step {
        match of {
            Integer::Whole => Step::Field,
            Integer::Name { is_added } if value == 0 => Step::Length(Part::Name { is_added, is_pseudo: false }),
            Integer::Name { is_added } => {
                // Of the static table (appendix A) the library keeps `:authority`, `:path` and `:scheme` as they came. The
                // scanner does not know the names in the dynamic table.
                let is_held = matches!(value, 1 | 4..=7 | 62..);
                Step::Length(Part::Value { is_added, is_held })
            }
            Integer::Length { part, is_huffman } => {
                self.after_text(Text { left: value, part, is_first: true, is_huffman })
            }
        }
    }

    /// The string itself where more of it is to come, or else what follows.
    fn after_text(&mut self, text: Text) -> Step {
        match text.part {
            _ if text.left > 0 => Step::Text(text),
            Part::Name { is_added, is_pseudo } => Step::Length(Part::Value { is_added, is_held: is_pseudo }),
            Part::Value { is_added, is_held } => {
                if is_added {
                    self.add(is_held);
                }
                Step::Field
            }
        }
    }

    /// An entry is added, which holds buffers or none.
    fn add(&mut self, is_held: bool) {
        if self.held.len() == ENTRIES
            && let Some(oldest) = self.held.pop_front()
        {
            self.held_bytes -= oldest as usize;
        }
        if !is_held {
            self.held.push_back(0);
            return;
        }
        let bytes = self.since_last.min(self.list_bytes.max(SHORT_LIST_BYTES)).saturating_mul(HELD_PER_BYTE);
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.held.push_back(bytes);
        self.held_bytes += bytes as usize;
        self.since_last = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lists: &[&[u8]]) -> TableScanner {
        let mut scanner = TableScanner::default();
        for list in lists {
            scanner.begin_list();
            scanner.pass(list.len());
            scanner.scan(list);
        }
        scanner
    }

    /// How many entries hold buffers.
    fn held(scanner: &TableScanner) -> usize {
        scanner.held.iter().filter(|bytes| **bytes > 0).count()
    }

    /// Huffman's code of `:path` (RFC 7541, appendix B).
    const HUFFMAN_PATH: &[u8] = &[0x84, 0xb9, 0x58, 0xd3, 0x3f];

    #[test]
    fn only_pseudo_headers_that_are_added_hold_anything() {
        for (list, entries) in [
            (&[0x82, 0x86, 0x84][..], 0),
            (b"\x04\x01/\x14\x01/", 0),
            (b"\x44\x01/", 1),
            (b"\x41\x01x\x46\x01x\x47\x01x\x45\x01x", 4),
            // `:method`, `accept`, and the size of the table.
            (b"\x42\x03PUT\x53\x01*\x3f\xe1\x1f", 0),
            // An entry of the table, by indices of one and of more bytes.
            (b"\x7e\x01x\x7f\x00\x01x", 2),
            (b"\x40\x05:path\x01/\x40\x01x\x01/\x00\x05:path\x01/", 1),
            (&[&[0x40], HUFFMAN_PATH, b"\x81\x63"].concat(), 1),
            (b"\x40\x81\xf3\x81\x63", 0),
            (b"\x44\x00\x40\x02:x\x00", 2),
            (&[b"\x44\x7f\x80\x01".as_slice(), &[b'a'; 255], b"\x44\x01/"].concat(), 2),
        ] {
            let scanner = of(&[list]);
            let mut pieces = TableScanner::default();
            pieces.begin_list();
            for byte in list {
                pieces.pass(1);
                pieces.scan(&[*byte]);
            }
            assert_eq!(pieces.held.len(), scanner.held.len(), "{list:x?}");
            assert_eq!(held(&pieces), entries, "{list:x?} byte by byte");
        }
    }

    #[test]
    fn a_list_that_is_cut_off_does_not_go_on_in_the_next() {
        assert_eq!(of(&[b"\x44\x05/a", b"\x82\x41\x01x"]).held.len(), 1);
    }

    #[test]
    fn what_lies_between_entries_counts_up_to_the_length_of_a_buffer() {
        let mut scanner = of(&[b"\x44\x01/"]);
        scanner.pass(1000);
        scanner.begin_list();
        scanner.pass(3);
        scanner.scan(b"\x44\x01/");
        assert_eq!(scanner.held_bytes(), 6 * (3 + 1003));
        scanner.pass(1 << 30);
        scanner.scan(b"\x44\x01/");
        assert_eq!(scanner.held_bytes(), 6 * (3 + 1003 + SHORT_LIST_BYTES));
    }

    #[test]
    fn old_entries_are_gone() {
        let scanner = of(&[&b"\x44\x01/".repeat(10_000)]);
        assert_eq!(scanner.held.len(), ENTRIES);
        assert_eq!(scanner.held_bytes(), 0, "all of one list");
    }

    #[test]
    fn nothing_overflows() {
        let mut scanner = of(&[&[&b"\x44"[..], &[0xff; 100]].concat(), &[0x7f; 100], &[0xff; 100]]);
        scanner.pass(usize::MAX);
        scanner.scan(b"\x44\x01/");
    }
}
