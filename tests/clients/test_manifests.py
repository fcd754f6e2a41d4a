"""Kubernetes and Compose accept the manifests in config/. tests/it/operations.rs checks the rest."""

import pathlib
import subprocess
import sys

import pytest
import support

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
CONFIG = support.REPO / "config"


def documents(name):
    return list(yaml.safe_load_all((CONFIG / name).read_text()))


def test_every_manifest_is_valid_for_kubernetes():
    pytest.importorskip("kubernetes_validate")
    import kubernetes_validate

    kinds = set()
    for document in documents("kubernetes/n5-server.yaml"):
        # With `strict`, an unknown member is an error.
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
        kinds.add(document["kind"])
    assert kinds == {"ConfigMap", "Secret", "Deployment", "Service", "PodDisruptionBudget"}


def test_everything_a_pod_refers_to_exists():
    config, secret, deployment, service, budget = documents("kubernetes/n5-server.yaml")
    pod = deployment["spec"]["template"]
    spec, container = pod["spec"], pod["spec"]["containers"][0]
    labels = pod["metadata"]["labels"].items()
    for selector in (deployment["spec"]["selector"]["matchLabels"], service["spec"]["selector"], budget["spec"]["selector"]["matchLabels"]):
        assert selector.items() <= labels
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert volumes.keys() == mounts.keys()
    assert volumes["config"]["configMap"]["name"] == config["metadata"]["name"]
    assert volumes["secrets"]["secret"]["secretName"] == secret["metadata"]["name"]
    settings = config["data"]["n5-server.toml"]
    assert container["args"] == ["--config", mounts["config"] + "/n5-server.toml"]
    assert f'tokens = "{mounts["secrets"]}/tokens"' in settings and "tokens" in secret["stringData"]
    assert f':{container["ports"][0]["containerPort"]}"' in settings


def test_compose_starts_nginx_with_the_files_of_this_repository():
    (compose,) = documents("compose/compose.yaml")
    services = compose["services"]
    sources = [volume["source"] for service in services.values() for volume in service.get("volumes", []) if volume["type"] == "bind"]
    files = [CONFIG / "compose" / source for source in sources if not source.startswith("$")]
    assert len(files) == 2 and all(file.exists() for file in files)
    settings = pathlib.PurePath(services["n5-server"]["command"][1])
    assert (CONFIG / "compose" / settings.name).is_file() and str(settings) in services["n5-server"]["healthcheck"]["test"]
    # nginx finds the server at the address in config/nginx.conf, without a change.
    assert services["nginx"]["network_mode"] == services["n5-server"]["network_mode"] == "service:network"
    assert f'server {services["n5-server"]["environment"]["N5_SERVER__LISTEN"]} ' in (CONFIG / "nginx.conf").read_text()
    assert "DATA" in sources[1] and compose["volumes"].keys() == {"blocks"}
