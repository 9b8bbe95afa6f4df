"""The image and the compose file: what they promise about stopping, data and commands holds in the code."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from support import forks
from support.eventually import wait_until
from support.processes import COMMAND
from support.source_tree import ROOT

from antiphon.bytestores.of_process import FileSettings
from antiphon.encryption.keyring import EncryptionSettings
from antiphon.errors import SettingsError
from antiphon.wire.connection.moved import MoveSettings

pytestmark = pytest.mark.main_path

COMPOSE_TEXT = (ROOT / "docker-compose.yml").read_text()
COMPOSE = yaml.safe_load(COMPOSE_TEXT)
REDIS = COMPOSE["services"]["redis"]
WORKER = COMPOSE["services"]["worker"]
GATEWAY = COMPOSE["services"]["gateway"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

EVERYWHERE = {
    settings.variable(known.name)
    for settings in (EncryptionSettings, FileSettings, MoveSettings)
    for known in settings.declared()
}

needs_command_line = pytest.mark.skipif(
    importlib.util.find_spec("antiphon.cli.main") is None, reason="antiphon.cli.main does not exist"
)
needs_settings = pytest.mark.skipif(
    importlib.util.find_spec("antiphon_worker.settings") is None,
    reason="antiphon_worker.settings does not exist",
)


def dockerfile() -> list[tuple[str, str]]:
    """Instruction and argument of each line of the Dockerfile."""
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    found = [line.split(None, 1) for line in lines if line.strip() and not line.startswith("#")]
    return [(name, argument) for name, argument in found]


def last(instruction: str) -> str:
    return [argument for name, argument in dockerfile() if name == instruction][-1]


def seconds(text: str) -> float:
    number, unit = re.fullmatch(r"(\d+)(s|m)", text).groups()
    return int(number) * {"s": 1, "m": 60}[unit]


def environment(service=WORKER) -> dict[str, str | None]:
    """A service's variables; None where the value comes from the environment of whoever starts it."""
    pairs = [entry.partition("=") for entry in service["environment"]]
    return {name: value if equals else None for name, equals, value in pairs}


def runs(*command: str) -> subprocess.CompletedProcess[str]:
    return forks.run([COMMAND, *command, "--help"])


@needs_settings
def test_a_container_is_given_more_time_to_stop_than_until_its_last_process_is_killed():
    """And its turns handed back. The pages say the same numbers."""
    from antiphon_worker.settings import Settings
    from antiphon_worker.supervisor.supervisor import killed_after

    settings = Settings.load(environ={name: value for name, value in environment().items() if value})
    grace, killed = seconds(WORKER["stop_grace_period"]), killed_after(settings)
    assert grace >= killed + 5
    assert f"{killed - settings.drain:.0f} s after the drain of {settings.drain:.0f} s" in COMPOSE_TEXT
    assert f"{killed:.0f} s after SIGTERM" in (ROOT / "docs/guarantees.md").read_text()
    assert f"{killed:.0f} s by default" in (ROOT / "docs/deployment.md").read_text()
    assert f"the compose file has {grace:.0f} s" in (ROOT / "docs/deployment.md").read_text()
    assert "redis" in WORKER["depends_on"], "what workers write while they stop, Redis still takes"


@needs_settings
def test_the_compose_file_hands_on_every_setting_of_a_worker_and_no_other():
    from antiphon_worker.settings import Settings

    settings = {Settings.variable(known.name) for known in Settings.declared()}
    ours = {name for name in environment() if name.startswith("ANTIPHON_")}
    assert ours == settings | EVERYWHERE
    assert Settings.load(environ=environment()).redis_url == "redis://redis:6379/0"


