"""Records of TLS 1.3 (RFC 8446, section 5) with content that no TLS library sends."""

import hmac

try:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
except ImportError:
    AESGCM = None

HANDSHAKE, APPLICATION_DATA = 22, 23


class Forger:
    """Encrypts what a client says, from its first record after the handshake on, with AES-GCM."""

    def __init__(self, secret):
        """`secret`: CLIENT_TRAFFIC_SECRET_0 of the connection."""
        self.secret, self.digest = secret, "sha384" if len(secret) == 48 else "sha256"
        self.key = AESGCM(self.expand(b"key", 32 if len(secret) == 48 else 16))
        self.iv, self.sent = int.from_bytes(self.expand(b"iv", 12), "big"), 0

    def expand(self, label, length):
        """HKDF-Expand-Label of at most one block (section 7.1)."""
        label = b"tls13 " + label
        info = length.to_bytes(2, "big") + bytes([len(label)]) + label + b"\0\1"
        return hmac.digest(self.secret, info, self.digest)[:length]

    def record(self, kind, content):
        head = b"\x17\x03\x03" + (len(content) + 17).to_bytes(2, "big")
        nonce = (self.iv ^ self.sent).to_bytes(12, "big")
        self.sent += 1
        return head + self.key.encrypt(nonce, content + bytes([kind]), head)
