"""A model server in its own process, for tests whose workers are also processes."""

import json
import urllib.request
from typing import Any

from support.eventually import patience
from support.processes import Process, Processes


class ModelProcess:
    """``flags`` are flags of the model server: ``--pace 50``, ``--length 200``, …"""

    def __init__(self, processes: Processes, *flags: str) -> None:
        self.process: Process = processes.python("-m", "antiphon_demo.modelserver", *flags, name="models")
        urls = json.loads(self.process.wait_for_output("}\n"))
        self.base_url: str = urls["base_url"]
        self.openai_url: str = urls["openai_url"]

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables with which a worker's providers use this server."""
        return {
            "OPENAI_BASE_URL": self.openai_url,
            "OPENAI_API_KEY": "any",
            "ANTHROPIC_BASE_URL": self.base_url,
            "ANTHROPIC_API_KEY": "any",
        }

    def statistics(self) -> dict[str, Any]:
        """Return counters since its start: requests, streams, live_streams, chunks, abandoned, …"""
        with urllib.request.urlopen(f"{self.base_url}/stats", timeout=patience(5)) as answer:
            return json.load(answer)
