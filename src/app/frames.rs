//! The frames that a client sends over HTTP/2, as far as they decide how much memory the HTTP library will take for them.
//!
//! The library turns every `HEADERS` frame into a stream, however little memory is left, so they are counted before it
//! sees them.

use std::ops::ControlFlow;

use super::hpack::TableScanner;

/// Length of a frame's head (RFC 9113, section 4.1).
const HEAD_BYTES: usize = 9;

/// Longest payload of a frame where the server has not allowed more (section 4.2).
const FRAME_BYTES: usize = 16_384;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const PUSH_PROMISE: u8 = 5;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const WITH_PRIORITY: u8 = 32;

/// Bytes of a stream's priority at the beginning of `HEADERS` (RFC 9113, section 6.2).
const PRIORITY_BYTES: usize = 5;

/// A frame that carries a part of a request's header list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HeaderFrame {
    /// Length of its payload on the wire.
    pub(super) payload_bytes: usize,
    /// True for the first frame of a header list, false for `CONTINUATION`.
    pub(super) begins_list: bool,
    /// Whether it opens a stream.
    pub(super) opens_stream: bool,
    /// Whether no client may send it: the library reads its header list before it says so.
    pub(super) is_forbidden: bool,
}

/// Follows the frames in the bytes that a client sends.
#[derive(Debug)]
pub(super) struct FrameScanner {
    /// Bytes of the current frame that are still to come.
    payload_left: usize,
    /// Bytes of the current frame that are still to come and not passed on.
    discard_left: usize,
    /// The highest stream so far; those of clients only grow.
    last_stream: u32,
    /// Whether a header list has begun and not ended.
    in_header_list: bool,
    /// True if requests are left out.
    ignores_requests: bool,
    /// Of the current frame, if it carries a part of a header list.
    fragment: Option<Fragment>,
    table: TableScanner,
    /// Most fields of a header list so far.
    most_fields: usize,
}

/// Where in a frame's payload the part of a header list lies.
#[derive(Debug)]
struct Fragment {
    /// Whether the next byte is the length of the padding at the end.
    is_padded: bool,
    /// Bytes before the part that are still to come.
    skipped_left: usize,
    left: usize,
}

impl FrameScanner {
    /// Begins before the client's preface of `preface_bytes`.
    pub(super) fn new(preface_bytes: usize) -> Self {
        Self {
            payload_left: preface_bytes,
            discard_left: 0,
            last_stream: 0,
            in_header_list: false,
            ignores_requests: false,
            fragment: None,
            table: TableScanner::default(),
            most_fields: 0,
        }
    }

    /// Fields of the longest header list so far.
    pub(super) fn most_fields(&self) -> usize {
        self.most_fields
    }

    /// Memory that the library's table of header fields holds at most.
    pub(super) fn table_bytes(&self) -> usize {
        self.table.held_bytes()
    }

    /// Whether a header list has begun and not ended.
    pub(super) fn is_in_header_list(&self) -> bool {
        self.in_header_list
    }

    /// From now on leaves out requests, unless one has begun: they are those that the last GOAWAY tells the client to repeat
    /// (RFC 9113, section 6.8). The library sees the other frames, of which it needs the answer to its PING for that.
    pub(super) fn ignore_requests(&mut self) {
        self.ignores_requests |= !self.in_header_list;
    }

    /// True if requests are left out.
    pub(super) fn ignores_requests(&self) -> bool {
        self.ignores_requests
    }

    /// Returns how many of `bytes`, which follow those passed or discarded before, the library need not see: parts of bodies,
    /// which no request has here, requests where they are left out, and frames that it would ignore.
    pub(super) fn discard(&mut self, bytes: &[u8]) -> usize {
        if self.payload_left == 0
            && self.discard_left == 0
            && !self.in_header_list
            && let Some([a, b, c, kind, _, stream @ ..]) = bytes.first_chunk::<HEAD_BYTES>()
        {
            let payload_bytes = usize::try_from(u32::from_be_bytes([0, *a, *b, *c])).unwrap_or(usize::MAX);
            if self.is_ignored(*kind, payload_bytes, stream_of(*stream)) {
                self.discard_left = payload_bytes.saturating_add(HEAD_BYTES);
            }
        }
        let discarded = self.discard_left.min(bytes.len());
        self.discard_left -= discarded;
        discarded
    }

