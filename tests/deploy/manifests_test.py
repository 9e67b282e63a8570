"""What needs Docker or Kubernetes to run, checked without them: structure, references, sizes; configurations by kvtierd itself.

hadolint and kubernetes-validate, which are not among Debian's packages, are those that tests/deploy/fetch.sh has brought, if it has.
"""

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import yaml
from conftest import BUILD, ROOT

FETCHED = pathlib.Path(subprocess.run([ROOT / "tests/deploy/fetch.sh", "folder"], capture_output=True, text=True, check=True,
                                      timeout=20).stdout.strip())
sys.path.append(str(FETCHED))  # Debian's packages come first
CONTAINER = ROOT / "deploy/container"
KUBERNETES = ROOT / "deploy/kubernetes"
DEPLOYMENTS = ("daemonset", "sidecar")
MANIFESTS = sorted(KUBERNETES.glob("*/*.yaml"))
APPLIED = [manifest for manifest in MANIFESTS if manifest.name != "kustomization.yaml"]
OPERATORS = "monitoring.coreos.com/v1"
UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "g": 1 << 30}


def size(text):
    number, unit = re.fullmatch(r"(\d+)([A-Za-z]*)", text).groups()
    return int(number) * (UNITS[unit] if unit else 1)


def stages():
    """[(base, name, [(instruction, rest)])] of the Dockerfile."""
    lines = re.sub(r"\\\n", " ", (CONTAINER / "Dockerfile").read_text())
    found = []
    for line in lines.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        instruction, rest = line.split(None, 1)
        if instruction == "FROM":
            base, *name = rest.split(" AS ")
            found.append((base, name[0] if name else "", []))
        else:
            found[-1][2].append((instruction, rest))
    return found


USER = int(re.search(r"^USER (\d+):\d+$", (CONTAINER / "Dockerfile").read_text(), re.MULTILINE)[1])


def test_the_image_ends_as_a_user_without_privileges_and_is_checked():
    final = stages()[-1][2]
    instructions = [instruction for instruction, _ in final]
    assert USER > 0 and instructions.index("USER") < instructions.index("ENTRYPOINT") and instructions.count("USER") == 1
    assert not {"RUN", "COPY", "ADD"} & set(instructions[instructions.index("USER"):])
    for exec_form in ("ENTRYPOINT", "CMD"):
        assert dict(final)[exec_form].startswith('["'), f"{exec_form} by a shell does not hear SIGTERM"
    assert dict(final)["STOPSIGNAL"] == "SIGTERM"
    check = dict(final)["HEALTHCHECK"]
    assert 'CMD ["kvtierctl"' in check
    options = subprocess.run([BUILD / "bin/kvtierctl", "--help"], capture_output=True, text=True, check=True, timeout=20).stdout
    assert "--timeout" in options and re.search(r"^\s+status ", options, re.MULTILINE)


def test_the_image_is_built_of_what_there_is():
    names = [name for _, name, _ in stages()]
    for base, _, instructions in stages():
        assert base in names or re.fullmatch(r"debian:12(-slim)?", base)
        for instruction, rest in instructions:
            if instruction != "COPY":
                continue
            source = rest.split()[0]
            if source.startswith("--from="):
                assert source.removeprefix("--from=") in names
            else:
                assert (ROOT / source).exists(), source
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert "build*" in ignored and ".git" in ignored


def need(found, what):
    """Without a tool its test is skipped, or fails where tests/run.sh should have brought it."""
    if not found:
        (pytest.fail if os.environ.get("KVTIER_TOOLS_REQUIRED") else pytest.skip)(f"no {what} here")


