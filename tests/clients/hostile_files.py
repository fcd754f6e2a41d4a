"""Files that no honest program writes, and the expected response to a slice of them.

Every case fills a directory of its own. Its `expected` names the status and the problem (None if the response is not an
error). For data it also gives the first byte. Unless a case says otherwise, the dataset is uint8 and has 4 x 4
elements in one block.
"""

import bz2
import gzip
import lzma
import os
import socket
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numcodecs

from support import COMPRESSIONS, attributes, compress, header, write

CORRUPT = (422, "corrupt-block")
# The file exists but cannot be read: an error, not zeros.
HIDDEN = (422, "unreadable")
NOT_A_DATASET = (404, "not-a-dataset")
UNSUPPORTED = (501, "unsupported")
TOO_LARGE = (413, "too-large")
DATA = bytes(range(7, 23))
GOOD = (200, None, 7)
ZEROS = (200, None, 0)
BOMB = bytes(64 << 20)


@dataclass
class Case:
    name: str
    fill: Callable[[Path], object]
    expected: tuple
    query: str = ""


def block(compression, content, **more):
    """Return a function that writes a dataset whose only block has this content."""

    def fill(directory):
        write(directory / "attributes.json", attributes([4, 4], [4, 4], "uint8", compression) | more)
        write(directory / "0/0", content)

    return fill


def with_attributes(content, stored=header(4, 4) + DATA):
    """Return a function that writes a dataset with these attributes and a valid raw block."""

    def fill(directory):
        write(directory / "attributes.json", content)
        write(directory / "0/0", stored)

    return fill


def valid_attributes_with(**members):
    """Return valid attributes with these members changed; None removes a member."""
    changed = attributes([4, 4], [4, 4]) | members
    return {key: value for key, value in changed.items() if value is not None}


HEADERS = [
    Case("an empty block", block("raw", b""), CORRUPT),
    Case("a block of one byte", block("raw", b"\0"), CORRUPT),
    Case("a header cut off in the sizes", block("raw", header(4, 4)[:9]), CORRUPT),
    Case("a header alone", block("raw", header(4, 4)), CORRUPT),
    Case("mode 3", block("raw", header(4, 4, mode=3) + DATA), CORRUPT),
    Case("mode 65535", block("raw", header(4, 4, mode=0xFFFF) + DATA), CORRUPT),
    Case("as many elements as the size says, in varlength mode", block("raw", header(4, 4, mode=1) + struct.pack(">I", 16) + DATA), ({200, 501}, None)),
    Case("fewer elements than the size says, in varlength mode", block("raw", header(4, 4, mode=1) + struct.pack(">I", 5) + DATA[:5]), UNSUPPORTED),
    Case("2^32 - 1 elements in varlength mode", block("raw", header(4, 4, mode=1) + struct.pack(">I", 0xFFFFFFFF) + DATA), UNSUPPORTED),
    Case("object mode", block("raw", struct.pack(">HI", 2, 16) + DATA), UNSUPPORTED),
    Case("one axis too few", block("raw", header(4) + DATA[:4]), CORRUPT),
    Case("one axis too many", block("raw", header(4, 4, 1) + DATA), CORRUPT),
    Case("65535 axes", block("raw", b"\0\0\xff\xff" + bytes(64)), CORRUPT),
    Case("a size of 2^32 - 1", block("raw", header(0xFFFFFFFF, 4) + DATA), CORRUPT),
    Case("sizes whose product overflows", block("raw", header(0xFFFFFFFF, 0xFFFFFFFF) + DATA), CORRUPT),
    Case("one larger than blockSize", block("raw", header(5, 4) + bytes(20)), CORRUPT),
    Case("a smaller block is valid", block("raw", header(2, 2) + DATA[:4]), GOOD),
    Case("one byte short", block("raw", header(4, 4) + DATA[:-1]), CORRUPT),
    Case("one byte long", block("raw", header(4, 4) + DATA + b"\0x"), CORRUPT),
]

TORN = [
    Case(f"{kind} cut at {part}", block(kind, header(4, 4) + compress(kind, DATA)[: int(len(compress(kind, DATA)) * share)]), CORRUPT)
    for kind in COMPRESSIONS
    for part, share in (("nothing", 0), ("a third", 0.34), ("nine tenths", 0.9))
]  # fmt: skip


