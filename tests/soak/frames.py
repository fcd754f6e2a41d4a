"""Valid and invalid HTTP/2 frames (RFC 9113, section 4.1) and header blocks (HPACK, RFC 7541), as attacks need them."""

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS, PADDED = 1, 4, 8

# Entries of HPACK's static table, one byte each: :method GET, :method POST, :scheme http.
GET, POST, HTTP = b"\x82", b"\x83", b"\x86"
# Names from the static table, as the first byte of a literal without indexing.
AUTHORITY, PATH = b"\x01", b"\x04"


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def integer(value, bits, first=0):
    """Encode an integer with a prefix of `bits` bits (RFC 7541, section 5.1).

    `first` contains the other bits of the first byte.
    """
    most = (1 << bits) - 1
    if value < most:
        return bytes([first | value])
    out, value = bytearray([first | most]), value - most
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    return bytes([*out, value])


def string(text):
    return integer(len(text), 7) + text


# Huffman codes of some characters (RFC 7541, appendix B).
CODES = {"0": "00000", "a": "00011", "/": "011000"}


def huffman(text):
    bits = "".join(CODES[letter] for letter in text)
    bits += "1" * (-len(bits) % 8)
    coded = int(bits, 2).to_bytes(len(bits) // 8, "big")
    return integer(len(coded), 7, 0x80) + coded


def field(name, value):
    """Encode a header field as a literal whose name and value are not indexed."""
    return b"\x00" + string(name) + string(value)


def settings(window):
    """Return the connection preface with SETTINGS that set the initial window of streams."""
    return PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, window))


def headers(stream, path, more=b"", flags=END_STREAM | END_HEADERS):
    return frame(HEADERS, flags, stream, GET + HTTP + PATH + string(path) + AUTHORITY + string(b"x") + more)


def malformed(stream):
    """Return a malformed request, of a kind that depends on the stream's number."""
    path, authority = PATH + string(b"/v/0/0"), AUTHORITY + string(b"x")
    kinds = [
        # An upper-case name.
        GET + HTTP + path + authority + field(b"Upper", b"1"),
        # A missing :path; a repeated one; an empty one.
        GET + HTTP + authority,
        GET + HTTP + path + path + authority,
        GET + HTTP + PATH + string(b"") + authority,
        # A pseudo-header after a regular field; an unknown one; one of responses.
        GET + HTTP + field(b"a", b"b") + path + authority,
        GET + HTTP + path + authority + field(b":unknown", b"1"),
        GET + HTTP + path + authority + b"\x88",
        # Connection-specific fields (section 8.2.2); an invalid content-length.
        GET + HTTP + path + authority + field(b"connection", b"close") + field(b"te", b"gzip"),
        POST + HTTP + path + authority + field(b"content-length", b"none"),
        # Octets that are not allowed in a value.
        GET + HTTP + path + authority + field(b"a", b"\x00\r\n"),
        # A header list beyond the limit, which the library answers with 431.
        GET + HTTP + path + authority + b"\x40\x02ab\x02cd" + b"\xbe" * 3200,
    ]
    return frame(HEADERS, END_STREAM | END_HEADERS, stream, kinds[stream // 2 % len(kinds)])


class Client:
    """An honest HTTP/2 client that sends one request at a time."""

    WINDOW = 1 << 20

    def __init__(self, connected):
        self.socket, self.stream, self.received = connected, -1, b""
        grown = frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self.WINDOW))
        self.socket.sendall(settings(self.WINDOW) + grown)

    def take(self, count):
        while len(self.received) < count:
            more = self.socket.recv(65536)
            if not more:
                raise ConnectionError("the connection ended")
            self.received += more
        taken, self.received = self.received[:count], self.received[count:]
        return taken

    def get(self, path):
        """Send a GET. Return true if the status is 200, and the body."""
        self.stream += 2
        self.socket.sendall(headers(self.stream, path.encode()))
        is_good, body, flags = False, b"", 0
        while not flags & END_STREAM:
            head = self.take(9)
            (stream,) = struct.unpack(">I", head[5:])
            kind, payload, flags = head[3], self.take(int.from_bytes(head[:3], "big")), 0
            if kind in (SETTINGS, PING) and not head[4] & 1:
                self.socket.sendall(frame(kind, 1, 0, payload if kind == PING else b""))
            elif kind in (RST_STREAM, GOAWAY):
                raise ConnectionError(f"frame {kind} in place of an answer: {payload}")
            elif kind in (HEADERS, DATA) and stream == self.stream:
                flags = head[4]
                if kind == HEADERS:
                    # The first field of a response is its status; 0x88 is the index of `:status 200`.
                    is_good = payload[:1] == b"\x88"
                elif payload:
                    body += payload
                    more = struct.pack(">I", len(payload))
                    self.socket.sendall(frame(WINDOW_UPDATE, 0, 0, more) + frame(WINDOW_UPDATE, 0, stream, more))
        return is_good, body

    def close(self):
        self.socket.close()
