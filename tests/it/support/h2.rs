//! HTTP/2 frames written by hand, to send what no library sends.

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RESET: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;
pub const ACK: u8 = 1;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// Returns a frame (RFC 9113, section 4.1).
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Returns the header block of `GET path` in HPACK, without compression.
pub fn get(path: &str) -> Vec<u8> {
    let length = u8::try_from(path.len()).unwrap();
    [&[0x82, 0x86, 0x04, length], path.as_bytes(), &[0x01, 1, b'x']].concat()
}

/// Returns the frame of a complete GET request.
pub fn request(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &get(path))
}

/// Returns what a client sends first: the preface, its SETTINGS, and the acknowledgement of those of the server.
pub fn begin(settings: &[u8]) -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, settings), &frame(SETTINGS, ACK, 0, &[])].concat()
}

/// Returns the types of the received frames.
pub fn kinds(bytes: &[u8]) -> Vec<u8> {
    frames(bytes).into_iter().map(|(kind, ..)| kind).collect()
}

/// Returns the received frames: type, flags, and the part of the payload that has arrived.
pub fn frames(mut bytes: &[u8]) -> Vec<(u8, u8, &[u8])> {
    let mut frames = Vec::new();
    while let [a, b, c, kind, ref rest @ ..] = *bytes {
        let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        let end = bytes.len().min(9 + length);
        frames.push((kind, rest.first().copied().unwrap_or(0), bytes.get(9..end).unwrap_or_default()));
        bytes = bytes.get(9 + length..).unwrap_or_default();
    }
    frames
}
