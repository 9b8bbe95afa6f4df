"""The README is true: its code runs word for word, its tables are those of the code, its links lead somewhere."""

import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from support.models import ModelProcess
from support.processes import Processes

from antiphon_worker.settings import Settings, variable_of

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def settings_table() -> str:
    rows = ["| variable | default | what it is |", "|---|---|---|"]
    for known in fields(Settings):
        default = (
            ",".join(known.default)
            if isinstance(known.default, tuple)
            else f"{known.default:g}"
            if isinstance(known.default, float)
            else str(known.default)
        )
        rows.append(
            f"| `{variable_of(known.name)}` | {f'`{default}`' if default else ''} | {known.metadata['doc']} |"
        )
    return "\n".join(rows)


def test_the_settings_table_is_that_of_the_code():
    found = re.search(r"<!-- settings -->\n(.*?)\n?<!-- /settings -->", README, re.DOTALL)
    assert found is not None
    assert found[1] == settings_table(), "put settings_table() of this test between the marks"


def test_the_first_example_can_be_run_from_its_folder():
    for name, text in zip(("app.py", "client.py"), blocks("python"), strict=False):
        assert (ROOT / "examples" / "workers" / name).read_text() == text


@pytest.mark.one_server
def test_the_first_example_runs_word_for_word(redis_url, processes: Processes, tmp_path):
    app, client = blocks("python")[:2]
    (tmp_path / "app.py").write_text(app)
    (tmp_path / "client.py").write_text(client.replace("redis://localhost:6379/0", redis_url))
    models = ModelProcess(processes, "--length", "5")
    worker = processes.worker(
        redis_url,
        "--app",
        "app:app",
        "--processes",
        "2",
        env=models.environment | {"PYTHONPATH": str(tmp_path)},
    )
    worker.wait_for_output("takes turns")
    run = processes.python(str(tmp_path / "client.py"))
    printed = run.wait_for_output("Usage(")
    assert "[turn 1" in printed
    assert "input_tokens=" in printed


def test_the_example_without_a_server_runs_word_for_word(processes: Processes, tmp_path):
    (tmp_path / "parrot.py").write_text(blocks("python")[2])
    printed = processes.python(str(tmp_path / "parrot.py")).wait_for_output("Hello")
    assert "You said: Hello" in printed


def test_every_link_leads_to_a_file():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!http|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_every_command_of_the_readme_is_one(capsys):
    from antiphon.cli.main import main

    named = set(re.findall(r"`antiphon ([a-z]+)", README)) | set(re.findall(r"\$ antiphon ([a-z]+)", README))
    main(["--help"])
    known = capsys.readouterr().out
    assert {"worker", "redis", "tail"} <= named
    for command in named:
        assert re.search(rf"\b{command}\b", known), command
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z]+)", " ".join(blocks("console")))) <= targets


if __name__ == "__main__":
    sys.stdout.write(settings_table() + "\n")
