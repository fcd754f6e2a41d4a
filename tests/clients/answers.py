"""How the answers of two servers to the same requests differ."""

import json
import re

from support import Server


def differences(local: Server, remote: Server, requests) -> list[str]:
    """Return how the answers of two servers differ, apart from addresses, entity tags and dates."""
    found = []
    names = ("content-type", "content-length", "content-range", "accept-ranges", "location", "cache-control",
             "n5-shape", "n5-data-type", "n5-missing-blocks", "allow")  # fmt: skip

    def essence(server: Server, method: str, target: str, headers: dict[str, str]):
        answer = server.ask(target, method, headers)
        body = answer.body.replace(f"{server.host}:{server.port}".encode(), b"SERVER")
        described = {name: answer[name] for name in names}
        # The length of a body that contains the port.
        if body != answer.body or method == "HEAD" and "json" in (answer["content-type"] or ""):
            del described["content-length"]
        if answer["content-type"] == "application/problem+json" and body:
            # Request ids differ.
            body = {key: value for key, value in json.loads(body).items() if key in ("type", "title", "status", "detail")}
            body["detail"] = re.sub(r'is now ".*"', "is now another", body["detail"])
            described.pop("content-length", None)
        described["has a tag"] = answer["etag"] is not None
        return answer.status, described, body

    for method, target, headers in requests:
        expected, got = essence(local, method, target, headers), essence(remote, method, target, headers)
        if got != expected:
            found.append(f"{method} {target} {headers or ''}:\n  local  {str(expected)[:700]}\n  remote {str(got)[:700]}")
    return found
