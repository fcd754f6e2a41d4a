"""openapi.yaml is valid, its examples are true, and the server conforms to it."""

import collections
import json
import re
import urllib.parse

import openapi_spec_validator
import pytest
import schemathesis
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import load_all_checks, not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

import support

FILE = support.REPO / "openapi.yaml"
DOCUMENT = yaml.safe_load(FILE.read_text())
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
EXAMPLES = 50
SCHEMA = schemathesis.openapi.from_path(str(FILE))
OPERATIONS = {result.ok().label: result.ok() for result in SCHEMA.get_all_operations()}
# Number of responses by operation and status.
SEEN = collections.defaultdict(collections.Counter)

load_all_checks()


def spans_segments(operation):
    """Return the path parameters whose slashes separate segments."""
    item = DOCUMENT["paths"][operation.path]
    named = [resolve(parameter) for parameter in item.get("parameters", [])]
    return {parameter["name"] for parameter in named if parameter.get("x-spans-segments")}


def resolve(node):
    while "$ref" in node:
        found = DOCUMENT
        for part in node["$ref"][2:].split("/"):
            found = found[part]
        node = found
    return node


def examples(operation):
    """Return the examples of the path parameters in the document, which exist in the demo container."""
    parameters = [resolve(p) for p in DOCUMENT["paths"][operation.path].get("parameters", [])]
    return {
        p["name"]: [example["value"] for example in p["examples"].values()] for p in parameters if p["in"] == "path"
    }


def call(case, server):
    """Send a case. Slashes of parameters that span segments are not escaped."""
    spanning = spans_segments(case.operation)
    case.path_parameters = {
        name: str(value).replace("%2F", "/") if name in spanning else value
        for name, value in (case.path_parameters or {}).items()
    }
    response = case.call(base_url=server.url.rstrip("/"), allow_redirects=False, timeout=60)
    SEEN[case.operation.label][response.status_code] += 1
    case.validate_response(response, checks=CHECKS)


def cases(operation):
    """Return a strategy for the cases of an operation. Most name existing data, so that not only errors occur."""
    known = examples(operation)
    there = {name: st.sampled_from([urllib.parse.quote(value) for value in values]) for name, values in known.items()}
    if not there:
        return operation.as_strategy()
    fixed = st.fixed_dictionaries(there).flatmap(lambda values: operation.as_strategy(path_parameters=values))
    # Without query and headers, most requests for existing data are answered with 200.
    return st.one_of(fixed, fixed.map(bare), operation.as_strategy())


def bare(case):
    if case.method != "OPTIONS":
        case.query, case.headers = {}, {}
    return case


def test_the_document_is_valid():
    openapi_spec_validator.validate(DOCUMENT)


@pytest.mark.slow
@pytest.mark.parametrize("label", OPERATIONS)
def test_operation(demo, label):
    operation = OPERATIONS[label]

    @settings(max_examples=EXAMPLES, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=cases(operation))
    def holds(case):
        call(case, demo)

    holds()


def is_built(operation, demo):
    """Return True if the operation can succeed here. The viewer is not part of the binary."""
    return not operation.path.startswith("/viewer/") or demo.ask("/viewer/").status == 200


@pytest.mark.slow
def test_every_operation_was_answered_with_success(demo):
    if not SEEN:
        pytest.skip("no operation was tested")
    for label, statuses in SEEN.items():
        print(label, dict(statuses))
    succeeded = {label for label in OPERATIONS if any(200 <= status < 300 for status in SEEN[label])}
    without = [label for label in OPERATIONS if label not in succeeded and is_built(OPERATIONS[label], demo)]
    assert not without


def test_every_example_of_a_parameter_is_valid(demo):
    for operation in OPERATIONS.values():
        if operation.method.upper() == "OPTIONS" or not is_built(operation, demo):
            continue
        known = examples(operation)
        for number in range(max((len(values) for values in known.values()), default=1)):
            target = operation.path
            for name, values in known.items():
                target = target.replace("{%s}" % name, values[number % len(values)])
            assert demo.ask(target, operation.method.upper()).status in (200, 301), target


def test_every_example_answer_is_correct(demo):
    """Compare each example with the response to the target in its summary."""
    checked = 0
    for response in DOCUMENT["components"]["responses"].values():
        for media_type, content in response.get("content", {}).items():
            for example in content.get("examples", {}).values():
                answer = demo.get(example["summary"])
                assert answer["content-type"].split(";")[0] == media_type
                assert answer.json() == example["value"], example["summary"]
                checked += 1
    assert checked >= 3


def test_problem_types_match_the_documentation(demo):
    page = (support.REPO / "docs" / "PROBLEMS.md").read_text()
    sections = re.findall(r"^## ([a-z-]+)$", page, re.M)
    pattern = DOCUMENT["components"]["schemas"]["ProblemType"]["pattern"]
    assert sorted(sections) == sorted(re.search(r"\((.*)\)", pattern)[1].split("|"))
    address = demo.get("/nothing/").json()["type"]
    assert address.split("#")[0].endswith("docs/PROBLEMS.md") and address.split("#")[1] in sections


def test_exposed_headers_are_the_documented_ones(demo):
    exposed = {name.strip().lower() for name in demo.get("/")["access-control-expose-headers"].split(",")}
    documented = {
        name.lower() for response in DOCUMENT["components"]["responses"].values() for name in response.get("headers", {})
    }
    cors = {name for name in documented if name.startswith("access-control-")}
    # Exposed only if access control is configured.
    documented.discard("www-authenticate")
    assert documented - cors <= exposed, documented - cors - exposed


def test_the_document_survives_json(demo):
    assert json.loads(json.dumps(DOCUMENT))["openapi"].startswith("3.1")