def flipped(kind):
    """Return a block with one bit in the middle of its payload changed. The data are noise, so every bit matters."""
    noise = bytes((i * 197 + 31) % 251 for i in range(16))
    payload = bytearray(compress(kind, noise))
    payload[-6 if kind in ("gzip", "zlib", "bzip2") else len(payload) // 2] ^= 0x10
    return header(4, 4) + bytes(payload)


BIT_FLIPS = [Case(f"{kind} with a changed bit", block(kind, flipped(kind)), CORRUPT) for kind in ("gzip", "zlib", "bzip2", "xz", "lz4")]

BOMBS = [
    Case("gzip bomb", block("gzip", header(4, 4) + gzip.compress(BOMB, 6)), CORRUPT),
    Case("zlib bomb", block("zlib", header(4, 4) + zlib.compress(BOMB, 6)), CORRUPT),
    Case("bzip2 bomb", block("bzip2", header(4, 4) + bz2.compress(BOMB)), CORRUPT),
    Case("xz bomb", block("xz", header(4, 4) + lzma.compress(BOMB, preset=0)), CORRUPT),
    Case("zstd bomb", block("zstd", header(4, 4) + numcodecs.Zstd(1).encode(BOMB)), CORRUPT),
    Case("blosc bomb", block("blosc", header(4, 4) + numcodecs.Blosc("zstd", 1).encode(BOMB)), CORRUPT),
    Case("gzip of a thousand empty members", block("gzip", header(4, 4) + gzip.compress(b"") * 1000 + gzip.compress(DATA)), CORRUPT),
    Case("gzip of some empty members", block("gzip", header(4, 4) + gzip.compress(b"") * 50 + gzip.compress(DATA)), GOOD),
    Case("a bomb after the data", block("gzip", header(4, 4) + gzip.compress(DATA) + gzip.compress(BOMB)), CORRUPT),
    Case("a bomb whose header declares its size", lambda d: (
        write(d / "attributes.json", attributes([65536, 65536], [65536, 65536], "uint8", "bzip2")),
        write(d / "0/0", header(65536, 65536) + bz2.compress(BOMB))), TOO_LARGE, "start=0,0&size=1,1"),
    Case("ten bytes that claim to be 4 GiB", lambda d: (
        write(d / "attributes.json", attributes([65536, 65536], [65536, 65536], "uint8", "raw")),
        write(d / "0/0", header(65536, 65536) + bytes(10))), ({413, 422}, None), "start=0,0&size=1,1"),
]  # fmt: skip


def blosc(**changes):
    """Return a block of a blosc buffer with fields of its header changed."""
    payload = bytearray(compress("blosc", DATA * 8))
    offsets = {"version": (0, "B"), "flags": (2, "B"), "typesize": (3, "B"), "nbytes": (4, "<I"), "blocksize": (8, "<I"), "cbytes": (12, "<I")}
    for name, value in changes.items():
        at, form = offsets[name]
        struct.pack_into(form, payload, at, value)
    return header(4, 4) + bytes(payload)


def lz4(size=16, packed=16, check=None, magic=b"LZ4Block", token=0x1F, end=True, body=DATA):
    """Return a block of an lz4-java frame with fields of its header changed."""
    frame = magic + bytes([token]) + struct.pack("<II", packed, size)
    sound = compress("lz4", DATA)
    frame += sound[17:21] if check is None else struct.pack("<I", check)
    return header(4, 4) + frame + body + (sound[-21:] if end else b"")




def huge_dictionary():
    """Return a block of a small .xz stream, changed to ask for a dictionary of 1.5 GiB in its block header."""
    payload = bytearray(lzma.compress(DATA, preset=0))
    at = payload.index(bytes([0x21, 0x01])) + 2  # filter LZMA2, one byte of properties
    start, length = 12, (payload[12] + 1) * 4
    payload[at] = 39  # 3 << 29 bytes
    struct.pack_into("<I", payload, start + length - 4, zlib.crc32(payload[start : start + length - 4]))
    return header(4, 4) + bytes(payload)


CODECS = [
    Case("gzip with garbage after it", block("gzip", header(4, 4) + gzip.compress(DATA) + b"garbage"), CORRUPT),
    Case("gzip with zeros after it", block("gzip", header(4, 4) + gzip.compress(DATA) + bytes(512)), GOOD),
    Case("gzip in two members", block("gzip", header(4, 4) + gzip.compress(DATA[:5]) + gzip.compress(DATA[5:])), GOOD),
    Case("gzip with a wrong length", block("gzip", header(4, 4) + gzip.compress(DATA)[:-4] + b"\xff\xff\xff\x7f"), CORRUPT),
    Case("gzip one byte short", block("gzip", header(4, 4) + gzip.compress(DATA[:-1])), CORRUPT),
    Case("zlib where gzip is declared", block("gzip", header(4, 4) + zlib.compress(DATA)), ({200, 422}, None)),
    Case("zlib with a preset dictionary", block("zlib", header(4, 4) + b"\x78\xbb" + bytes(20)), CORRUPT),
    Case("bzip2 in two streams", block("bzip2", header(4, 4) + bz2.compress(DATA[:5]) + bz2.compress(DATA[5:])), GOOD),
    Case("bzip2 magic alone", block("bzip2", header(4, 4) + b"BZh9"), CORRUPT),
    Case("xz with a dictionary of 1.5 GiB", block("xz", huge_dictionary()), ({413, 422}, None)),
    Case("xz in the lzma format", block("xz", header(4, 4) + lzma.compress(DATA, lzma.FORMAT_ALONE)), ({200, 422}, None)),
    Case("zstd with a window of 2 TiB", block("zstd", header(4, 4) + b"\x28\xb5\x2f\xfd\x00\xf8" + bytes(20)), CORRUPT),
    Case("zstd with a dictionary", block("zstd", header(4, 4) + b"\x28\xb5\x2f\xfd\x23\xff\xff\xff\xff\x10" + bytes(20)), CORRUPT),
    Case("zstd that claims 2^63 bytes", block("zstd", header(4, 4) + b"\x28\xb5\x2f\xfd\xe0" + b"\xff" * 7 + b"\x7f" + bytes(20)), CORRUPT),
    Case("zstd with only skippable frames", block("zstd", header(4, 4) + b"\x50\x2a\x4d\x18\x04\0\0\0abcd" * 9), CORRUPT),
    Case("blosc that claims 2 GiB", block("blosc", blosc(nbytes=0x7FFFFFFF)), CORRUPT),
    Case("blosc that claims 4 GiB - 1", block("blosc", blosc(nbytes=0xFFFFFFFF)), CORRUPT),
    Case("blosc longer than its file", block("blosc", blosc(cbytes=0x7FFFFFFF)), CORRUPT),
    Case("blosc with a block size of 0", block("blosc", blosc(blocksize=0)), CORRUPT),
    Case("blosc with a huge block size", block("blosc", blosc(blocksize=0x7FFFFFFF)), CORRUPT),
    Case("blosc with a type size of 0", block("blosc", blosc(typesize=0)), CORRUPT),
    Case("blosc of an unknown version", block("blosc", blosc(version=99)), CORRUPT),
    Case("blosc of an unknown compressor", block("blosc", blosc(flags=0xFF)), CORRUPT),
    Case("blosc header alone", block("blosc", blosc()[:28]), CORRUPT),
    Case("lz4 that claims 2 GiB", block("lz4", lz4(size=0x7FFFFFFF)), CORRUPT),
    Case("lz4 with a negative size", block("lz4", lz4(size=0xFFFFFFFF)), CORRUPT),
    Case("lz4 longer than its file", block("lz4", lz4(packed=0x7FFFFFFF)), CORRUPT),
    Case("lz4 with a wrong checksum", block("lz4", lz4(check=1)), CORRUPT),
    Case("lz4 of an unknown method", block("lz4", lz4(token=0xFF)), CORRUPT),
    Case("lz4 of random bytes", block("lz4", header(4, 4) + bytes((i * 89 + 5) % 256 for i in range(40))), CORRUPT),
]  # fmt: skip

ATTRIBUTES = [
    Case("not JSON", with_attributes("dimensions: [4, 4]"), NOT_A_DATASET),
    Case("an empty file", with_attributes(""), NOT_A_DATASET),
    Case("JSON cut off", with_attributes('{"dimensions":[4,4],"blockSi'), NOT_A_DATASET),
    Case("an array", with_attributes("[1, 2]"), NOT_A_DATASET),
    Case("null", with_attributes("null"), NOT_A_DATASET),
    Case("a number of a million digits", with_attributes("9" * 1_000_000), NOT_A_DATASET),
    Case("500000 open brackets", with_attributes("[" * 500_000), NOT_A_DATASET),
    Case("nested objects 100000 deep", with_attributes('{"a":' * 100_000), NOT_A_DATASET),
    Case("UTF-16", with_attributes(str(valid_attributes_with()).replace("'", '"').encode("utf-16")), NOT_A_DATASET),
    Case("not UTF-8", with_attributes(b'{"dimensions":[4,4],"x":"\xff"}'), NOT_A_DATASET),
    Case("a byte order mark is ignored", with_attributes(b"\xef\xbb\xbf" + str(valid_attributes_with()).replace("'", '"').encode()), GOOD),
    Case("more than limits.attributes", with_attributes(valid_attributes_with(padding="x" * (17 << 20))), TOO_LARGE),
    Case("more than two million values", with_attributes(valid_attributes_with(padding=[0] * 2_000_001)), NOT_A_DATASET),
    Case("2 MiB of unused numbers beyond the range of floats", with_attributes(str(valid_attributes_with()).replace("'", '"')[:-1] + ',"x":[' + "1e999," * 350_000 + "1]}"), GOOD),
    Case("no dimensions", with_attributes(valid_attributes_with(dimensions=None)), NOT_A_DATASET),
    Case("dimensions that are text", with_attributes(valid_attributes_with(dimensions="4,4")), NOT_A_DATASET),
    Case("a dimension that is an object", with_attributes(valid_attributes_with(dimensions=[4, {}])), NOT_A_DATASET),
    Case("a negative dimension", with_attributes(valid_attributes_with(dimensions=[4, -4])), NOT_A_DATASET),
    Case("a fractional dimension", with_attributes(valid_attributes_with(dimensions=[4, 4.5])), NOT_A_DATASET),
    Case("a dimension beyond the range of floats", with_attributes('{"dimensions":[4,1e400],"blockSize":[4,4],"dataType":"uint8","compression":{"type":"raw"}}'), NOT_A_DATASET),
    Case("a dimension of 2^63", with_attributes(valid_attributes_with(dimensions=[4, 2**63])), NOT_A_DATASET),
    Case("a boolean dimension", with_attributes(valid_attributes_with(dimensions=[4, True])), NOT_A_DATASET),
    Case("dimensions within dimensions", with_attributes(valid_attributes_with(dimensions=[[4], [4]])), NOT_A_DATASET),
    Case("33 axes", with_attributes(valid_attributes_with(dimensions=[1] * 33, blockSize=[1] * 33)), NOT_A_DATASET),
    Case("100000 axes", with_attributes(valid_attributes_with(dimensions=[1] * 100_000, blockSize=[1] * 100_000)), NOT_A_DATASET),
    Case("axes that disagree", with_attributes(valid_attributes_with(blockSize=[4, 4, 4])), NOT_A_DATASET),
    Case("a block size of 0", with_attributes(valid_attributes_with(blockSize=[4, 0])), NOT_A_DATASET),
    Case("a negative block size", with_attributes(valid_attributes_with(blockSize=[-4, 4])), NOT_A_DATASET),
    Case("a type that is a number", with_attributes(valid_attributes_with(dataType=8)), NOT_A_DATASET),
    Case("an unknown type", with_attributes(valid_attributes_with(dataType="complex64")), UNSUPPORTED),
    Case("text elements", with_attributes(valid_attributes_with(dataType="string")), UNSUPPORTED),
    Case("no compression", with_attributes(valid_attributes_with(compression=None)), NOT_A_DATASET),
    Case("a compression that is a list", with_attributes(valid_attributes_with(compression=[])), NOT_A_DATASET),
    Case("an unknown compression", with_attributes(valid_attributes_with(compression={"type": "jpeg2000"})), UNSUPPORTED),
    Case("a compression whose name is a path", with_attributes(valid_attributes_with(compression={"type": "../../../lib/x.so"})), UNSUPPORTED),
    Case("parameters without meaning are ignored", with_attributes(valid_attributes_with(compression={"type": "raw", "level": {"a": [None]}})), GOOD),
    Case("every axis 2^63 - 1 long", with_attributes(valid_attributes_with(dimensions=[2**63 - 1] * 2)), GOOD, "start=0,0&size=4,4"),
    Case("the far end of 2^63 - 1", with_attributes(valid_attributes_with(dimensions=[2**63 - 1] * 2)), ZEROS, f"start={2**63 - 3},{2**63 - 3}&size=2,2"),
    Case("a slice of 2^126 elements", with_attributes(valid_attributes_with(dimensions=[2**63 - 1] * 2)), TOO_LARGE),
    Case("blocks of 2^63 - 1", with_attributes(valid_attributes_with(dimensions=[2**63 - 1] * 2, blockSize=[2**63 - 1] * 2)), ZEROS, "start=9,9&size=1,1"),
    Case("blocks of one element", lambda d: write(d / "attributes.json", valid_attributes_with(dimensions=[10**6] * 2, blockSize=[1, 1])), ZEROS, "start=0,0&size=200,200"),
]  # fmt: skip


def linked(name, target):
    def fill(directory):
        block("raw", header(4, 4) + DATA)(directory)
        place = directory / name
        place.unlink() if place.exists() else place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)

    return fill


