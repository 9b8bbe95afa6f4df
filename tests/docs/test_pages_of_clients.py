"""The pages about clients, resuming and web frameworks run from top to bottom, on a worker of their own."""

from __future__ import annotations

import asyncio
import json
import re
import sys

import pytest
from httpx2 import AsyncClient
from support.eventually import wait_until
from support.processes import Processes
from support.serving import serving
from support.source_tree import ROOT

APP = """
from antiphon import Agent
from antiphon_worker import App

app = App(agents=[Agent(provider="scripted", model="any", name="assistant")])
"""


@pytest.fixture
def assistant(redis_url, processes: Processes, tmp_path):
    """The URL of a Redis with a worker whose App has the pages' agent."""
    (tmp_path / "app_of_the_pages.py").write_text(APP)
    worker = processes.worker(redis_url, "--app", "app_of_the_pages:app", env={"PYTHONPATH": str(tmp_path)})
    worker.wait_for_output("takes turns")
    return redis_url


def run_page(name: str, url: str) -> dict:
    text = (ROOT / "docs" / name).read_text().replace("redis://localhost:6379/0", url)
    names = {"__name__": f"page_{name.partition('.')[0]}"}
    sys.modules[names["__name__"]] = type(sys)(names["__name__"])
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(compile(block, name, "exec"), names)
    return names


def test_commands_of_curl_name_the_type_of_what_they_send():
    pages = [path.read_text().replace("\\\n", "") for path in (ROOT / "docs").glob("*.md")]
    sent = [line for page in pages for line in page.splitlines() if "curl" in line and " -d " in line]
    assert sent
    assert [line for line in sent if "Content-Type: application/json" not in line] == []


@pytest.mark.one_server
def test_the_page_about_clients_runs(assistant, capsys):
    page = run_page("clients.md", assistant)
    said = capsys.readouterr().out
    assert said.count("You said: Hello") == 2
    assert {line.split()[0] for line in said.splitlines() if "Summarise" in line} == {"user-1", "user-2"}
    page["client"].close()


@pytest.mark.main_path
@pytest.mark.one_server
def test_the_page_about_resuming_runs(assistant, capsys):
    page = run_page("resuming.md", assistant)
    assert "You said: Hello" in capsys.readouterr().out, "streamed, or read where the turn had ended before"

    async def words() -> str:
        async with page["AsyncClient"](assistant) as client:
            return await page["first_words"](client, "user-123")

    assert asyncio.run(words()).startswith("You")


@pytest.mark.one_server
async def test_the_page_about_web_frameworks_serves_a_browser(assistant):
    page = run_page("web.md", assistant)
    async with serving(page["app"]) as port, AsyncClient(base_url=f"http://127.0.0.1:{port}") as server:
        sent = await server.post("/chats/c1/messages?text=Hello&key=k1")
        again = await server.post("/chats/c1/messages?text=Hello&key=k1")
        assert sent.json() == again.json()
        events = []
        async with server.stream("GET", "/chats/c1/events") as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    events.append(json.loads(line.removeprefix("data: ")))
                    if events[-1].get("type") == "turn_finished":
                        break
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        async with page["AsyncClient"](assistant) as client:
            await (await client.submit("c2", "Hi", agent="assistant", tenant="other")).result(60)
        assert (await server.get("/chats/c2/events")).status_code == 403
        found = await asyncio.to_thread(
            page["flask"].test_client().get, f"/turns/{sent.json()['turn']}/events"
        )
        assert found.data.endswith(b"event: end\ndata: {}\n\n")
        await asyncio.to_thread(page["client"].close)
        await page["async_client"].aclose()


@pytest.mark.one_server
def test_the_page_about_web_frameworks_serves_a_browser_with_flask(assistant):
    page = run_page("web.md", assistant)
    browser = page["flask"].test_client()
    sent, again = (browser.post("/chats/f1/messages", data={"text": "Hello", "key": "k1"}) for _ in range(2))
    assert sent.json == again.json
    streamed = browser.get(f"/turns/{sent.json['turn']}/events")
    assert streamed.mimetype == "text/event-stream"
    lines = streamed.get_data(as_text=True).splitlines()
    kinds = [json.loads(line[6:]).get("type") for line in lines if line.startswith("data: {")]
    assert kinds[-2:] == ["turn_finished", None]
    assert "event: end" in lines
    page["client"].close()


@pytest.mark.one_server
def test_the_page_about_task_queues_runs(assistant, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    page = run_page("tasks.md", assistant)
    page["app"].conf.task_always_eager = True
    page["answer"].delay(1, "Hello").get()
    wait_until(lambda: page["answer_job"](2, "Hello") is None, 20)
    page["answer"].delay(1, "Hello").get()
    assert capsys.readouterr().out.splitlines() == [
        f"Ticket {n} is answered: You said: Hello" for n in (1, 2)
    ]
    page["client"].close()
