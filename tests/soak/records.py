"""TLS 1.3 records (RFC 8446, section 5) with content that no TLS library sends."""

import hmac

try:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
except ImportError:
    AESGCM = None

HANDSHAKE, APPLICATION_DATA = 22, 23


class Forger:
    """Encrypts the records of a client with AES-GCM, beginning with the first one after the handshake."""

    def __init__(self, secret):
        """Derive the keys from `secret`, the CLIENT_TRAFFIC_SECRET_0 of the connection."""
        self.secret, self.digest = secret, "sha384" if len(secret) == 48 else "sha256"
        self.key = AESGCM(self.expand(b"key", 32 if len(secret) == 48 else 16))
        self.iv, self.sent = int.from_bytes(self.expand(b"iv", 12), "big"), 0

    def expand(self, label, length):
        """Compute HKDF-Expand-Label (section 7.1) for at most one block of the hash."""
        label = b"tls13 " + label
        info = length.to_bytes(2, "big") + bytes([len(label)]) + label + b"\0\1"
        return hmac.digest(self.secret, info, self.digest)[:length]

    def record(self, kind, content):
        """Return an encrypted record with content of the inner type `kind`."""
        head = b"\x17\x03\x03" + (len(content) + 17).to_bytes(2, "big")
        nonce = (self.iv ^ self.sent).to_bytes(12, "big")
        self.sent += 1
        return head + self.key.encrypt(nonce, content + bytes([kind]), head)
