"""The chat of ``examples/chat`` on a Redis, with workers whose assistant is on the stage.

Worker processes load ``app`` from here: the text of a question determines when its answer waits, fails or continues.
"""

import os
import re
from pathlib import Path

from support.processes import Process, Processes
from support.source_tree import ROOT
from support.stage import Stage, StageModel

from antiphon import Agent
from antiphon_worker import App

CHAT = ROOT / "examples" / "chat"


class Chat:
    """The web server, and the workers that a test starts and kills."""

    def __init__(self, redis_url: str, processes: Processes, directory: Path, archive: str = "") -> None:
        self.archive(archive)
        self.stage = Stage(directory / "stage")
        self._redis_url = redis_url
        self._processes = processes
        self.server, self.url = self._serve("0")

    def archive(self, url: str) -> None:
        """Let servers and workers started from now on search conversations, in the database at this URL."""
        self._archive = {"ANTIPHON_ARCHIVE": url} if url else {}

    def _serve(self, port: str) -> tuple[Process, str]:
        server = self._processes.python(
            "-m", "uvicorn", "app:app", "--app-dir", CHAT, "--port", port,
            name="uvicorn", env={"ANTIPHON_REDIS_URL": self._redis_url, **self._archive},
        )  # fmt: skip
        printed = server.wait_for_output("Uvicorn running on")
        return server, re.findall(r"running on (http://[\d.:]+)", printed)[0]

    def restart_server(self) -> None:
        """Kill the web server, and start it again at the same address."""
        self.server.kill()
        self.server, _ = self._serve(self.url.rpartition(":")[2])

    def start_worker(self) -> Process:
        """Start a worker with the stage's assistant, and return it once it takes turns."""
        return self._started("support.chat:app", self.stage.env)

    def start_example_worker(self, **env: str) -> Process:
        """Start a worker with the example's assistant."""
        return self._started("agents:app", {"PYTHONPATH": str(CHAT), **env})

    def _started(self, app: str, env: dict[str, str]) -> Process:
        worker = self._processes.worker(
            self._redis_url, "--app", app, "--lease", "2", env={**env, **self._archive}
        )
        worker.wait_for_output("takes turns")
        return worker


if "STAGE" in os.environ:  # a worker process
    app = App(
        agents=[Agent("stage", "any", name="assistant")],
        providers={"stage": StageModel(Stage(Path(os.environ["STAGE"])))},
        titles=lambda messages: messages[0].text[:60],
        search="ANTIPHON_ARCHIVE" in os.environ,
    )