def test_hadolint_finds_nothing_in_the_dockerfile():
    hadolint = FETCHED / "bin/hadolint"
    need(hadolint.exists(), "hadolint (tests/deploy/fetch.sh brings it)")
    done = subprocess.run([hadolint, CONTAINER / "Dockerfile"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def configurations():
    yield "container", (CONTAINER / "kvtier.toml").read_text()
    for name in DEPLOYMENTS:
        yield name, (KUBERNETES / name / "kvtier.toml").read_text()


@pytest.mark.parametrize("name, text", configurations(), ids=[name for name, _ in configurations()])
def test_kvtierd_takes_every_configuration(name, text, tmp_path):
    config = tmp_path / "kvtier.toml"
    config.write_text(text)
    done = subprocess.run([BUILD / "bin/kvtierd", "--config", config, "--check"], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, name + done.stderr
    config.write_text(text.replace("capacity", "capacitance", 1))
    done = subprocess.run([BUILD / "bin/kvtierd", "--config", config, "--check"], capture_output=True, text=True, timeout=20)
    assert done.returncode == 1 and "capacity: is required" in done.stderr


def memory_of(config):
    """What tiers in memory and sessions may take by a configuration."""
    tiers = re.findall(r'^\[tier\.(?:hot|warm)\]\n(?:.*\n)*?capacity = "(\w+)"', config, re.MULTILINE)
    assert len(tiers) == 2
    return sum(map(size, tiers)) + size(re.search(r'^staging_total = "(\w+)"', config, re.MULTILINE)[1])


def test_compose_gives_no_privileges_and_enough_memory():
    compose = yaml.safe_load((CONTAINER / "compose.yaml").read_text())
    daemon = compose["services"]["kvtierd"]
    assert daemon["user"] == f"{USER}:{USER}" and daemon["read_only"] and daemon["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in daemon["security_opt"]
    (profile,) = [option.split(":")[1] for option in daemon["security_opt"] if option.startswith("seccomp:")]
    assert (CONTAINER / profile).resolve() == KUBERNETES / "seccomp-kvtier.json"
    assert (CONTAINER / daemon["build"]["context"]).resolve() == ROOT
    assert (ROOT / daemon["build"]["dockerfile"]).exists()
    assert size(daemon["mem_limit"]) > memory_of((CONTAINER / "kvtier.toml").read_text())
    for service in compose["services"].values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (CONTAINER / source).exists(), volume
    for needed in compose["services"]["prometheus"]["depends_on"]:
        assert needed in compose["services"]


def documents(manifest):
    return list(yaml.safe_load_all(manifest.read_text()))


def of_kind(kind, name):
    (found,) = [document for manifest in (KUBERNETES / name).glob("*.yaml") for document in documents(manifest)
                if document["kind"] == kind]
    return found


def template(name):
    return of_kind({"daemonset": "DaemonSet", "sidecar": "Deployment"}[name], name)["spec"]["template"]


def all_pods():
    return [(name, template(name)["spec"]) for name in DEPLOYMENTS]


def containers(pod):
    return pod.get("initContainers", []) + pod["containers"]


def test_what_selects_pods_finds_them():
    for name, kind in (("daemonset", "DaemonSet"), ("sidecar", "Deployment"), ("sidecar", "PodDisruptionBudget")):
        assert of_kind(kind, name)["spec"]["selector"]["matchLabels"].items() <= template(name)["metadata"]["labels"].items()
    monitored = of_kind("Service", "monitoring")
    assert monitored["spec"]["selector"].items() <= template("daemonset")["metadata"]["labels"].items()
    (port,) = monitored["spec"]["ports"]
    monitors = {"daemonset": (of_kind("ServiceMonitor", "monitoring"), "endpoints", monitored["metadata"]["labels"]),
                "sidecar": (of_kind("PodMonitor", "monitoring"), "podMetricsEndpoints", template("sidecar")["metadata"]["labels"])}
    for name, (monitor, endpoints, labels) in monitors.items():
        assert monitor["apiVersion"] == OPERATORS and monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
        (endpoint,) = monitor["spec"][endpoints]
        (ports,) = [container["ports"] for container in containers(template(name)["spec"]) if container["name"] == "kvtierd"]
        assert endpoint["port"] == port["name"] == port["targetPort"] == ports[0]["name"] and port["port"] == ports[0]["containerPort"]
        # The rules and the consoles ask for this job.
        assert {"targetLabel": "job", "replacement": "kvtier"} in endpoint["relabelings"]


def test_the_rules_for_an_operator_are_those_of_monitoring():
    done = subprocess.run([KUBERNETES / "monitoring/prometheus-rule.sh"], capture_output=True, text=True, check=True, timeout=20)
    made = yaml.safe_load(done.stdout)
    assert (made["apiVersion"], made["kind"]) == (OPERATORS, "PrometheusRule")
    shipped = [group for file in ("recording.yml", "alerts.yml")
               for group in yaml.safe_load((ROOT / "monitoring/rules" / file).read_text())["groups"]]
    assert made["spec"] == {"groups": shipped}


def rendered(folder):
    need(shutil.which("kubectl"), "kubectl (Debian: kubernetes-client)")
    done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_change_of_the_configuration_is_a_change_of_the_pods(name, tmp_path):
    def mounted(folder):
        documents_made = rendered(folder)
        (config,) = [one for one in documents_made if one["kind"] == "ConfigMap"]
        (pod,) = [one["spec"]["template"]["spec"] for one in documents_made if one["kind"] in ("DaemonSet", "Deployment")]
        (volume,) = [volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume]
        assert volume == config["metadata"]["name"]
        assert config["data"] == {"kvtier.toml": (folder / "kvtier.toml").read_text()}
        return volume

    folder = tmp_path / name
    shutil.copytree(KUBERNETES / name, folder)
    before = mounted(folder)
    with open(folder / "kvtier.toml", "a") as config:
        config.write("[limits]\nsessions = 7\n")
    assert mounted(folder) != before


@pytest.mark.parametrize("name, pod", all_pods(), ids=[name for name, _ in all_pods()])
def test_what_a_pod_refers_to_is_there(name, pod):
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    maps = {made["name"] for made in of_kind("Kustomization", name)["configMapGenerator"]}
    assert {volume["configMap"]["name"] for volume in volumes.values() if "configMap" in volume} <= maps
    for container in containers(pod):
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes.keys()
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if probe in container:
                assert container[probe]["httpGet"]["port"] in ports, container["name"]
                assert container[probe]["httpGet"]["path"] in ("/readyz", "/healthz")
        if container["name"] == "kvtierd":
            assert {"startupProbe", "livenessProbe"} <= container.keys() and ports == {"metrics": 9464}


@pytest.mark.parametrize("name, pod", all_pods(), ids=[name for name, _ in all_pods()])
def test_a_pod_has_no_privileges_and_memory_for_its_configuration(name, pod):
    assert not pod["automountServiceAccountToken"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == USER
    config = dict(configurations())[name]
    for container in containers(pod):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False and context["capabilities"]["drop"] == ["ALL"]
        assert "memory" in container["resources"]["limits"] and "privileged" not in context
        root = context.get("runAsUser", USER) == 0
        assert root == (container["name"] == "folders"), "nothing runs as root but what makes the host's folders"
        if container["name"] == "kvtierd":
            assert context["readOnlyRootFilesystem"]
            assert size(container["resources"]["limits"]["memory"]) > memory_of(config)
            seccomp = context.get("seccompProfile", pod["securityContext"]["seccompProfile"])
            assert seccomp == {"type": "Localhost", "localhostProfile": "profiles/kvtier.json"}


@pytest.mark.parametrize("manifest", APPLIED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_kubernetes_knows_every_field(manifest):
    need(importlib.util.find_spec("kubernetes_validate"), "kubernetes-validate (tests/deploy/fetch.sh brings it)")
    import kubernetes_validate as validate

    for document in documents(manifest):
        if document["apiVersion"] != OPERATORS:
            validate.validate(document, "1.30", strict=True)