    /// Returns how many of `bytes`, which follow those passed or discarded before, may be passed on. `admit` decides about every frame
    /// of a header list; the scan stops before the first that it refuses, before one to [`discard`](Self::discard), and before a
    /// frame whose head is not complete. These have to be scanned again.
    pub(super) fn scan(&mut self, bytes: &[u8], mut admit: impl FnMut(HeaderFrame) -> ControlFlow<()>) -> usize {
        let mut passed = 0;
        loop {
            let rest = bytes.get(passed..).unwrap_or_default();
            let payload = self.payload_left.min(rest.len());
            passed += payload;
            self.payload_left -= payload;
            self.pass(rest.get(..payload).unwrap_or_default());
            let Some([a, b, c, kind, flags, stream @ ..]) =
                rest.get(payload..).and_then(<[u8]>::first_chunk::<HEAD_BYTES>)
            else {
                return passed;
            };
            let payload_bytes = usize::try_from(u32::from_be_bytes([0, *a, *b, *c])).unwrap_or(usize::MAX);
            let stream = stream_of(*stream);
            if !self.in_header_list && self.is_ignored(*kind, payload_bytes, stream) {
                return passed;
            }
            if matches!(*kind, HEADERS | PUSH_PROMISE | CONTINUATION) {
                let opens_stream = *kind == HEADERS && stream > self.last_stream;
                let is_forbidden = *kind == PUSH_PROMISE;
                if admit(HeaderFrame { payload_bytes, begins_list: *kind != CONTINUATION, opens_stream, is_forbidden })
                    .is_break()
                {
                    return passed;
                }
                self.last_stream = self.last_stream.max(stream);
                self.in_header_list = flags & END_HEADERS == 0;
                let flags = if *kind == CONTINUATION { 0 } else { *flags };
                let skipped_left = if flags & WITH_PRIORITY == 0 { 0 } else { PRIORITY_BYTES };
                let is_padded = flags & PADDED != 0;
                let left = payload_bytes.saturating_sub(skipped_left + usize::from(is_padded));
                self.fragment = Some(Fragment { is_padded, skipped_left, left });
                if *kind != CONTINUATION {
                    self.table.begin_list();
                }
            } else {
                self.fragment = None;
            }
            passed += HEAD_BYTES;
            self.table.pass(HEAD_BYTES);
            self.payload_left = payload_bytes;
        }
    }

    /// The library is given `piece` of a frame's payload.
    fn pass(&mut self, mut piece: &[u8]) {
        self.table.pass(piece.len());
        let Some(fragment) = &mut self.fragment else { return };
        if fragment.is_padded
            && let Some((padding, rest)) = piece.split_first()
        {
            fragment.is_padded = false;
            fragment.left = fragment.left.saturating_sub((*padding).into());
            piece = rest;
        }
        let skipped = fragment.skipped_left.min(piece.len());
        fragment.skipped_left -= skipped;
        piece = piece.get(skipped..).unwrap_or_default();
        let length = fragment.left.min(piece.len());
        fragment.left -= length;
        self.table.scan(piece.get(..length).unwrap_or_default());
        self.most_fields = self.most_fields.max(self.table.list_fields());
    }

    /// Returns true if a frame of this kind may be left out (RFC 9113, sections 4.1, 5.3 and 6.1). The windows that DATA uses are
    /// never given back, so a client sends at most the first window. The library refuses frames that are too long.
    fn is_ignored(&self, kind: u8, payload_bytes: usize, stream: u32) -> bool {
        payload_bytes <= FRAME_BYTES
            && match kind {
                DATA | PRIORITY => true,
                HEADERS | PUSH_PROMISE | CONTINUATION => self.ignores_requests,
                // Of a request that was left out: the library would end the connection for a stream that it does not know.
                RST_STREAM | WINDOW_UPDATE => self.ignores_requests && stream > self.last_stream,
                kind => kind > CONTINUATION,
            }
    }
}

