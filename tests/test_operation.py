"""The files in deploy/: what they promise holds in the code, and servers and tools take them."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import tomllib
from urllib.request import urlopen

import kubernetes_validate
import pytest
import yaml
from redis import Redis
from redis.exceptions import AuthenticationError, NoPermissionError
from support import forks
from support.custom_resources import MODELS, check_custom_resource
from support.network import free_port
from support.offenders import for_each
from support.processes import COMMAND
from support.prometheus import ALERTS
from support.servers import RedisServer
from support.source_tree import ROOT

from antiphon import Agent
from antiphon import metrics as shared
from antiphon.cli.main import main
from antiphon.client import Client
from antiphon_gateway.observing.metrics import GAUGES, GatewayMetrics
from antiphon_gateway.settings import GatewaySettings
from antiphon_worker.observing import metrics
from antiphon_worker.settings import Settings
from antiphon_worker.supervisor.supervisor import killed_after

DEPLOY = ROOT / "deploy"
KUBERNETES = {
    (one["kind"], one["metadata"]["name"]): one
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for one in yaml.safe_load_all(path.read_text())
}
DASHBOARD = json.loads((DEPLOY / "grafana" / "antiphon.json").read_text())
UNITS = {path.stem.removeprefix("antiphon-"): path.read_text() for path in (DEPLOY / "systemd").iterdir()}
OVERRIDE = yaml.safe_load((DEPLOY / "compose.acl.yml").read_text())["services"]
WORKER = KUBERNETES["Deployment", "antiphon-worker"]
GATEWAY = KUBERNETES["Deployment", "antiphon-gateway"]
VARIABLES = {Settings.variable(known.name) for known in Settings.declared()} | {
    GatewaySettings.variable(known.name) for known in GatewaySettings.declared()
}


def known_series() -> dict[str, set[str]]:
    """Every series that workers and gateways serve, with its labels."""
    found: dict[str, set[str]] = {name: {"cell"} for name in shared.CELL}
    found |= {name: {"cell", "queue"} for name, _ in shared.QUEUE.values()}
    found |= {name: {"cell", "agent", "revision"} for name in shared.REVISION}
    found |= {name: {"cell", "scope", "name", "per", "unit"} for name in shared.BUDGET}
    found |= {name: set() for name in GAUGES}
    found[shared.PUBLISH_LAG[0]] = {"cell", "worker"}
    found[f"{metrics.DEATHS[0]}_total"] = {"cell", "code"}
    found["antiphon_build_info"] = {"version", "python"}
    for value in [*vars(metrics).values(), *vars(GatewayMetrics()).values()]:
        if isinstance(value, metrics.Counter):
            found[f"{value._name}_total"] = {*value._labelnames}
        elif isinstance(value, metrics.Histogram):
            found |= {f"{value._name}_{part}": {*value._labelnames} for part in ("count", "sum")}
            found[f"{value._name}_bucket"] = {*value._labelnames, "le"}
    return found


SERIES = known_series()
OF_PROMETHEUS = {"up": {"job", "instance"}}


def wrong(expression: str) -> list[str]:
    """What an expression of PromQL names that no worker serves."""
    used = re.findall(r"(antiphon_\w+|\bup\b)(?:\{([^}]*)\})?", expression)
    labels = {
        label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")
    }
    series = SERIES | OF_PROMETHEUS
    known = set().union(*(series.get(name, set()) for name, _ in used))
    unknown = [name for name, _ in used if name not in series]
    unknown += [
        f"{name}{{{label}}}"
        for name, selector in used
        for label in re.findall(r"(\w+)\s*[=!]", selector)
        if label not in series.get(name, set())
    ]
    return unknown + sorted(labels - known) + ([] if used else ["nothing is asked for"])


def test_a_name_that_no_worker_serves_is_found():
    assert len(SERIES) > 25
    assert wrong('sum(rate(antiphon_turns_total{outcome="failed"}[5m]))') == []
    assert wrong("max by (queu) (antiphon_queue_depth)") == ["queu"]
    assert wrong('antiphon_nothing{a="b"}') == ["antiphon_nothing", "antiphon_nothing{a}"]
    assert wrong("vector(1)") == ["nothing is asked for"]


@for_each(DASHBOARD["panels"], lambda panel: panel["title"])
def test_the_dashboard_shows_metrics_that_exist(panel):
    for target in panel["targets"]:
        assert wrong(target["expr"]) == []
        legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert legend <= set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", target["expr"]))))


def test_the_page_has_every_metric():
    told = (ROOT / "docs" / "observing.md").read_text()
    bases = {re.sub(r"_(count|sum|bucket)$", "", name) for name in SERIES}
    assert [name for name in sorted(bases) if f"`{name}" not in told] == []
    rows = [row for row in told.splitlines() if row.startswith("| `antiphon_")]
    shown = {}
    for row in rows:
        each = re.search(r"each `\{([\w,]+)\}`", row)
        for name, labels in re.findall(r"`(antiphon_\w+)(?:\{([\w,]*)\})?`", row.split(" | ")[0]):
            shown[name] = {*filter(None, (labels or (each and each[1]) or "").split(","))}
    served = {re.sub(r"_(count|sum|bucket)$", "", name): labels - {"le"} for name, labels in SERIES.items()}
    assert shown == served


def test_the_dashboard_shows_every_metric():
    shown = json.dumps(DASHBOARD)
    parts = ("_count", "_sum", "_bucket")
    bases = {re.sub(rf"({'|'.join(parts)})$", "", name) for name in SERIES}
    assert [name for name in sorted(bases) if name not in shown] == []
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


@for_each(ALERTS, lambda alert: alert["alert"])
def test_an_alert_asks_for_metrics_that_exist_and_has_its_runbook(alert):
    assert wrong(alert["expr"]) == []
    assert alert["labels"]["severity"] in ("page", "ticket")
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    assert anchor == alert["alert"].lower()
    section = re.search(
        rf"^## {alert['alert']}$(.*?)(?=^## |\Z)", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL
    )
    assert section, f"{page} has no section {alert['alert']}"
    assert all(f"**{part}**" in section[1] for part in ("Means", "Look", "Do"))


def test_the_runbook_has_no_section_without_an_alert():
    sections = re.findall(r"^## (.*)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE)
    assert sections == [alert["alert"] for alert in ALERTS]


def release() -> str:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def container(deployment):
    (only,) = deployment["spec"]["template"]["spec"]["containers"]
    return only


@pytest.mark.main_path
@pytest.mark.parametrize("deployment", [WORKER, GATEWAY], ids=["worker", "gateway"])
def test_a_deployment_runs_a_command_with_settings_that_exist(deployment):
    spec, only = deployment["spec"], container(deployment)
    assert forks.run([COMMAND, *only["args"], "--help"]).returncode == 0
    assert {one["name"] for one in only["env"]} <= VARIABLES
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    assert spec["template"]["spec"]["securityContext"]["runAsNonRoot"] is True
    for spread in spec["template"]["spec"]["topologySpreadConstraints"]:
        assert spread["labelSelector"] == spec["selector"]
    assert only["readinessProbe"]["timeoutSeconds"] > 2, "it asks Redis"
    assert only["image"] == f"antiphon:{release()}"
    assert {one["name"] for one in only["volumeMounts"]} == {
        one["name"] for one in spec["template"]["spec"]["volumes"]
    }
    ports = {one["name"] for one in only["ports"]}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert next(iter(one["port"] for one in only[probe].values() if isinstance(one, dict))) in ports


def test_both_deployments_have_the_keys_of_encryption_and_only_workers_those_of_model_services():
    """Each Secret is described where it is used. A gateway has one of its own: it needs no key of a model service."""
    secrets = {
        name: (only, comment)
        for name in ("worker", "gateway")
        for only, comment in re.findall(
            r"secretRef: \{name: ([\w-]+)\} # (.*)", (DEPLOY / "kubernetes" / f"{name}.yaml").read_text()
        )
    }
    assert secrets["worker"][0] != secrets["gateway"][0]
    for name, (only, comment) in secrets.items():
        sources = container({"worker": WORKER, "gateway": GATEWAY}[name])["envFrom"]
        assert sources == [{"secretRef": {"name": only}}]
        assert "ANTIPHON_ENCRYPTION_KEYS" in comment
        assert ("_API_KEY" in comment) == (name == "worker")
    assert all("ANTIPHON_ENCRYPTION_KEYS" in unit for unit in UNITS.values())


def test_pods_and_units_are_given_more_time_than_until_the_last_process_is_killed():
    environ = {one["name"]: one["value"] for one in container(WORKER)["env"]}
    settings = Settings.load(environ=environ)
    needed = killed_after(settings) + 5
    assert WORKER["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= needed
    stop = {
        name: int(re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)[1]) for name, unit in UNITS.items()
    }
    assert stop["worker"] >= needed
    assert "KillMode=mixed" in UNITS["worker"]
    drain = GatewaySettings().drain
    assert stop["gateway"] >= drain + 5
    _, pause = container(GATEWAY)["lifecycle"]["preStop"]["exec"]["command"]
    assert GATEWAY["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= int(pause) + drain + 5
    assert container(WORKER)["ports"][0]["containerPort"] == settings.status_port
    annotations = WORKER["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(settings.status_port)
    assert container(WORKER)["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert container(WORKER)["livenessProbe"]["httpGet"]["path"] == "/health"
    environ = {one["name"]: one["value"] for one in container(GATEWAY)["env"]}
    annotations = GATEWAY["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == environ["ANTIPHON_GATEWAY_STATUS_PORT"]
    assert int(environ["ANTIPHON_GATEWAY_STATUS_PORT"]) in [
        one["containerPort"] for one in container(GATEWAY)["ports"]
    ]


SELECTORS = {
    "PodDisruptionBudget": lambda spec: spec["selector"],
    "NetworkPolicy": lambda spec: spec["podSelector"],
    "PodMonitor": lambda spec: spec["selector"],
}


@pytest.mark.parametrize("kind", SELECTORS)
@pytest.mark.parametrize("deployment", [WORKER, GATEWAY], ids=["worker", "gateway"])
def test_the_other_objects_mean_these_deployments(kind, deployment):
    spec = KUBERNETES[kind, deployment["metadata"]["name"]]["spec"]
    assert SELECTORS[kind](spec) == deployment["spec"]["selector"]
    ports = {one["name"] for one in container(deployment)["ports"]}
    named = {port["port"] for rule in spec.get("ingress", ()) for port in rule["ports"]}
    named |= {one["port"] for one in spec.get("podMetricsEndpoints", ())}
    assert named <= ports
    assert kind == "PodDisruptionBudget" or "status" in named


def test_the_service_and_the_autoscaler_mean_the_gateways():
    service = KUBERNETES["Service", "antiphon-gateway"]["spec"]
    assert service["selector"] == GATEWAY["spec"]["template"]["metadata"]["labels"]
    assert service["ports"][0]["targetPort"] == container(GATEWAY)["ports"][0]["name"]
    assert container(GATEWAY)["ports"][0]["containerPort"] == GatewaySettings().port
    scaled = KUBERNETES["HorizontalPodAutoscaler", "antiphon-gateway"]["spec"]
    assert scaled["scaleTargetRef"]["name"] == GATEWAY["metadata"]["name"]
    assert (
        scaled["minReplicas"]
        > KUBERNETES["PodDisruptionBudget", "antiphon-gateway"]["spec"]["maxUnavailable"]
    )
    assert "replicas" not in GATEWAY["spec"], "each time the file is applied, they would be set back"
    assert scaled["metrics"][0]["resource"]["name"] in container(GATEWAY)["resources"]["requests"]


def test_keda_scales_on_metrics_that_exist():
    scaled = KUBERNETES["ScaledObject", "antiphon-worker"]["spec"]
    assert scaled["scaleTargetRef"]["name"] == WORKER["metadata"]["name"]
    assert scaled["minReplicaCount"] >= 1, "without a worker, an alert fires"
    asked = [one["metadata"]["query"] for one in scaled["triggers"]]
    assert [wrong(query) for query in asked] == [[], []]
    assert ["depth" in asked[0], "oldest" in asked[1]] == [True, True]
    (queue,) = set(re.findall(r'queue="(\w+)"', " ".join(asked)))
    assert queue in next(one["value"] for one in container(WORKER)["env"] if one["name"] == "ANTIPHON_QUEUES")


OF_KUBERNETES = [name for name, one in KUBERNETES.items() if one["apiVersion"] not in MODELS]
CUSTOM = [name for name in KUBERNETES if name not in OF_KUBERNETES]


@pytest.mark.parametrize("version", ["1.27", kubernetes_validate.latest_version()])
@pytest.mark.parametrize("name", OF_KUBERNETES, ids="-".join)
def test_kubernetes_takes_the_objects(name, version):
    kubernetes_validate.validate(KUBERNETES[name], version, strict=True)


@pytest.mark.parametrize("name", CUSTOM, ids="-".join)
def test_operators_take_the_custom_resources(name):
    check_custom_resource(KUBERNETES[name])


SPOILED = {
    "unknown": lambda one: one["spec"].update(minReplicas=1),
    "of another type": lambda one: one["spec"].update(minReplicaCount="1"),
    "deep inside": lambda one: one["spec"]["triggers"][0].update(metrictype="Value"),
    "a number for a string": lambda one: one["spec"]["triggers"][0]["metadata"].update(threshold=50),
    "missing": lambda one: one["spec"].pop("triggers"),
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_a_wrong_field_of_a_custom_resource_is_noticed(spoil):
    spoiled = copy.deepcopy(KUBERNETES["ScaledObject", "antiphon-worker"])
    spoil(spoiled)
    with pytest.raises((AssertionError, ValueError)):
        check_custom_resource(spoiled)


def test_a_misspelt_field_of_an_object_is_noticed():
    spoiled = copy.deepcopy(WORKER)
    spoiled["spec"]["template"]["spec"]["terminationGracePeriod"] = 50
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(spoiled, kubernetes_validate.latest_version(), strict=True)


def compose_takes(path):
    command = [COMMAND.with_name("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", path]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "path", [ROOT / "docker-compose.yml", DEPLOY / "compose.acl.yml"], ids=lambda path: path.name
)
def test_compose_takes_the_file(path, tmp_path):
    done = compose_takes(path)
    assert done.returncode == 0, done.stdout
    spoiled = tmp_path / path.name
    spoiled.write_text(path.read_text().replace("healthcheck:", "health_check:"))
    assert "health_check" in compose_takes(spoiled).stdout


def verified(unit):
    return subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_takes_the_unit(name, tmp_path):
    unit = tmp_path / f"antiphon-{name}.service"
    there = (
        UNITS[name].replace("/opt/antiphon/bin/antiphon", str(COMMAND)).replace("User=antiphon", "User=root")
    )
    unit.write_text(there)
    done = verified(unit)
    ours = [line for line in done.stderr.splitlines() if "antiphon" in line]
    assert (done.returncode, ours) == (0, []), done.stderr
    unit.write_text(there.replace("TimeoutStopSec", "TimeoutStop"))
    assert "TimeoutStop" in verified(unit).stderr


@pytest.mark.parametrize(("name", "verb"), [("worker", "worker"), ("gateway", "serve")])
def test_the_unit_runs_a_command_that_exists(name, verb):
    command = re.search(r"^ExecStart=/opt/antiphon/bin/(.*)$", UNITS[name], re.MULTILINE)[1].split()
    assert command == [COMMAND.name, verb]
    assert f"EnvironmentFile=/etc/antiphon/{name}.env" in UNITS[name]
    assert {*re.findall(r"ANTIPHON_\w+", UNITS[name])} <= VARIABLES | {"ANTIPHON_ENCRYPTION_KEYS"}


def test_the_override_of_compose_changes_only_services_that_exist():
    base = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert OVERRIDE.keys() == base.keys()
    options = OVERRIDE["redis"]["command"]
    assert [one for one in base["redis"]["command"] if one not in options] == []
    for service, user in (("worker", "worker"), ("gateway", "client")):
        (url,) = OVERRIDE[service]["environment"]
        assert re.fullmatch(rf"ANTIPHON_REDIS_URL=redis://{user}:\$\{{\w+:\?[^}}]+\}}@redis:6379/0", url)


def test_the_users_of_the_override_run_turns_and_nobody_else_enters(
    server_kind, processes, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("ANTIPHON_ACL_PASSWORD", "geheim")
    for role in ("worker", "client", "operator"):
        assert main(["redis", "acl", role, "--file"]) == 0
    users = tmp_path / "users.acl"
    users.write_text("user default on nopass ~* &* +@all\n")
    with RedisServer(server_kind, config={"aclfile": str(users)}) as server:
        place = f"127.0.0.1:{server.port}/0"
        users.write_text("user default off\n" + capsys.readouterr().out)
        with Redis.from_url(server.url) as redis:
            assert redis.execute_command("ACL LOAD")
        port = free_port()
        worker = processes.worker(f"redis://worker:geheim@{place}", "--status-port", str(port))
        worker.wait_for_output("takes turns")
        with Client(f"redis://client:geheim@{place}") as client:
            assert client.submit("s", "Hello", agent=Agent("scripted", "any")).result(30).text
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            assert f'antiphon_redis_up{{cell="{place}"}} 1.0' in answer.read().decode()
        assert main(["top", "--once", "--json", "--redis-url", f"redis://operator:geheim@{place}"]) == 0
        assert json.loads(capsys.readouterr().out)["overview"]["workers"]
        with Redis.from_url(f"redis://client:geheim@{place}") as redis, pytest.raises(NoPermissionError):
            redis.get("other")
        with Redis.from_url(f"redis://{place}") as redis, pytest.raises(AuthenticationError):
            redis.ping()