def replaced(name, make):
    def fill(directory):
        block("raw", header(4, 4) + DATA)(directory)
        (directory / name).unlink()
        make(directory / name)

    return fill


def unix_socket(path):
    here = os.getcwd()
    os.chdir(path.parent)  # the address of a socket has at most 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)


def inner_link(directory):
    block("raw", header(4, 4) + DATA)(directory / "real")
    (directory / "attributes.json").symlink_to("real/attributes.json")
    (directory / "0").symlink_to("real/0")


FILES = [
    Case("a block linked out of the container", linked("0/0", "/etc/passwd"), HIDDEN),
    Case("attributes linked out of the container", linked("attributes.json", "/etc/hostname"), HIDDEN),
    Case("a grid directory linked out", lambda d: (write(d / "attributes.json", attributes([4, 4], [4, 4])), (d / "0").symlink_to("/etc")), HIDDEN),
    Case("a block linked to an endless device", linked("0/0", "/dev/zero"), HIDDEN),
    Case("a block linked to itself", linked("0/0", "0"), HIDDEN),
    Case("a block linked to nothing", linked("0/0", "nothing"), HIDDEN),
    Case("a block linked upwards", linked("0/0", "../../../../../../../../etc/passwd"), HIDDEN),
    Case("links that stay inside are followed", inner_link, GOOD),
    Case("a block that is a pipe", replaced("0/0", os.mkfifo), ZEROS),
    Case("attributes that are a pipe", replaced("attributes.json", os.mkfifo), NOT_A_DATASET),
    Case("a block that is a socket", replaced("0/0", unix_socket), ZEROS),
    Case("a block that is a directory", replaced("0/0", Path.mkdir), ZEROS),
    Case("attributes that are a directory", replaced("attributes.json", Path.mkdir), NOT_A_DATASET),
    Case("a file where the grid's directory should be", lambda d: (write(d / "attributes.json", attributes([4, 4], [4, 4])), write(d / "0", b"x")), ZEROS),
]  # fmt: skip

# Cases for a server that does not run as root.
UNREADABLE = [
    Case("block without permission", replaced("0/0", lambda p: (p.write_bytes(b"x"), p.chmod(0))), HIDDEN),
    Case("attributes without permission", replaced("attributes.json", lambda p: (p.write_bytes(b"{}"), p.chmod(0))), HIDDEN),
]  # fmt: skip

ALL = HEADERS + TORN + BIT_FLIPS + BOMBS + CODECS + ATTRIBUTES + FILES
