"""The shell example of docs/protocol.md runs as it stands, with a real worker."""

import asyncio
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from antiphon.events import decode_event
from antiphon.input.ids import cell_hash
from antiphon.model import decode_message

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
CLI = shutil.which("redis-cli") or shutil.which("valkey-cli")


def test_the_script_of_the_page_is_the_one_that_the_vectors_run():
    [script] = re.findall(r"^```lua\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    vectors = json.loads((Path(__file__).parent / "vectors.json").read_text())["submissions"]
    assert {vector["command"][1].strip() for vector in vectors} == {script.strip()}


@pytest.mark.main_path
@pytest.mark.skipif(CLI is None, reason="neither redis-cli nor valkey-cli is installed")
async def test_the_shell_example_submits_a_turn_and_reads_all_of_it(redis_url, processes):
    [example] = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert "redis-cli -u redis://localhost:6379/0" in example
    example = example.replace("redis-cli -u redis://localhost:6379/0", f"{CLI} -u {redis_url}")
    worker = processes.worker(redis_url)
    worker.wait_for_output("takes turns")
    shell = processes.start("bash", "-euc", example, env={"PATH": os.environ["PATH"]})
    assert await asyncio.to_thread(shell.wait, 30) == 0, shell.output
    assert '"text":"You said: Hello"' in shell.output
    lines = shell.output.splitlines()
    events = [decode_event(line) for line in lines if line.startswith('{"seq":')]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert events[-1].type == "turn_finished"
    assert events[-1].turn_id.startswith(cell_hash("user-123"))
    messages = [decode_message(line) for line in lines if line.startswith('{"role":')]
    assert [(one.role, one.text) for one in messages] == [("user", "Hello"), ("assistant", "You said: Hello")]
