//! Scans the HTTP/2 frames that a client sends, to determine how much memory hyper will take for them.
//!
//! hyper creates a stream for every `HEADERS` frame, even if there is little memory left. Therefore memory is taken for
//! each frame before hyper sees it.

use std::ops::ControlFlow;

use super::super::connection_memory::HeaderFrame;
use super::hpack::HpackTableScanner;

/// Length of a frame's header (RFC 9113, section 4.1).
const FRAME_HEADER_BYTES: usize = 9;

/// Maximum payload of a frame, unless the server allows more (section 4.2).
const MAX_FRAME_BYTES: usize = 16_384;

// Types of frames (section 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const PUSH_PROMISE: u8 = 5;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

// Flags of frames (sections 6.2 and 6.10).
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY_FLAG: u8 = 32;

/// Length of the priority fields at the beginning of `HEADERS` (RFC 9113, section 6.2).
const PRIORITY_BYTES: usize = 5;

/// The header of a frame.
#[derive(Debug, Clone, Copy)]
struct FrameHeader {
    payload_bytes: usize,
    kind: u8,
    flags: u8,
    /// Identifier of the stream, without the highest bit, which is reserved.
    stream: u32,
}

impl FrameHeader {
    /// Parses the header at the beginning of `bytes`. Returns `None` if it is incomplete.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let [a, b, c, kind, flags, stream @ ..] = *bytes.first_chunk::<FRAME_HEADER_BYTES>()?;
        Some(Self {
            payload_bytes: usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap_or(usize::MAX),
            kind,
            flags,
            stream: u32::from_be_bytes(stream) & (u32::MAX >> 1),
        })
    }
}

/// Scans the frames in the bytes that a client sends.
#[derive(Debug, Default)]
pub(crate) struct FrameScanner {
    /// Number of payload bytes of the current frame that hyper has not got yet.
    remaining_payload_bytes: usize,
    /// Number of bytes of the current frame that have not been discarded yet.
    remaining_discard_bytes: usize,
    /// Highest stream identifier so far. The identifiers of a client's streams only increase.
    last_stream_id: u32,
    /// True if a header list has begun and not ended.
    pub(crate) in_header_list: bool,
    /// True if hyper gets no more requests.
    pub(crate) ignores_requests: bool,
    /// True if the next payload byte is the length of the padding at the end of the current frame.
    is_padded: bool,
    /// Number of bytes before the current frame's part of a header list that have not been scanned yet.
    remaining_skip_bytes: usize,
    /// Number of bytes of the current frame's part of a header list that have not been scanned yet. Includes the
    /// padding until the length of the padding is known.
    remaining_list_bytes: usize,
    hpack_table: HpackTableScanner,
    /// Number of fields of the longest header list so far.
    pub(crate) max_list_fields: usize,
}

impl FrameScanner {
    /// Returns the maximum memory that hyper's HPACK table retains.
    pub(crate) fn table_bytes(&self) -> usize {
        self.hpack_table.retained_bytes
    }

    /// Discards new requests from now on, unless a header list has begun. The last GOAWAY frame tells the client to
    /// repeat these requests (RFC 9113, section 6.8). hyper still needs the other frames: it sends the last GOAWAY when
    /// the client has answered a PING.
    pub(crate) fn ignore_requests(&mut self) {
        self.ignores_requests |= !self.in_header_list;
    }

    /// Returns how many bytes at the beginning of `bytes` must be discarded instead of passed to hyper. These are parts
    /// of request bodies, which the server does not read; requests after [`Self::ignore_requests`]; and frames that
    /// hyper would ignore. `bytes` are the bytes that follow those passed on or discarded before.
    pub(crate) fn discard(&mut self, bytes: &[u8]) -> usize {
        if self.remaining_payload_bytes == 0
            && self.remaining_discard_bytes == 0
            && !self.in_header_list
            && let Some(header) = FrameHeader::parse(bytes)
            && self.is_ignored(header)
        {
            self.remaining_discard_bytes = header.payload_bytes.saturating_add(FRAME_HEADER_BYTES);
        }
        let discarded = self.remaining_discard_bytes.min(bytes.len());
        self.remaining_discard_bytes -= discarded;
        discarded
    }

