"""Requests that no honest client sends, with the expected responses: (name, request, (statuses, problem)).

A request is a target, a target with method and headers (`Ask`), or the octets of a whole request. The problem is None
if the HTTP parser itself refuses the request or the response is not an error. `/vol` is a volume of 8 x 8 x 8.
"""

from dataclasses import dataclass, field

BAD_PATH = (400, "invalid-parameter")
MISSING = (404, "not-found")
PARAMETER = (400, "invalid-parameter")
BOUNDS = (400, "out-of-bounds")
TOO_LARGE = (413, "too-large")
PARSER = ({400, 404, 405, 408, 413, 414, 431, 501, 505}, None)


@dataclass
class Request:
    target: bytes | str
    method: str = "GET"
    headers: list = field(default_factory=list)


def _slice(query):
    return f"/slice/vol?{query}"


TRAVERSAL = [
    (f"{how} {view}", f"{view}/{target}", BAD_PATH)
    for view in ("/n5", "/slice", "/info", "")
    for how, target in [
        ("dots", "../../../etc/passwd"),
        ("encoded dots", "%2e%2e/%2e%2e/etc/passwd"),
        ("mixed dots", ".%2e/.%2E/etc/passwd"),
        ("encoded slash", "vol%2f..%2f..%2fetc%2fpasswd"),
        ("encoded backslash", "..%5c..%5cetc%5cpasswd"),
        ("dot", "./vol"),
        ("empty segment", "vol//0/0/0"),
        ("overlong dot", "%c0%ae%c0%ae/etc/passwd"),
        ("overlong slash", "..%c0%af..%c0%afetc"),
        ("three-byte overlong", "%e0%80%ae%e0%80%ae/x"),
    ]
]

PATHS = [
    ("doubly encoded dots name a group", "/n5/%252e%252e/%252e%252e/etc/passwd", MISSING),
    ("doubly encoded slash names a group", "/n5/vol%252f0", MISSING),
    ("NUL", "/n5/vol%00/attributes.json", BAD_PATH),
    ("NUL after a name", "/n5/vol/attributes.json%00.png", BAD_PATH),
    ("line break", "/n5/vol%0d%0aSet-Cookie:x=1", BAD_PATH),
    ("tab", "/n5/%09", BAD_PATH),
    ("delete", "/n5/%7f", BAD_PATH),
    ("C1 control", "/n5/%c2%85", BAD_PATH),
    ("invalid escape", "/n5/%zz", BAD_PATH),
    ("escape cut off", "/n5/%4", BAD_PATH),
    ("lone percent", "/n5/%", BAD_PATH),
    ("unicode escape", "/n5/%u002e", BAD_PATH),
    ("not UTF-8", "/n5/%ff%fe", BAD_PATH),
    ("surrogate", "/n5/%ed%a0%80", BAD_PATH),
    ("beyond Unicode", "/n5/%f4%90%80%80", BAD_PATH),
    ("raw octets that are not UTF-8", b"/n5/\xff\xfe", PARSER),
    ("fullwidth dots are a name", "/n5/%ef%bc%8e%ef%bc%8e/x", MISSING),
    ("a Windows device", "/n5/C:/Windows", MISSING),
    ("a home directory", "/n5/~root/.ssh/id_rsa", MISSING),
    ("a URL as a key", "/n5/http:%2f%2fevil.org", BAD_PATH),
    ("file of a git repository", "/.git/config", MISSING),
    ("a block position with a leading zero", "/n5/vol/00/0/0", MISSING),
    ("a block position with a sign", "/n5/vol/-1/0/0", MISSING),
    ("a block position with a plus", "/n5/vol/+1/0/0", MISSING),
    ("a block position in other digits", "/n5/vol/%d9%a1/0/0", MISSING),
    ("a block position of 4000 digits", "/n5/vol/" + "9" * 4000 + "/0/0", MISSING),
    ("a block position beyond 64 bits", "/n5/vol/18446744073709551616/0/0", MISSING),
    ("250 segments", "/n5/" + "a/" * 250, MISSING),
    ("a name of 256 bytes", "/n5/" + "a" * 256, MISSING),
    ("a path of 5000 bytes", "/n5/" + "abcdefghi/" * 240, MISSING),
    ("20000 segments", "/n5/" + "a/" * 20000, ({404, 400, 414}, None)),
    ("a target of 100 KB", "/n5/" + "a" * 100_000, ({404, 414, 431}, None)),
    ("attributes below a block", "/n5/vol/0/0/0/attributes.json", MISSING),
    ("attributes below attributes", "/n5/vol/attributes.json/attributes.json", MISSING),
    ("a fragment", "/n5/vol#frag", ({301, 400}, None)),
    ("views cannot be nested", "/slice/n5/vol", MISSING),
    ("an operation has no children", "/metrics/x", MISSING),
]  # fmt: skip

