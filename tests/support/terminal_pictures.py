"""Makes the pictures of ``antiphon top`` and ``antiphon explain`` in ``docs/img`` from running commands.

``PYTHONPATH=tests python -m support.terminal_pictures`` starts a server and two workers, plays some turns on them, and
writes the screens.
"""

import re
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path

from rich.console import Console
from rich.text import Text
from support.eventually import wait_until
from support.operated import APP
from support.processes import COMMAND, Processes
from support.servers import RedisServer
from support.source_tree import ROOT
from support.stage import Stage
from support.terminal import Terminal

from antiphon.client import Client

IMAGES = ROOT / "docs" / "img"
_FONTS = re.compile(r"@font-face \{[^{}]*\}")
COLUMNS = 118


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, RedisServer("valkey") as server:
        stage = Stage(Path(folder) / "stage")
        with closing(Processes(Path(folder))) as processes, Client(server.url) as client:
            env = stage.env | {"ANTIPHON_APP": APP}
            for _ in range(2):
                processes.worker(server.url, env=env).wait_for_output("takes turns")
            _play(client, stage)
            _draw_top(server.url)
            _draw_explain(client, server.url)


def _play(client: Client, stage: Stage) -> None:
    for number in range(201, 206):
        client.submit(f"user-{number}", "gate:never", agent="support")
    client.submit("user-301", "Please pay it back. tool:refund", agent="support")
    client.submit("user-401", "Write the report.", agent="support", queue="reports")
    wait_until(lambda: len(stage.notes("waits", gate="never")) == 5, 30)
    wait_until(lambda: [*client.waiting()], 30)


def _draw_top(url: str) -> None:
    subprocess.run([COMMAND, "top", "--redis-url", url, "--svg", IMAGES / "top.svg"], check=True, timeout=60)


def _draw_explain(client: Client, url: str) -> None:
    turn = client.submit("user-123", "Please pay it back. tool:refund", agent="support")
    wait_until(lambda: turn.info().calls, 30)
    turn.approve(turn.info().calls[0].call_id, by="ada")
    turn.result(30)
    with Terminal("explain", turn.id, "--redis-url", url, columns=COLUMNS) as terminal:
        terminal.wait_for("It took")
        shown = terminal.raw.decode().replace("\r\n", "\n")
    with open("/dev/null", "w") as nowhere:
        console = Console(record=True, file=nowhere, width=COLUMNS, force_terminal=True)
        console.print(Text.from_ansi(shown))
        drawing = console.export_svg(title="antiphon explain")
    (IMAGES / "explain.svg").write_text(_FONTS.sub("", drawing), encoding="utf-8")


if __name__ == "__main__":
    main()