    /// Returns how many bytes at the beginning of `bytes` may be passed to hyper. `bytes` are the bytes that follow
    /// those passed on or discarded before. `admit` decides whether a frame of a header list may be passed on.
    ///
    /// The scan stops before the first frame that `admit` refuses, before a frame to [`discard`](Self::discard), and
    /// before a frame whose header is incomplete. The remaining bytes must be scanned again later.
    pub(crate) fn scan(&mut self, bytes: &[u8], mut admit: impl FnMut(HeaderFrame) -> ControlFlow<()>) -> usize {
        let mut passed = 0;
        loop {
            let rest = bytes.get(passed..).unwrap_or_default();
            let (payload, rest) = rest.split_at(self.remaining_payload_bytes.min(rest.len()));
            passed += payload.len();
            self.remaining_payload_bytes -= payload.len();
            self.forward_payload(payload);
            let Some(header) = FrameHeader::parse(rest) else { return passed };
            if !self.in_header_list && self.is_ignored(header) {
                return passed;
            }
            let header_frame = self.header_frame(header);
            if header_frame.is_some_and(|frame| admit(frame).is_break()) {
                return passed;
            }
            self.begin_frame(header, header_frame);
            passed += FRAME_HEADER_BYTES;
        }
    }

    /// Returns the header frame that begins with `header`, if the frame carries a part of a header list.
    fn header_frame(&self, header: FrameHeader) -> Option<HeaderFrame> {
        matches!(header.kind, HEADERS | PUSH_PROMISE | CONTINUATION).then(|| HeaderFrame {
            payload_bytes: header.payload_bytes,
            begins_list: header.kind != CONTINUATION,
            opens_stream: header.kind == HEADERS && header.stream > self.last_stream_id,
            is_forbidden: header.kind == PUSH_PROMISE,
        })
    }

    /// Records that `header`, the header of a frame, is passed to hyper. `header_frame` is the result of
    /// [`Self::header_frame`] for the same header.
    fn begin_frame(&mut self, header: FrameHeader, header_frame: Option<HeaderFrame>) {
        self.is_padded = false;
        self.remaining_skip_bytes = 0;
        self.remaining_list_bytes = 0;
        if let Some(frame) = header_frame {
            self.last_stream_id = self.last_stream_id.max(header.stream);
            self.in_header_list = header.flags & END_HEADERS == 0;
            if frame.begins_list {
                self.is_padded = header.flags & PADDED != 0;
                self.remaining_skip_bytes = if header.flags & PRIORITY_FLAG == 0 { 0 } else { PRIORITY_BYTES };
                self.hpack_table.begin_list();
            }
            let prefix_bytes = self.remaining_skip_bytes + usize::from(self.is_padded);
            self.remaining_list_bytes = header.payload_bytes.saturating_sub(prefix_bytes);
        }
        self.hpack_table.count_forwarded(FRAME_HEADER_BYTES);
        self.remaining_payload_bytes = header.payload_bytes;
    }

    /// Records that `piece` of a frame's payload is passed to hyper.
    fn forward_payload(&mut self, mut piece: &[u8]) {
        self.hpack_table.count_forwarded(piece.len());
        if self.is_padded
            && let Some((padding, rest)) = piece.split_first()
        {
            self.is_padded = false;
            self.remaining_list_bytes = self.remaining_list_bytes.saturating_sub((*padding).into());
            piece = rest;
        }
        let skipped = self.remaining_skip_bytes.min(piece.len());
        self.remaining_skip_bytes -= skipped;
        piece = piece.get(skipped..).unwrap_or_default();
        let length = self.remaining_list_bytes.min(piece.len());
        self.remaining_list_bytes -= length;
        self.hpack_table.scan(piece.get(..length).unwrap_or_default());
        self.max_list_fields = self.max_list_fields.max(self.hpack_table.list_fields);
    }

    /// Returns true if a frame may be discarded (RFC 9113, sections 4.1, 5.3 and 6.1). Discarded DATA frames do not
    /// reopen the client's flow control window, so a client sends at most one window of them. hyper gets the frames
    /// that are too long, and refuses them.
    fn is_ignored(&self, FrameHeader { payload_bytes, kind, stream, .. }: FrameHeader) -> bool {
        payload_bytes <= MAX_FRAME_BYTES
            && match kind {
                DATA | PRIORITY => true,
                HEADERS | PUSH_PROMISE | CONTINUATION => self.ignores_requests,
                // hyper does not know the stream of a discarded request, and would end the connection.
                RST_STREAM | WINDOW_UPDATE => self.ignores_requests && stream > self.last_stream_id,
                kind => kind > CONTINUATION,
            }
    }
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
    fn a_stream_is_admitted_once_and_trailers_open_no_stream() {
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
        let mut admitted = Vec::new();
        let mut scanner = FrameScanner { remaining_payload_bytes: 24, ..FrameScanner::default() };
        let mut rest = sent.clone();
        while !rest.is_empty() {
            let discarded = scanner.discard(&rest);
            rest.drain(..discarded);
            let passed = scanner.scan(&rest, |frame| {
                admitted.push((frame.payload_bytes, frame.opens_stream));
                ControlFlow::Continue(())
            });
            assert!(discarded + passed > 0);
            rest.drain(..passed);
        }
        assert_eq!(admitted, [(30, true), (5, false), (7, false), (0, true)]);
        assert!(!scanner.in_header_list);
    }

