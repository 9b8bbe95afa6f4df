"""`antiphon init` writes a project whose test passes, whose agent runs on a worker and whose compose file is valid."""

import json
import subprocess
import sys

import pytest
import yaml
from support.models import ModelProcess
from support.processes import COMMAND

from antiphon.cli.main import main

WRITTEN = {
    ".agents/skills/antiphon/SKILL.md", ".env.example", ".gitignore", "AGENTS.md", "Dockerfile", "README.md",
    "app.py", "client.py", "compose.yaml", "requirements.txt", "test_app.py",
}  # fmt: skip


@pytest.fixture
def project(tmp_path, capsys):
    folder = tmp_path / "mine"
    assert main(["init", str(folder)]) == 0
    assert {str(folder / name) for name in WRITTEN} == set(capsys.readouterr().out.splitlines())
    return folder


def test_the_written_test_passes_without_a_network_and_a_key(project):
    without = [
        f"-pno:{name}" for name in ("randomly", "cacheprovider", "cloudcoil")
    ]  # they are not the project's
    command = [sys.executable, "-m", "pytest", "-q", *without]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout


@pytest.mark.one_server
def test_the_written_app_answers_the_written_client_on_a_worker(project, redis_url, processes):
    models = ModelProcess(processes, "--length", "12")
    env = {"PYTHONPATH": str(project), "ANTIPHON_REDIS_URL": redis_url, **models.environment}
    worker = processes.worker(redis_url, "--app", "app:app", env=env)
    worker.wait_for_output("takes turns")
    client = processes.start(sys.executable, project / "client.py", "Say hello", env=env)
    assert client.wait(30) == 0, client.output
    assert "You said: Say hello" in client.output
    assert "Usage(" in client.output


def test_the_compose_file_starts_workers_with_the_written_app(project):
    services = yaml.safe_load((project / "compose.yaml").read_text())["services"]
    assert services["worker"]["command"] == ["antiphon", "worker", "--app", "app:app"]
    assert services["worker"]["environment"]["ANTIPHON_REDIS_URL"] == "redis://redis:6379/0"
    assert services["redis"]["command"][5:7] == ["--maxmemory-policy", "noeviction"]
    check = COMMAND.with_name("check-jsonschema")
    command = [check, "--builtin-schema", "vendor.compose-spec", project / "compose.yaml"]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stdout


def test_files_belong_to_the_installed_version_and_point_to_its_docs(project, capsys):
    from importlib.metadata import version

    texts = {path.name: path.read_text() for path in project.rglob("*") if path.is_file()}
    assert not [name for name, text in texts.items() if "{{" in text]
    assert texts["requirements.txt"].endswith(f"=={version('antiphon')}\n")
    skill = texts["SKILL.md"]
    assert skill.startswith("---\nname: antiphon\ndescription: ")
    assert ".agents/skills/antiphon/SKILL.md" in texts["AGENTS.md"]
    assert main(["docs"]) == 0
    pages = capsys.readouterr().out
    assert "antiphon docs quickstart" in skill
    assert "\nquickstart  " in pages


def test_an_existing_file_is_never_overwritten_without_force(project, tmp_path, capsys):
    (project / "app.py").write_text("mine")
    (project / "client.py").unlink()
    assert main(["init", str(project)]) == 2
    assert "app.py" in capsys.readouterr().err
    assert (project / "app.py").read_text() == "mine"
    assert not (project / "client.py").exists()
    assert main(["init", str(project), "--force", "--json"]) == 0
    paths = [json.loads(line)["path"] for line in capsys.readouterr().out.splitlines()]
    assert (len(paths), "mine" in (project / "app.py").read_text()) == (len(WRITTEN), False)
    (tmp_path / "file").write_text("")
    assert main(["init", str(tmp_path / "file")]) == 2
    assert f"Cannot write {tmp_path / 'file'}" in capsys.readouterr().err


def test_docs_prints_pages_and_finds_text(capsys):
    assert main(["docs", "quickstart"]) == 0
    assert capsys.readouterr().out.startswith("# Quickstart\n")
    assert main(["docs", "--search", "at_most_once"]) == 0
    assert "tools:" in capsys.readouterr().out
    assert main(["docs", "quickstart", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["page"] == "quickstart"
    assert main(["docs", "nowhere"]) == 2
    assert "There is no page 'nowhere'" in capsys.readouterr().err
