"""Three replicas of the gateway that are killed one after the other, while other agents send and follow by A2A."""

import asyncio
import json
from contextlib import suppress

import httpx2
import pytest
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import ParseDict
from support.a2a_clients import Follower, answer
from support.eventually import wait_until_async
from support.gateway_process import Stand
from support.network import free_port

pytestmark = pytest.mark.one_server

SPOKEN = {"a2a-version": "1.0"}
TASKS = 6


class Reader:
    """Sends a message, and follows its task at one replica after the other until it has ended."""

    def __init__(self, urls: list[str], number: int) -> None:
        self._urls, self._number = urls, number
        self.found, self.task, self.last, self.moves = Follower(), "", "", -1
        text = [{"text": f"{number} gate:g"}]
        self._message = {
            "messageId": f"m{number}",
            "contextId": f"c{number}",
            "role": "ROLE_USER",
            "parts": text,
        }

    async def follow(self) -> Follower:
        """Return what came of the task."""
        async with httpx2.AsyncClient(headers=SPOKEN, timeout=60, trust_env=False) as http:
            while self.found.states[-1:] != ["TASK_STATE_COMPLETED"]:
                self.moves += 1
                url = self._urls[(self._number + self.moves) % len(self._urls)]
                with suppress(httpx2.TransportError):  # the next replica continues
                    await self._read(http, f"{url}/a2a/stage")
        return self.found

    async def _read(self, http: httpx2.AsyncClient, url: str) -> None:
        body = None if self.task else {"message": self._message}
        path = f"tasks/{self.task}:subscribe" if self.task else "message:stream"
        headers = {"last-event-id": self.last} if self.last else {}
        async with http.stream("POST", f"{url}/{path}", json=body, headers=headers) as answered:
            assert answered.status_code == 200, await answered.aread()
            self.found = Follower()
            async for line in answered.aiter_lines():
                if line.startswith("id: "):
                    self.last = line[4:]
                if line.startswith("data: "):
                    self.found.take(ParseDict(json.loads(line[6:]), pb.StreamResponse()))
                    assert self.found.task is not None
                    self.task = self.found.task.id


async def test_replicas_that_are_killed_lose_no_task_and_no_update(redis_url, processes, tmp_path):
    agents = tmp_path / "agents.toml"
    agents.write_text('[agents.stage]\ndescription = "Answers."\n')
    stand = Stand(redis_url, processes, tmp_path)
    ports = [free_port() for _ in range(3)]

    async def start(port: int):
        return (await asyncio.to_thread(stand.gateway, "--a2a", str(agents), port=port))[0]

    replicas = [await start(port) for port in ports]
    worker = await asyncio.to_thread(stand.worker)
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    readers = [Reader(urls, number) for number in range(TASKS)]
    running = [asyncio.create_task(reader.follow()) for reader in readers]
    await stand.waits("g", TASKS)
    await wait_until_async(lambda: all(reader.found.text for reader in readers), 20)
    for number in (0, 1, 2):
        moves = [reader.moves for reader in readers]
        replicas[number].kill()
        await wait_until_async(lambda before=moves: [reader.moves for reader in readers] != before, 20)
        replicas[number] = await start(ports[number])
    worker.kill()
    await asyncio.to_thread(stand.worker)
    stand.stage.open("g")
    ends = await asyncio.gather(*running)
    async with httpx2.AsyncClient(headers=SPOKEN, timeout=60, trust_env=False) as http:
        for reader, found in zip(readers, ends, strict=True):
            read = (await http.get(f"{urls[0]}/a2a/stage/tasks/{reader.task}")).json()
            assert found.text == answer(ParseDict(read, pb.Task()))
        listed = (await http.get(f"{urls[1]}/a2a/stage/tasks")).json()
    assert {one["id"] for one in listed["tasks"]} == {reader.task for reader in readers}
    assert listed["totalSize"] == TASKS
    assert sum(reader.moves for reader in readers) >= 3
