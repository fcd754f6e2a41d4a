"""The files in config/scaling agree with each other, with n5-server, HAProxy and the schemas of Kubernetes."""

import os
import re
import subprocess

import pytest
import support
from balancers import PROGRAMS, SCALING

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
tomllib = pytest.importorskip("tomllib")

UNITS = {"m": 1, "g": 1024, "Mi": 1, "Gi": 1024}


@pytest.fixture(scope="module")
def manifests():
    found = {}
    for document in yaml.safe_load_all((SCALING / "kubernetes.yaml").read_text()):
        found[document["kind"], document["metadata"]["name"]] = document
    return found


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load((SCALING / "compose.yaml").read_text())


def workloads(manifests):
    return [manifests[key] for key in (("Deployment", "n5-front"), ("StatefulSet", "n5-inner"), ("Deployment", "n5-balancer"))]


def inner_servers(haproxy):
    """Return the addresses of the inner replicas, by id."""
    found = re.findall(r'^\s*server inner\d "?([^\s"]+):8080"? id (\d+) weight 10$', haproxy, re.MULTILINE)
    return {int(number): host for host, number in found}


def directives(haproxy, section):
    """Return the directives of a section of a HAProxy configuration, without servers and comments."""
    _, _, rest = haproxy.partition(f"\n{section}\n")
    lines = [line.strip() for line in re.split(r"\n(?=\S)", rest)[0].splitlines()]
    return [line for line in lines if line and not line.startswith(("#", "server ", "bind "))]


def check_memory(config, limit):
    """Check the configuration, and that the limit covers the memory that it announces."""
    command = [str(support.binary()), "--check-config", "--config", str(config)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("N5_")}
    # This machine may have more memory than the container for which the limit is meant.
    environment["N5_MEMORY__LIMIT"] = "least"
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert printed.returncode == 0, printed.stderr
    terms = re.search(r"memory +(\d+)MiB[\s\S]* up to (\d+) MiB more\nsockets +up to (\d+) MiB more", printed.stdout)
    assert terms, printed.stdout
    number, unit = re.fullmatch(r"(\d+)(\w+)", limit).groups()
    assert sum(map(int, terms.groups())) + 64 <= int(number) * UNITS[unit], (limit, printed.stdout)


def test_every_manifest_is_valid_for_kubernetes(manifests):
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for document in manifests.values():
        # With `strict`, an unknown member is an error.
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    kinds = {kind for kind, _ in manifests}
    assert kinds == {"ConfigMap", "Deployment", "StatefulSet", "Service", "HorizontalPodAutoscaler", "PodDisruptionBudget",
                     "NetworkPolicy"}  # fmt: skip


def test_selectors_ports_and_volumes_lead_to_pods(manifests):
    for workload in workloads(manifests):
        name, pod = workload["metadata"]["name"], workload["spec"]["template"]
        labels = pod["metadata"]["labels"].items()
        service, budget = manifests["Service", name], manifests["PodDisruptionBudget", name]
        for selector in (workload["spec"]["selector"]["matchLabels"], service["spec"]["selector"], budget["spec"]["selector"]["matchLabels"]):
            assert selector.items() <= labels, name
        (container,) = pod["spec"]["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert all(port["targetPort"] in ports for port in service["spec"]["ports"]), name
        probes = [container[probe]["httpGet"]["port"] for probe in ("livenessProbe", "readinessProbe")]
        assert all(port in ports for port in probes), name
        # Every file that the program is told to read is in the ConfigMap.
        mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
        (volume,) = pod["spec"]["volumes"]
        mount = mounts.pop(volume["name"])
        # The others are claims.
        assert set(mounts) == {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])}, name
        files = manifests["ConfigMap", volume["configMap"]["name"]]["data"]
        assert container["args"][-1].removeprefix(mount["mountPath"] + "/") in files, name
    scaled = manifests["HorizontalPodAutoscaler", "n5-front"]["spec"]["scaleTargetRef"]
    assert (scaled["kind"], scaled["name"]) in manifests
    # The autoscaler sets the number, and an update of the manifest must not reset it.
    assert "replicas" not in manifests["Deployment", "n5-front"]["spec"]


def test_policies_let_each_tier_reach_only_the_next_one(manifests):
    for target, source in (("n5-inner", "n5-balancer"), ("n5-balancer", "n5-front")):
        spec = manifests["NetworkPolicy", target]["spec"]
        (rule,) = spec["ingress"]
        (allowed,) = rule["from"]
        for selector, name in ((spec["podSelector"], target), (allowed["podSelector"], source)):
            (workload,) = [found for found in workloads(manifests) if found["metadata"]["name"] == name]
            assert selector["matchLabels"].items() <= workload["spec"]["template"]["metadata"]["labels"].items()
        assert rule["ports"] == [{"port": manifests["Service", target]["spec"]["ports"][0]["targetPort"]}]


def test_haproxy_in_kubernetes_has_the_inner_replicas_by_name(manifests, tmp_path):
    text = manifests["ConfigMap", "n5-scaling"]["data"]["haproxy.cfg"]
    inner = manifests["StatefulSet", "n5-inner"]
    service = inner["spec"]["serviceName"]
    assert manifests["Service", service]["spec"]["clusterIP"] == "None"
    expected = {n + 1: f"n5-inner-{n}.{service}.${{NAMESPACE}}.svc.cluster.local" for n in range(inner["spec"]["replicas"])}
    assert inner_servers(text) == expected
    shipped = (SCALING / "haproxy.cfg").read_text()
    for section in ("frontend inner", "backend inner"):
        assert directives(text, section) == directives(shipped, section) != [], section
    extra = {"default-server check inter 2s fall 2 rise 1"}
    assert set(directives(shipped, "defaults")) - extra <= set(directives(text, "defaults"))
    for configuration in (text, shipped):
        (tmp_path / "haproxy.cfg").write_text(configuration)
        if PROGRAMS["haproxy"]:
            environment = os.environ | {"NAMESPACE": "lab"}
            checked = subprocess.run([PROGRAMS["haproxy"], "-c", "-f", tmp_path / "haproxy.cfg"], capture_output=True, text=True, env=environment)
            assert checked.returncode == 0 and "WARNING" not in checked.stderr, checked.stderr