SLICES = [
    ("letters", _slice("start=a,b,c"), PARAMETER),
    ("floats", _slice("start=0.0,0,0"), PARAMETER),
    ("exponent", _slice("start=1e3,0,0"), PARAMETER),
    ("hexadecimal", _slice("start=0x1,0,0"), PARAMETER),
    ("plus sign", _slice("start=%2b1,0,0"), PARAMETER),
    ("spaces", _slice("start=1,%202,3"), PARAMETER),
    ("Arabic digits", _slice("start=%d9%a1,0,0"), PARAMETER),
    ("empty list", _slice("start="), ({400}, None)),
    ("empty item", _slice("start=1,,2"), PARAMETER),
    ("negative start", _slice("start=-1,0,0"), PARAMETER),
    ("beyond 63 bits", _slice("start=9223372036854775808,0,0"), PARAMETER),
    ("4000 digits", _slice("start=" + "9" * 4000 + ",0,0"), PARAMETER),
    ("last valid number", _slice("start=9223372036854775807,0,0&size=1,1,1"), BOUNDS),
    ("size that overflows", _slice("start=1,0,0&size=9223372036854775807,1,1"), BOUNDS),
    ("one too many", _slice("start=0,0,0&size=9,8,8"), BOUNDS),
    ("too few axes", _slice("start=0,0"), BOUNDS),
    ("too many axes", _slice("start=0,0,0,0"), BOUNDS),
    ("10000 axes", _slice("start=" + ",".join("0" * 10_000)), ({400, 414}, None)),
    ("stop before start", _slice("start=4,4,4&stop=1,8,8"), ({400}, None)),
    ("stop and size", _slice("stop=1,1,1&size=1,1,1"), PARAMETER),
    ("step of zero", _slice("step=0,1,1"), PARAMETER),
    ("negative step", _slice("step=-1,1,1"), PARAMETER),
    ("a huge step is one sample", _slice(f"step={2**63 - 1},{2**63 - 1},{2**63 - 1}"), ({200}, None)),
    ("repeated parameter", _slice("start=0,0,0&start=1,1,1"), PARAMETER),
    ("repeated in another spelling", _slice("start=0,0,0&%73tart=1,1,1"), PARAMETER),
    ("misspelt parameter", _slice("strat=0,0,0"), PARAMETER),
    ("nul parameter", _slice("%00=1"), PARAMETER),
    ("invalid escape in a value", _slice("start=%zz,0,0"), PARAMETER),
    ("unknown format", _slice("format=exe"), PARAMETER),
    ("format with a path", _slice("format=../../etc/passwd"), PARAMETER),
    ("unknown order", _slice("order=A"), PARAMETER),
    ("big endian json", _slice("endian=big&format=json"), PARAMETER),
    ("window without png", _slice("window=0,1"), PARAMETER),
    ("window that is not finite", _slice("format=png&select=0&window=nan,inf"), PARAMETER),
    ("png of three axes", _slice("format=png"), PARAMETER),
    ("index and box", _slice("select=0&start=0,0,0"), PARAMETER),
    ("two ellipses", _slice("select=...,..."), PARAMETER),
    ("negative index step", _slice("select=::-1"), PARAMETER),
    ("code as an index", _slice("select=__import__('os')"), PARAMETER),
    ("index beyond the axis", _slice("select=8"), BOUNDS),
    ("too many indices", _slice("select=0,0,0,0"), BOUNDS),
    ("1 EiB of zeros", _slice("outside=zero&size=1048576,1048576,1048576"), TOO_LARGE),
    ("product beyond 64 bits", _slice("outside=zero&size=4294967296,4294967296,4294967296"), TOO_LARGE),
    ("product beyond 128 bits", _slice(f"outside=zero&size={2**63 - 1},{2**63 - 1},{2**63 - 1}"), TOO_LARGE),
    ("far outside", _slice(f"outside=zero&start={-(2**63) + 1},0,0&size=1,1,1"), ({200}, None)),
    ("a json beyond the budget", _slice("outside=zero&format=json&size=2000,2000,100"), TOO_LARGE),
    ("a png beyond the budget", _slice("outside=zero&format=png&size=60000,60000,1"), TOO_LARGE),
    ("100000 parameters", _slice("&".join("x=1" for _ in range(20_000))), ({400, 414}, None)),
    ("nothing but separators", _slice("&&&&&&"), ({200}, None)),
    ("a question mark in a value", _slice("start=0,0,0?stop=1,1,1"), PARAMETER),
    ("markup in a value", _slice("format=<script>alert(1)</script>"), ({400}, None)),
    ("no dataset", "/slice/nothing", MISSING),
    ("a block as a dataset", "/slice/vol/0/0/0", MISSING),
    ("attributes as a dataset", "/slice/vol/attributes.json", MISSING),
]  # fmt: skip