    #[test]
    fn a_refused_frame_is_not_passed_and_is_offered_again() {
        let sent = [frame(6, 0, 0, 8), frame(HEADERS, 0, 1, 3)].concat();
        let mut scanner = FrameScanner::default();
        assert_eq!(scanner.scan(&sent, |_| ControlFlow::Break(())), 17);
        assert!(!scanner.in_header_list);
        let mut opened = 0;
        let passed = scanner.scan(&sent[17..], |frame| {
            opened += usize::from(frame.opens_stream);
            ControlFlow::Continue(())
        });
        assert_eq!((passed, opened), (12, 1));
        assert!(scanner.in_header_list);
    }

    #[test]
    fn ignored_requests_leave_nothing_for_hyper() {
        let mut scanner = FrameScanner::default();
        let before = frame(HEADERS, END_HEADERS, 5, 3);
        assert_eq!(scanner.scan(&before, |_| ControlFlow::Continue(())), before.len());
        scanner.ignore_requests();
        let ignored = [(HEADERS, 7), (RST_STREAM, 7), (WINDOW_UPDATE, 9), (DATA, 7), (PRIORITY, 5)];
        for (kind, stream) in ignored {
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
            if flags & PRIORITY_FLAG != 0 {
                payload.extend([0; 5]);
            }
            payload.extend(list);
            if flags & PADDED != 0 {
                payload.extend([0x44; 3]);
            }
            let mut sent = frame(kind, flags, 1, payload.len());
            sent[FRAME_HEADER_BYTES..].copy_from_slice(&payload);
            sent
        };
        let table_bytes = |sent: &[u8]| {
            let mut scanner = FrameScanner::default();
            assert_eq!(scanner.scan(sent, |_| ControlFlow::Continue(())), sent.len());
            scanner.table_bytes()
        };
        let plain_bytes = table_bytes(&frames(&path, END_HEADERS, HEADERS));
        assert_eq!(plain_bytes, 6 * (FRAME_HEADER_BYTES + path.len()));
        let padded_bytes = table_bytes(&frames(&path, END_HEADERS | PADDED | PRIORITY_FLAG, HEADERS));
        assert_eq!(padded_bytes, plain_bytes + 6 * 9, "hyper also keeps the padding and priority around the fields");
        for cut in 0..path.len() {
            let sent = [frames(&path[..cut], 0, HEADERS), frames(&path[cut..], END_HEADERS, CONTINUATION)].concat();
            assert!(table_bytes(&sent) >= plain_bytes, "{cut}");
        }
        assert_eq!(table_bytes(&frames(b"\x04\x05/path", END_HEADERS, HEADERS)), 0);
        let mut scanner = FrameScanner::default();
        let sent = [frames(b"\x82\x44\x05/pa", 0, HEADERS), frames(b"th\x84\xbe", END_HEADERS, CONTINUATION)].concat();
        assert_eq!(
            scanner.scan(&[sent, frames(&[0x82], END_HEADERS, HEADERS)].concat(), |_| ControlFlow::Continue(())),
            38
        );
        assert_eq!(scanner.max_list_fields, 4);
    }

    proptest! {
        #[test]
        fn the_result_does_not_depend_on_the_pieces_of_input(
            frames in prop::collection::vec((0_u8..12, any::<u8>(), 0_u32..20, 0_usize..40), 0..20),
            cuts in prop::collection::vec(1_usize..30, 1..50),
        ) {
            let sent: Vec<u8> = frames.iter().flat_map(|(kind, flags, stream, len)| frame(*kind, *flags, *stream, *len)).collect();
            let mut whole = Vec::new();
            let mut whole_passed = Vec::new();
            let mut rest = sent.clone();
            let mut scanner = FrameScanner::default();
            while !rest.is_empty() {
                let gone = scanner.discard(&rest);
                rest.drain(..gone);
                let passed = scanner.scan(&rest, |frame| { whole.push(frame); ControlFlow::Continue(()) });
                whole_passed.extend(rest.drain(..passed));
                prop_assert!(gone + passed > 0);
            }
            let mut pieces = Vec::new();
            let mut pieces_passed = Vec::new();
            let mut kept = Vec::new();
            let mut at = 0;
            let mut scanner = FrameScanner::default();
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