def test_the_front_tier_reads_containers_of_the_inner_tier_through_the_balancer(manifests, compose):
    balancer = manifests["Service", "n5-balancer"]
    settings = manifests["ConfigMap", "n5-scaling"]["data"]
    in_kubernetes = (balancer["metadata"]["name"], settings["front.toml"], settings["inner.toml"])
    address = compose["services"]["haproxy"]["networks"]["tiers"]["ipv4_address"]
    in_compose = (address, (SCALING / "front.toml").read_text(), (SCALING / "inner.toml").read_text())
    for host, front, inner in (in_kubernetes, in_compose):
        front, inner = tomllib.loads(front), tomllib.loads(inner)
        names = {container["name"] for container in inner["containers"]}
        for container in front["containers"]:
            prefix, _, name = container["root"].rpartition("/")
            assert prefix == f"http://{host}:8081/n5" and name in names
    # docs/SCALING.md, Freshness, has the times of both.
    freshness = [{key: value for key, value in tomllib.loads(front)["containers"][0].items() if key not in ("name", "root")}
                 for _, front, _ in (in_kubernetes, in_compose)]  # fmt: skip
    assert freshness[0] == freshness[1] and freshness[0].keys() == {"recheck_cached_metadata", "recheck_cached_data", "remember_missing"}
    for settings in in_compose[1:]:
        assert tomllib.loads(settings)["server"]["trusted_proxies"] == [address]


def test_compose_gives_the_services_the_addresses_that_the_balancers_use(compose):
    services = compose["services"]
    addresses = {name: service["networks"]["tiers"]["ipv4_address"] for name, service in services.items()}
    text = (SCALING / "haproxy.cfg").read_text()
    front = dict(re.findall(r"^  server (front\d) (\S+):8080$", text, re.MULTILINE))
    inner = {f"inner{number}": host for number, host in inner_servers(text).items()}
    assert front | inner | {"haproxy": addresses["haproxy"]} == addresses
    in_nginx = re.findall(r"^    server (\S+):8080 ", (SCALING / "nginx.conf").read_text(), re.MULTILINE)
    assert in_nginx == list(inner.values())
    for service in services.values():
        files = [SCALING / volume["source"] for volume in service["volumes"] if volume["type"] == "bind"]
        assert files and all(file.is_file() for file in files)
        assert "8081" not in str(service.get("ports")), "the port of the inner tier is published"


def test_every_inner_replica_has_a_disk_of_its_own_for_the_cache(manifests, compose):
    in_compose = tomllib.loads((SCALING / "inner.toml").read_text())["cache"]["disk"]
    disks = [volume for name, service in compose["services"].items() if name.startswith("inner")
             for volume in service["volumes"] if volume["type"] == "volume"]  # fmt: skip
    assert {disk["target"] for disk in disks} == {in_compose["path"]}
    assert sorted(disk["source"] for disk in disks) == sorted(compose["volumes"]) and len(set(compose["volumes"])) == 2
    in_kubernetes = tomllib.loads(manifests["ConfigMap", "n5-scaling"]["data"]["inner.toml"])["cache"]["disk"]
    (claim,) = manifests["StatefulSet", "n5-inner"]["spec"]["volumeClaimTemplates"]
    (container,) = manifests["StatefulSet", "n5-inner"]["spec"]["template"]["spec"]["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts[claim["metadata"]["name"]] == in_kubernetes["path"]
    size, requested = in_kubernetes["size"], claim["spec"]["resources"]["requests"]["storage"]
    assert int(size.removesuffix("GiB")) <= 0.95 * int(requested.removesuffix("Gi")), "min_free is 5 %"


def test_memory_limits_cover_the_announced_memory_and_pods_have_time_to_stop(manifests, compose, tmp_path):
    settings = manifests["ConfigMap", "n5-scaling"]["data"]
    for tier, workload in zip(("front", "inner"), workloads(manifests)):
        check_memory(SCALING / f"{tier}.toml", compose["services"][f"{tier}1"]["mem_limit"])
        spec = workload["spec"]["template"]["spec"]
        resources = spec["containers"][0]["resources"]
        # Each core beyond two adds memory.
        threads = int(resources["limits"]["cpu"])
        text = settings[f"{tier}.toml"].replace("[server]\n", f"[server]\nthreads = {threads}\n")
        config = support.write(tmp_path / f"{tier}.toml", text)
        for limit in (resources["limits"]["memory"], resources["requests"]["memory"]):
            check_memory(config, limit)
        for text in (settings[f"{tier}.toml"], (SCALING / f"{tier}.toml").read_text()):
            drain = int(tomllib.loads(text)["server"]["drain_delay"].removesuffix("s"))
            # 30 s are the default of server.shutdown_timeout.
            for grace in (spec["terminationGracePeriodSeconds"], int(compose["services"][f"{tier}1"]["stop_grace_period"][:-1])):
                assert grace > drain + 30
            # HAProxy's health checks need four seconds to find that a replica drains.
            assert drain >= 5