/// The number of a stream. The highest bit is reserved.
fn stream_of(bytes: [u8; 4]) -> u32 {
    u32::from_be_bytes(bytes) & (u32::MAX >> 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: usize) -> Vec<u8> {
        let length = u32::try_from(payload).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), &vec![1; payload]].concat()
    }

    #[test]
    fn a_stream_is_admitted_once_and_trailers_open_none() {
        let sent = [
            &[0; 24][..],
            &frame(4, 0, 0, 6),
            &frame(HEADERS, 0, 1, 30),
            &frame(CONTINUATION, END_HEADERS, 1, 5),
            &frame(0, 0, 1, 400),
            &frame(HEADERS, END_HEADERS, 1, 7),
            &frame(HEADERS, END_HEADERS, 3, 0),
        ]
        .concat();
        let mut seen = Vec::new();
        let mut scanner = FrameScanner::new(24);
        let mut rest = sent.clone();
        while !rest.is_empty() {
            let gone = scanner.discard(&rest);
            rest.drain(..gone);
            let passed = scanner.scan(&rest, |frame| {
                seen.push((frame.payload_bytes, frame.opens_stream));
                ControlFlow::Continue(())
            });
            assert!(gone + passed > 0);
            rest.drain(..passed);
        }
        assert_eq!(seen, [(30, true), (5, false), (7, false), (0, true)]);
        assert!(!scanner.is_in_header_list());
    }

    #[test]
    fn nothing_of_a_refused_frame_is_passed_and_it_is_asked_for_again() {
        let sent = [frame(6, 0, 0, 8), frame(HEADERS, 0, 1, 3)].concat();
        let mut scanner = FrameScanner::new(0);
        assert_eq!(scanner.scan(&sent, |_| ControlFlow::Break(())), 17);
        assert!(!scanner.is_in_header_list());
        let mut opened = 0;
        let passed = scanner.scan(&sent[17..], |frame| {
            opened += usize::from(frame.opens_stream);
            ControlFlow::Continue(())
        });
        assert_eq!((passed, opened), (12, 1));
        assert!(scanner.is_in_header_list());
    }

    #[test]
    fn requests_that_are_left_out_leave_nothing_for_the_library_to_see() {
        let mut scanner = FrameScanner::new(0);
        let before = frame(HEADERS, END_HEADERS, 5, 3);
        assert_eq!(scanner.scan(&before, |_| ControlFlow::Continue(())), before.len());
        scanner.ignore_requests();
        let left_out = [(HEADERS, 7), (RST_STREAM, 7), (WINDOW_UPDATE, 9), (DATA, 7), (PRIORITY, 5)];
        for (kind, stream) in left_out {
            let sent = frame(kind, END_HEADERS, stream, 4);
            assert_eq!(scanner.discard(&sent), sent.len(), "{kind} of {stream}");
        }
        for (kind, stream) in [(RST_STREAM, 5), (WINDOW_UPDATE, 5), (WINDOW_UPDATE, 0), (6, 0)] {
            let sent = frame(kind, 0, stream, 4);
            assert_eq!(scanner.discard(&sent), 0, "{kind} of {stream}");
            assert_eq!(scanner.scan(&sent, |_| ControlFlow::Continue(())), sent.len());
        }
    }

    #[test]
    fn fields_are_found_behind_padding_and_priority_and_across_frames() {
        let path = [&b"\x44\x05/path"[..], &[0x82, 0x40, 1, b':', 1, b'x']].concat();
        let frames = |list: &[u8], flags: u8, kind: u8| {
            let mut payload = Vec::new();
            if flags & PADDED != 0 {
                payload.push(3);
            }
            if flags & WITH_PRIORITY != 0 {
                payload.extend([0; 5]);
            }
            payload.extend(list);
            if flags & PADDED != 0 {
                payload.extend([0x44; 3]);
            }
            let mut sent = frame(kind, flags, 1, payload.len());
            sent[HEAD_BYTES..].copy_from_slice(&payload);
            sent
        };
        let held = |sent: &[u8]| {
            let mut scanner = FrameScanner::new(0);
            assert_eq!(scanner.scan(sent, |_| ControlFlow::Continue(())), sent.len());
            scanner.table_bytes()
        };
        let plain = held(&frames(&path, END_HEADERS, HEADERS));
        assert_eq!(plain, 6 * (HEAD_BYTES + path.len()));
        let around = held(&frames(&path, END_HEADERS | PADDED | WITH_PRIORITY, HEADERS));
        assert_eq!(around, plain + 6 * 9, "the library holds what lies around them, too");
        for cut in 0..path.len() {
            let sent = [frames(&path[..cut], 0, HEADERS), frames(&path[cut..], END_HEADERS, CONTINUATION)].concat();
            assert!(held(&sent) >= plain, "{cut}");
        }
        assert_eq!(held(&frames(b"\x04\x05/path", END_HEADERS, HEADERS)), 0);
        let mut scanner = FrameScanner::new(0);
        let sent = [frames(b"\x82\x44\x05/pa", 0, HEADERS), frames(b"th\x84\xbe", END_HEADERS, CONTINUATION)].concat();
        assert_eq!(
            scanner.scan(&[sent, frames(&[0x82], END_HEADERS, HEADERS)].concat(), |_| ControlFlow::Continue(())),
            38
        );
        assert_eq!(scanner.most_fields(), 4);
    }

    proptest! {
        #[test]
        fn it_does_not_matter_in_which_pieces_bytes_come(
            frames in prop::collection::vec((0_u8..12, any::<u8>(), 0_u32..20, 0_usize..40), 0..20),
            cuts in prop::collection::vec(1_usize..30, 1..50),
        ) {
            let sent: Vec<u8> = frames.iter().flat_map(|(kind, flags, stream, len)| frame(*kind, *flags, *stream, *len)).collect();
            let (mut whole, mut whole_passed, mut rest) = (Vec::new(), Vec::new(), sent.clone());
            let mut scanner = FrameScanner::new(0);
            while !rest.is_empty() {
                let gone = scanner.discard(&rest);
                rest.drain(..gone);
                let passed = scanner.scan(&rest, |frame| { whole.push(frame); ControlFlow::Continue(()) });
                whole_passed.extend(rest.drain(..passed));
                prop_assert!(gone + passed > 0);
            }
            let (mut pieces, mut pieces_passed, mut kept, mut at) = (Vec::new(), Vec::new(), Vec::new(), 0);
            let mut scanner = FrameScanner::new(0);
            for cut in cuts.iter().cycle() {
                let end = (at + cut).min(sent.len());
                kept.extend_from_slice(&sent[at..end]);
                at = end;
                loop {
                    let gone = scanner.discard(&kept);
                    kept.drain(..gone);
                    let passed = scanner.scan(&kept, |frame| { pieces.push(frame); ControlFlow::Continue(()) });
                    pieces_passed.extend(kept.drain(..passed));
                    if gone + passed == 0 { break }
                }
                if at == sent.len() { break }
            }
            prop_assert_eq!(pieces, whole);
            prop_assert_eq!(pieces_passed, whole_passed);
            prop_assert!(kept.is_empty());
        }
    }
}
