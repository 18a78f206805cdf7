"""What deploy/ holds: the chart rendered and read, compose files, alerts and dashboards against the metrics that really exist."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from build_engines.commands import Paths
from build_engines.gpu_plan import make_plan
from build_engines.spec import load_deployment
from tests.helm_subset import ChartError, render

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "tandem"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
DIGEST = "tandem-gpu@sha256:" + "ab" * 32
CPU = {"apiKeySecret": "keys"}
GPU = {"profile": "trtllm", "apiKeySecret": "keys", "gpu": {"image": DIGEST, "existingClaim": "data"}}


def values(changes: dict[str, Any]) -> dict[str, Any]:
    merged = copy.deepcopy(VALUES)
    for key, value in changes.items():
        merged[key] = {**merged[key], **value} if isinstance(value, dict) else value
    return merged


def chart(name: str, changes: dict[str, Any]) -> list[Any]:
    return render((CHART / "templates" / f"{name}.yaml").read_text(), values(changes), CHART)


def pod(changes) -> dict[str, Any]:
    (deployment,) = chart("deployment", changes)
    assert deployment["spec"]["selector"]["matchLabels"] == deployment["spec"]["template"]["metadata"]["labels"]
    return deployment["spec"]["template"]["spec"]


def container(spec, name) -> dict[str, Any]:
    return next(each for each in spec["containers"] if each["name"] == name)


@pytest.mark.parametrize("changes", [CPU, GPU, {**GPU, "profile": "llmapi"}, {**CPU, "nodeSelector": {"zone": "a"}}])
def test_chart_when_rendered_then_every_mount_has_a_volume_and_probes_mean_warm(changes):
    spec = pod(changes)
    volumes = {volume["name"] for volume in spec["volumes"]}
    for each in spec["containers"]:
        assert {mount["name"] for mount in each["volumeMounts"]} <= volumes
        assert "startupProbe" in each
        assert each["securityContext"]["allowPrivilegeEscalation"] is False
    gateway = container(spec, "gateway")
    assert gateway["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert gateway["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert spec["terminationGracePeriodSeconds"] >= VALUES["drainSeconds"] + 5
    assert "--api-key-file" in gateway["args"]
    assert spec.get("nodeSelector", {}) == changes.get("nodeSelector", {})


def test_chart_when_on_gpus_then_triton_has_no_port_and_the_image_is_pinned():
    spec = pod(GPU)
    triton = container(spec, "triton")
    assert "ports" not in triton
    assert triton["image"] == DIGEST
    assert triton["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert triton["startupProbe"]["failureThreshold"] * triton["startupProbe"]["periodSeconds"] == VALUES["startupSeconds"]
    (deployment,) = chart("deployment", GPU)
    assert deployment["spec"]["strategy"]["type"] == "Recreate"


def test_chart_when_on_cpus_then_one_container_with_shared_memory():
    spec = pod(CPU)
    assert [each["name"] for each in spec["containers"]] == ["gateway"]
    assert spec["containers"][0]["args"][0] == "tandem"
    assert {"cache", "shm"} <= {volume["name"] for volume in spec["volumes"]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "apiKeySecret is needed"),
        ({**GPU, "gpu": {"image": "", "existingClaim": "data"}}, "gpu.image is needed"),
        ({**GPU, "gpu": {"image": DIGEST}}, "gpu.existingClaim is needed"),
    ],
)
def test_chart_when_something_must_be_given_then_said(changes, words):
    with pytest.raises(ChartError, match=words):
        pod(changes)


def test_chart_when_rendered_then_only_the_gateway_is_reachable():
    (policy,) = chart("networkpolicy", CPU)
    assert policy["spec"]["ingress"] == [{"ports": [{"protocol": "TCP", "port": "http"}]}]
    assert {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]} == {53}
    (limited,) = chart("networkpolicy", {"networkPolicy": {"from": [{"podSelector": {}}]}})
    assert limited["spec"]["ingress"][0]["from"] == [{"podSelector": {}}]
    (service,) = chart("service", CPU)
    assert [port["targetPort"] for port in service["spec"]["ports"]] == ["http"]


@pytest.mark.parametrize("name", ["pdb", "hpa", "networkpolicy", "servicemonitor", "prometheusrule"])
def test_chart_when_a_part_is_switched_then_it_is_there_or_not(name):
    key = {
        "pdb": "podDisruptionBudget",
        "hpa": "autoscaling",
        "networkpolicy": "networkPolicy",
        "servicemonitor": "serviceMonitor",
    }.get(name, "prometheusRule")
    assert chart(name, {key: {"enabled": False}}) == []
    (document,) = chart(name, {key: {"enabled": True}})
    assert document["metadata"]["name"] == "tandem"


def test_chart_when_alerts_are_on_then_those_of_the_rules_file():
    (document,) = chart("prometheusrule", {"prometheusRule": {"enabled": True}})
    assert document["spec"] == yaml.safe_load((DEPLOY / "prometheus" / "rules.yaml").read_text())


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_compose_when_read_then_only_the_gateway_port_is_published(name):
    services = yaml.safe_load((DEPLOY / "compose" / f"{name}.yaml").read_text())["services"]
    assert [port for service in services.values() for port in service.get("ports", [])] == ["8080:8080"]
    for service in services.values():
        if "build" in service:
            assert (DEPLOY / "compose" / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    if name == "gpu":
        assert services["gateway"]["network_mode"] == "service:triton"


def test_gpu_image_when_it_serves_then_with_the_flags_of_the_plan_and_no_default_base():
    text = (DEPLOY / "docker" / "gpu.Dockerfile").read_text()
    serve = make_plan(load_deployment("h100"), Paths(), "plan.json").steps[-1]
    command = " ".join(re.findall(r'"([^"]+)"', text[text.index("CMD") :]))
    assert command.split() == [word for word in serve.argv if not word.startswith("--cuda-memory-pool")]
    assert all(f"{name}={value}" in text for name, value in serve.env)
    assert re.search(r"^ARG BASE_IMAGE$", text, re.MULTILINE)


def test_gpu_requirements_when_read_then_pinned_as_in_the_lock_file():
    lock = (ROOT / "requirements" / "serve.lock").read_text()
    lines = [line for line in (DEPLOY / "docker" / "gpu-requirements.txt").read_text().splitlines() if not line.startswith("#")]
    assert lines
    for line in lines:
        assert re.search(rf"^{re.escape(line)}\b", lock, re.MULTILINE), line


def metric_names() -> set[str]:
    """Names of our own metrics as Prometheus sees them, from the code that makes them."""
    text = "\n".join(
        path.read_text()
        for folder in ("clients/tandem_gateway", "python_backend/tandem/triton")
        for path in (ROOT / folder).glob("*.py")
    )
    names = set(re.findall(r'"((?:tandem|gen_ai|vllm:|nv_trt_llm)[a-z0-9_:]*)"', text))
    return names | {f"{name}_total" for name in names} | {f"{name}_bucket" for name in names}


def used_metrics(expression: str) -> set[str]:
    bare = re.sub(r'"[^"]*"', "", expression)
    return set(re.findall(r"\b(?:tandem_|gen_ai_|vllm:|nv_)[a-z0-9_:]+", bare))


def test_alerts_and_panels_when_read_then_every_metric_exists():
    groups = yaml.safe_load((DEPLOY / "prometheus" / "rules.yaml").read_text())["groups"]
    expressions = [rule["expr"] for group in groups for rule in group["rules"]]
    board = json.loads((DEPLOY / "grafana" / "tandem.json").read_text())
    expressions += [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    used = set().union(*map(used_metrics, expressions))
    assert len(used) >= 8
    assert used <= metric_names(), sorted(used - metric_names())


def test_dashboard_when_read_then_panels_do_not_overlap():
    panels = json.loads((DEPLOY / "grafana" / "tandem.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(cells)) == len(cells)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: apt-get install prometheus)")
def test_alerts_when_checked_by_promtool_then_right_and_firing_when_they_should():
    folder = DEPLOY / "prometheus"
    for arguments in (["check", "rules", "rules.yaml"], ["test", "rules", "rules-test.yaml"]):
        done = subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_kserve_when_read_then_the_runtime_serves_the_gateway_and_hides_triton():
    runtime, service = yaml.safe_load_all((DEPLOY / "kserve" / "serving-runtime.yaml").read_text())
    assert runtime["spec"]["protocolVersions"] == ["v2", "grpc-v2"]
    gateway, triton = runtime["spec"]["containers"]
    assert gateway["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert "ports" not in triton
    assert service["spec"]["predictor"]["model"]["runtime"] == runtime["metadata"]["name"]