HEADERS = [
    ("range of 1000 parts", Request("/vol/0/0/0", headers=[("Range", "bytes=" + ",".join(f"{i}-{i}" for i in range(1000)))]), ({200}, None)),
    ("overlapping ranges", Request("/vol/0/0/0", headers=[("Range", "bytes=0-,0-,0-,0-,0-")]), ({200, 206}, None)),
    ("range beyond 64 bits", Request("/vol/0/0/0", headers=[("Range", "bytes=99999999999999999999-")]), ({200, 416}, None)),
    ("range of the last 64-bit byte", Request("/vol/0/0/0", headers=[("Range", "bytes=18446744073709551615-")]), (416, "range-not-satisfiable")),
    ("range with a huge end", Request("/vol/0/0/0", headers=[("Range", "bytes=0-18446744073709551615")]), ({206}, None)),
    ("two Range headers", Request("/vol/0/0/0", headers=[("Range", "bytes=0-1"), ("Range", "bytes=2-3")]), ({200, 206}, None)),
    ("10000 entity tags", Request("/vol/0/0/0", headers=[("If-None-Match", ", ".join(f'"{i}"' for i in range(5000)))]), ({200}, None)),
    ("malformed entity tags", Request("/vol/0/0/0", headers=[("If-None-Match", '"""W/""')]), ({200}, None)),
    ("malformed dates", Request("/vol/0/0/0", headers=[("If-Modified-Since", "tomorrow")]), ({200}, None)),
    ("Accept of 5000 members", Request("/slice/vol", headers=[("Accept", ",".join("a/b;q=0.1" for _ in range(3000)))]), (406, "not-acceptable")),
    ("Accept that is garbage", Request("/slice/vol", headers=[("Accept", ";;;,,,/;q=9")]), ({200}, None)),
    ("Accept-Encoding that is garbage", Request("/info/vol", headers=[("Accept-Encoding", "gzip;q=x, ,;")]), ({200}, None)),
    ("no acceptable content coding", Request("/info/vol", headers=[("Accept-Encoding", "identity;q=0, *;q=0")]), ({200, 406}, None)),
    ("forwarded headers from an untrusted address", Request("/info/vol", headers=[("X-Forwarded-Host", "evil.org"), ("X-Forwarded-Prefix", "//evil.org")]), ({200}, None)),
    ("a host that is markup", Request("/info/vol", headers=[("Host", "<script>")]), ({200, 400}, None)),
    ("a star as the target", Request("*", "OPTIONS"), ({204, 400}, None)),
    ("a body on GET", Request("/vol/0/0/0", headers=[("Content-Length", "0")]), ({200}, None)),
    ("an unknown method", Request("/vol/0/0/0", "BREW", [("Content-Length", "0")]), (405, "method-not-allowed")),
    ("an upload", Request("/vol/0/0/0", "PUT", [("Content-Length", "0")]), (405, "method-not-allowed")),
    ("a request to make a directory", Request("/vol/", "MKCOL"), (405, "method-not-allowed")),
    ("CONNECT", Request("evil.org:443", "CONNECT"), PARSER),
    ("expectation", Request("/vol/0/0/0", headers=[("Expect", "100-continue")]), ({200, 417}, None)),
    ("upgrade to a websocket", Request("/", headers=[("Connection", "Upgrade"), ("Upgrade", "websocket")]), ({200}, None)),
    ("a request id with a line break", Request("/nothing", headers=[("X-Request-Id", "a\\r\\nX-Evil: 1")]), MISSING),
]  # fmt: skip

RAW = [
    ("not HTTP", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64) + b"\r\n\r\n", PARSER),
    ("only line breaks", b"\r\n" * 2000, PARSER),
    ("a space in the target", b"GET /vol /x HTTP/1.1\r\nHost: n5\r\n\r\n", PARSER),
    ("a NUL in the target", b"GET /vol\0 HTTP/1.1\r\nHost: n5\r\n\r\n", PARSER),
    ("HTTP/3.0", b"GET / HTTP/3.0\r\nHost: n5\r\n\r\n", PARSER),
    ("500 headers", b"GET / HTTP/1.1\r\nHost: n5\r\n" + b"X: y\r\n" * 500 + b"\r\n", PARSER),
    ("a header of 1 MB", b"GET / HTTP/1.1\r\nHost: n5\r\nX: " + b"y" * 1_000_000 + b"\r\n\r\n", PARSER),
    ("two lengths", b"POST / HTTP/1.1\r\nHost: n5\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", PARSER),
    ("length and chunks", b"POST / HTTP/1.1\r\nHost: n5\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", PARSER),
    ("negative length", b"POST / HTTP/1.1\r\nHost: n5\r\nContent-Length: -1\r\n\r\n", PARSER),
    ("a chunk of 2^64 bytes", b"POST / HTTP/1.1\r\nHost: n5\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n", PARSER),
    ("an HTTP/2 preface and garbage", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100, PARSER),
]  # fmt: skip

ALL = TRAVERSAL + PATHS + SLICES + HEADERS + RAW
