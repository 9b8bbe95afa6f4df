"""`antiphon worker --reload`, as a developer uses it."""

import signal

import pytest
from support.eventually import wait_until

from antiphon import Client
from antiphon_worker.supervisor.reload import sources

pytestmark = pytest.mark.one_server

APP = """
from antiphon import Agent
from antiphon.testing import script
from antiphon_worker import App

app = App(agents=[Agent(script({!r}, repeat=True), "any", name="support")])
"""


def test_a_worker_starts_again_after_a_change_and_survives_a_broken_file(
    redis_url, processes, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    app = tmp_path / "app.py"
    app.write_text(APP.format("one"))
    process = processes.worker(redis_url, "--reload", "--app", "app:app")

    def write(text, expected):
        """Change the app, and wait until the worker has read it."""
        before = process.output.count(expected)
        app.write_text(text)
        wait_until(lambda: process.output.count(expected) > before, 30, f"{expected} is printed again")

    def answer():
        with Client(redis_url) as client:
            return client.session().run("Hello", agent="support").text

    try:
        process.wait_for_output("takes turns")
        assert answer() == "one"
        write(APP.format("two"), "agents support")
        assert answer() == "two"
        write("app = (", "was never closed")
        write(APP.format("three"), "takes turns")
        assert answer() == "three"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0, process.output


def test_only_the_projects_own_files_are_sources(tmp_path):
    for name in ("app.py", "lib/tools.py", ".venv/lib/a.py", "venv/site-packages/b.py", "notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert {path.removeprefix(f"{tmp_path}/") for path in sources(tmp_path)} == {"app.py", "lib/tools.py"}