def test_the_compose_file_hands_on_every_setting_of_a_gateway_except_its_port():
    from antiphon_gateway.settings import GatewaySettings

    settings = {GatewaySettings.variable(known.name) for known in GatewaySettings.declared()} - {
        "ANTIPHON_GATEWAY_PORT"
    }
    ours = environment(GATEWAY)
    assert {name for name in ours if name in EVERYWHERE} == EVERYWHERE
    assert {name for name in ours if name.startswith("ANTIPHON_GATEWAY_")} == settings
    with pytest.raises(SettingsError, match="Without keys"):
        GatewaySettings.load(environ={name: value for name, value in ours.items() if value})
    port = GatewaySettings().port
    assert GATEWAY["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert f":{port}/health" in GATEWAY["healthcheck"]["test"][-1]
    assert seconds(GATEWAY["stop_grace_period"]) >= GatewaySettings().drain + 5
    assert "container_name" not in GATEWAY


@needs_command_line
def test_the_containers_run_commands_that_exist():
    entrypoint = json.loads(last("ENTRYPOINT"))
    assert entrypoint == [COMMAND.name]
    health = json.loads(last("HEALTHCHECK").partition("CMD ")[2])
    commands = [
        WORKER["command"],
        GATEWAY["command"],
        json.loads(last("CMD")),
        health[1:],
        WORKER["healthcheck"]["test"][2:],
    ]
    for command in commands:
        result = runs(*command)
        assert result.returncode == 0, f"{command}: {result.stderr}"
    assert runs("no-such-command").returncode != 0


@pytest.mark.one_server
@needs_command_line
def test_the_health_check_tells_a_worker_from_none(redis_url, processes):
    def check(url):
        command = [COMMAND, *WORKER["healthcheck"]["test"][2:]]
        variables = {"ANTIPHON_REDIS_URL": url, "PATH": str(Path(sys.executable).parent)}
        return forks.run(command, env=variables)

    nobody = check(redis_url)
    assert (nobody.returncode, "No worker of this host" in nobody.stderr) == (1, True)
    worker = processes.worker(redis_url)
    worker.wait_for_output("takes turns")
    wait_until(lambda: check(redis_url).returncode == 0, 20, "the worker is healthy")
    assert socket.gethostname() in check(redis_url).stdout
    assert check("redis://127.0.0.1:1/0").returncode == 1


def test_the_folder_that_workers_are_given_by_default_has_an_app():
    folder = re.match(r"\$\{ANTIPHON_APP_FOLDER:-(.+?)\}:/app:ro$", WORKER["volumes"][0])[1]
    assert "app = App(" in (ROOT / folder / "app.py").read_text()
    assert last("WORKDIR") == "/app"


def test_the_volume_of_the_archive_belongs_to_whoever_runs_the_workers():
    volume, _, directory = WORKER["volumes"][1].partition(":")
    assert volume in COMPOSE["volumes"]
    made = [argument for name, argument in dockerfile() if name == "RUN"]
    assert any(f"install --directory --owner {last('USER')} {directory}" in argument for argument in made)


def test_redis_keeps_what_it_has_accepted():
    options = dict(zip(*[iter(REDIS["command"][1:])] * 2, strict=True))
    assert options["--appendonly"] == "yes"
    assert options["--appendfsync"] in ("everysec", "always")
    assert options["--maxmemory-policy"] == "noeviction"
    volume, _, directory = REDIS["volumes"][0].partition(":")
    assert directory == "/data"
    assert volume in COMPOSE["volumes"]


def test_workers_can_be_scaled():
    assert "container_name" not in WORKER
    assert "ports" not in WORKER


def test_workers_wait_for_a_healthy_redis():
    assert WORKER["depends_on"]["redis"]["condition"] == "service_healthy"
    assert REDIS["healthcheck"]["test"] == ["CMD", "redis-cli", "ping"]


def test_no_key_of_a_model_service_stands_in_the_compose_file():
    assert {value for name, value in environment().items() if name.endswith("_API_KEY")} == {None}


def test_the_image_runs_without_root_and_stops_by_draining():
    instructions = [name for name, _ in dockerfile()]
    assert last("USER") != "root"
    assert instructions.index("USER") > instructions.index("RUN")
    assert last("STOPSIGNAL") == "SIGTERM"
    assert last("ENTRYPOINT").startswith("["), "a shell in between would swallow the signal"


def test_the_image_has_a_python_that_the_package_supports():
    version = re.fullmatch(r"python:(\d+\.\d+)-slim", last("FROM"))[1]
    assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]


def test_the_image_is_built_from_files_that_exist_and_are_let_through():
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [
        source
        for name, argument in dockerfile()
        if name == "COPY" and "--from=" not in argument
        for source in shlex.split(argument)[:-1]
    ]
    assert {next((one for one in allowed if source.startswith(one)), source) for source in copied} == allowed
    assert [source for source in copied if not (ROOT / source).exists()] == []
