"""Secrets of every source of credentials: they reach the store, and appear nowhere else."""

import base64
import http.server
import json
import os
import re
import subprocess
import threading
import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

import support
from object_stores import free_ports
from support import Server, attributes, write

#: Every secret contains this.
CANARY = "canary"
ACCOUNT_KEY = base64.b64encode(b"a canary in a key, whose encoded form is the secret").decode()
DATASET = json.dumps(attributes([8], [8], "uint8")).encode()


class Upstream(http.server.ThreadingHTTPServer):
    """A store, and the services that exchange tokens for credentials. It repeats credentials in its errors."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        #: What a request for an object gets: the object, `denied`, `redirected` or `closed`.
        self.behaviour = "served"
        #: Targets and headers of requests for objects.
        self.requests: list[tuple[str, dict[str, str]]] = []
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address):
        pass


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def token(self, target: str, body: str) -> bytes | None:
        """Return credentials for a token, or None if the request is for something else."""
        keys = {"AccessKeyId": "canary-id", "SecretAccessKey": "canary-secret", "Expiration": "2100-01-01T00:00:00Z"}
        if "AssumeRoleWithWebIdentity" in target + body:
            members = "".join(f"<{name}>{value}</{name}>" for name, value in keys.items())
            return (
                "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
                f"{members}<SessionToken>canary-session</SessionToken></Credentials></AssumeRoleWithWebIdentityResult>"
                "</AssumeRoleWithWebIdentityResponse>"
            ).encode()
        if target == "/container" or target.endswith("security-credentials/role"):
            return json.dumps(keys | {"Token": "canary-session", "Code": "Success"}).encode()
        if target == "/latest/api/token":
            return b"canary-metadata-token"
        if target.endswith("/security-credentials/"):
            return b"role"
        if target.endswith("/token") or target.startswith("/identity"):
            token = {"access_token": "canary-access", "token_type": "Bearer", "expires_in": 3600, "expires_on": "4102444800"}
            return json.dumps(token).encode()
        return None

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"] or 0)).decode()
        if (token := self.token(self.path, body)) is not None:
            return self.answer(200, token)
        self.server.requests.append((self.path, dict(self.headers.items())))
        match self.server.behaviour:
            case "denied":
                # Amazon repeats the key and the text that it signed.
                repeated = f"{self.path} {self.headers}".replace("&", "&amp;").replace("<", "&lt;")
                code = "SignatureDoesNotMatch"
                self.answer(403, f"<Error><Code>{code}</Code><Message>by rule</Message><StringToSign>{repeated}</StringToSign></Error>".encode())
            case "redirected":
                self.answer(307, b"", Location=f"http://127.0.0.2:{self.server.server_port}/{self.path}&sig=canary-sig")
            case "closed":
                self.close_connection = True
            case "served" if urllib.parse.urlsplit(self.path).path.endswith("/v/attributes.json"):
                self.answer(200, DATASET, ETag='"1"')
            case "served":
                self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>", x_ms_error_code="BlobNotFound")

    do_PUT = do_POST = do_HEAD = do_GET


@dataclass
class Source:
    """A source of credentials."""

    root: str
    #: What a request for an object contains if the secrets are used: in its target, or in its headers.
    sent: str
    settings: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


def service_account(token_url: str) -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return json.dumps({
        "type": "service_account", "client_email": "canary@example.org", "private_key_id": "canary-id", "token_uri": token_url,
        "private_key": key.private_bytes(*form).decode(), "client_id": "1",
    })  # fmt: skip


KEYS = {"AWS_ACCESS_KEY_ID": "canary-id", "AWS_SECRET_ACCESS_KEY": "canary-secret", "AWS_SESSION_TOKEN": "canary-session"}
#: UPSTREAM stands for the URL of the upstream, FILES for the directory of the files, SERVICE-ACCOUNT for a new account.
SOURCES = {
    "s3 env": Source("s3://volumes", "canary-session", {"credentials": "env"}, KEYS),
    "s3 profile": Source(
        "s3://volumes", "canary-session", {"credentials": "profile:lab"},
        {"AWS_SHARED_CREDENTIALS_FILE": "FILES/credentials", "AWS_CONFIG_FILE": "FILES/config"},
        {"credentials": "[lab]\n" + "".join(f"{name.lower()} = {value}\n" for name, value in KEYS.items()),
         "config": "[profile lab]\nregion = eu-central-1\n"},
    ),
    "s3 file": Source(
        "s3://volumes", "canary-session", {"credentials": "file:FILES/keys"}, {},
        {"keys": "".join(f"{name}={value}\n" for name, value in KEYS.items())},
    ),
    "s3 web-identity": Source(
        "s3://volumes", "canary-session", {"credentials": "web-identity"},
        {"AWS_WEB_IDENTITY_TOKEN_FILE": "FILES/token", "AWS_ROLE_ARN": "arn:aws:iam::1:role/r", "AWS_ENDPOINT_URL_STS": "UPSTREAM"},
        {"token": "canary-identity"},
    ),
    "s3 container": Source(
        "s3://volumes", "canary-session", {"credentials": "env"},
        {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "UPSTREAM/container", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "FILES/token"},
        {"token": "canary-container"},
    ),
    "s3 instance": Source(
        "s3://volumes", "canary-session", {"credentials": "instance"}, {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "UPSTREAM"},
    ),
    "google file": Source("gs://volumes", "Bearer eyJ", {"credentials": "file:FILES/account"}, {}, {"account": "SERVICE-ACCOUNT"}),
    "google env": Source(
        "gs://volumes", "Bearer eyJ", {"credentials": "env"},
        {"GOOGLE_APPLICATION_CREDENTIALS": "FILES/account"}, {"account": "SERVICE-ACCOUNT"},
    ),
    "azure key": Source(
        "az://volumes", "SharedKey", {"credentials": "env"},
        {"AZURE_STORAGE_ACCOUNT_NAME": "lab", "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY},
    ),
    "azure signature": Source(
        "az://volumes", "sig=canary-sig", {"credentials": "file:FILES/azure"}, {},
        {"azure": "AZURE_STORAGE_ACCOUNT_NAME=lab\nAZURE_STORAGE_SAS_TOKEN=sv=2022-11-02&sp=rl&sig=canary-sig\n"},
    ),
    "azure login": Source(
        "az://volumes", "Bearer canary-access", {"credentials": "env"},
        {"AZURE_STORAGE_ACCOUNT_NAME": "lab", "AZURE_CLIENT_ID": "1", "AZURE_TENANT_ID": "t", "AZURE_CLIENT_SECRET": "canary-client",
         "AZURE_AUTHORITY_HOST": "UPSTREAM"},
    ),
    "azure web-identity": Source(
        "az://volumes", "Bearer canary-access", {"credentials": "web-identity"},
        {"AZURE_STORAGE_ACCOUNT_NAME": "lab", "AZURE_CLIENT_ID": "1", "AZURE_TENANT_ID": "t", "AZURE_FEDERATED_TOKEN_FILE": "FILES/token",
         "AZURE_AUTHORITY_HOST": "UPSTREAM"},
        {"token": "canary-federated"},
    ),
    "http token": Source("UPSTREAM/volumes", "Bearer canary-token", {"credentials": "file:FILES/token"}, {}, {"token": "canary-token"}),
}  # fmt: skip


@pytest.fixture
def upstream():
    upstream = Upstream()
    yield upstream
    upstream.stop()


def secrets_in(text: str, others: list[str]) -> list[str]:
    """Return the lines of a text that contain a secret."""
    wanted = re.compile("|".join([CANARY, *map(re.escape, others)]), re.IGNORECASE)
    return [line[:300] for line in text.splitlines() if wanted.search(line)]


@pytest.mark.parametrize("name", SOURCES)
def test_secrets_reach_the_store_and_appear_nowhere_else(name, upstream, tmp_path):
    source = SOURCES[name]
    account = service_account(f"{upstream.url}/token") if "google" in name else ""

    def filled(text: str) -> str:
        return text.replace("UPSTREAM", upstream.url).replace("FILES", str(tmp_path / "files")).replace("SERVICE-ACCOUNT", account)

    for file, text in source.files.items():
        write(tmp_path / "files" / file, text.replace("SERVICE-ACCOUNT", account))
    settings = {"timeout": "1s"} | source.settings
    if not source.root.startswith("UPSTREAM"):
        settings |= {"endpoint": f"{upstream.url}/lab" if name.startswith("azure") else upstream.url}
    if source.root.startswith("s3"):
        settings |= {"path_style": "true"} | ({} if name == "s3 profile" else {"region": "us-east-1"})
    arguments = [part for key, value in settings.items() for part in ("--set", f"container_defaults.store.{key}={filled(value)}")]
    own = tmp_path / "tmp"
    own.mkdir()
    arguments += ["--set", f"cache.disk.path={own / 'disk'}"]
    environment = {key: filled(value) for key, value in source.environment.items()} | {"TMPDIR": str(own), "HOME": str(own)}
    # Lines of a private key, tokens that are signed with it, and the key of a storage account do not contain the canary.
    others = ["Bearer ey", ACCOUNT_KEY, *re.findall(r"[A-Za-z0-9+/]{40,}", account)]
    seen = []
    with Server(filled(source.root), *arguments, environment=environment, level="trace") as server:
        def ask(*targets: str) -> None:
            for target in targets:
                answer = server.get(target)
                seen.append(f"{answer.headers}\n{answer.body.decode(errors='replace')}")

        ask("/n5/v/attributes.json", "/info/v", "/slice/v", "/n5/v/0", "/n5/v", "/n5/", "/n5/none", "/zarr3/v/zarr.json", "/info/", "/")
        assert server.get("/n5/v/attributes.json").body == DATASET
        sent = [f"{target} {headers}" for target, headers in upstream.requests]
        assert sent and all(source.sent in request for request in sent), sent[:2]
        for behaviour in ("denied", "redirected", "closed"):
            upstream.behaviour = behaviour
            ask("/n5/", "/slice/v?start=4", "/readyz", "/metrics")
            answer = server.get(f"/n5/v/{len(behaviour)}")
            assert answer.status >= 500, (behaviour, answer.status, answer.body)
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                seen.append(path.read_bytes().decode(errors="replace"))
            except OSError:
                pass  # the process has ended
        assert (own / "disk").is_dir()
        seen += [path.read_bytes().decode(errors="replace") for path in own.rglob("*") if path.is_file()]
        assert len(server.log()) > 1000, "the log is not detailed"
        seen.append(server.log())
    found = [line for text in seen for line in secrets_in(text, others)]
    assert not found, found[:5]


@pytest.mark.parametrize("argument", [
    "https://canary-user:canary-password@example.org/x.n5", "s3+https://canary-id:canary-secret@example.org/b/x.n5",
    "https://lab.blob.core.windows.net/c/x.n5?sv=1&sig=canary-sig", "https://example.org?token=canary-token",
    "--set=containers.root=https://canary-user:canary-password@example.org/", "--set=container_defaults.store.credentials=canary-secret",
    "--set=container_defaults.store.endpoint=https://canary-user:canary-password@example.org",
])  # fmt: skip
def test_an_argument_with_a_secret_is_refused_without_repeating_it(argument):
    refused = subprocess.run([support.binary(), argument, "--listen", "127.0.0.1:0"], capture_output=True, text=True, timeout=30)
    assert refused.returncode != 0 and refused.stderr
    assert not secrets_in(refused.stdout + refused.stderr, []), refused.stderr


def test_the_password_of_a_proxy_is_not_logged(tmp_path):
    [port] = free_ports(1)  # nothing listens there
    proxy = {"HTTP_PROXY": f"http://canary-user:canary-password@127.0.0.1:{port}"}
    command = [support.binary(), "http://volumes.example/x.n5", "--listen", "127.0.0.1:0", "--set", "log.level=trace"]
    refused = subprocess.run(command, env=os.environ | proxy, capture_output=True, text=True, timeout=60)
    assert refused.returncode != 0 and refused.stderr
    assert not secrets_in(refused.stdout + refused.stderr, []), refused.stderr
