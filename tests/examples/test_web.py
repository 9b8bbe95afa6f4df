"""The chats of examples/web, with each framework: web servers and workers are killed while a browser reads."""

import asyncio
import re

import httpx2
import pytest
from support.browser import ABSENT, open_browser
from support.event_source import EventSource
from support.eventually import patience, wait_until, wait_until_async
from support.network import free_port
from support.source_tree import ROOT
from support.stage import FIRST_WORDS, Stage

pytestmark = [pytest.mark.one_server, pytest.mark.timeout(120)]

WEB = ROOT / "examples" / "web"
FRAMEWORKS = ("django", "fastapi", "flask")


class Site:
    """The web server of an example, and workers whose assistant is on the stage."""

    def __init__(self, framework, redis_url, processes, directory):
        self.stage = Stage(directory / "stage")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._framework, self._redis_url, self._processes = framework, redis_url, processes
        self.start()

    def start(self):
        name = f"{self._framework}_app"
        if self._framework == "flask":
            command = ["-m", "flask", "--app", name, "run", "--port", str(self.port)]
        else:
            command = ["-m", "uvicorn", f"{name}:app", "--port", str(self.port)]
        env = {"ANTIPHON_REDIS_URL": self._redis_url, "PYTHONPATH": str(WEB)}
        self.server = self._processes.python(*command, name=self._framework, env=env)
        self.server.wait_for_output("unning on http://127.0.0.1", 40)

    def worker(self):
        flags = ("--app", "support.chat:app", "--lease", "2")
        worker = self._processes.worker(self._redis_url, *flags, env=self.stage.env)
        worker.wait_for_output("takes turns")
        return worker


@pytest.fixture(params=FRAMEWORKS)
def site(request, redis_url, processes, tmp_path):
    return Site(request.param, redis_url, processes, tmp_path)


async def test_a_browser_reads_on_when_the_web_server_and_the_worker_are_killed(site):
    worker = await asyncio.to_thread(site.worker)
    async with httpx2.AsyncClient(base_url=site.url, trust_env=False, timeout=20) as http:
        said = {"text": "gate:g Hello", "key": "k1"}
        sent = [await http.post("/chats/c/messages", data=said) for _ in range(2)]
        assert len({answer.json()["turn"] for answer in sent}) == 1
        source = EventSource(f"{site.url}/chats/c/events?after=0")
        reading = asyncio.create_task(source.read_to_the_end())
        await wait_until_async(lambda: site.stage.notes("waits", gate="g") and source.last_id, 20)
        await asyncio.to_thread(site.server.kill)
        await asyncio.to_thread(worker.kill)
        await asyncio.to_thread(site.start)
        await asyncio.to_thread(site.worker)
        site.stage.open("g")
        events = await asyncio.wait_for(reading, patience(60))
        assert source.connections >= 2
        assert [event["seq"] for event in events] == [*range(1, events[-1]["seq"] + 1)]
        assert events[-1]["response"]["text"].startswith(FIRST_WORDS + "I was shown 1 messages")
        for path, body in (("messages", said), ("events?after=0", None)):
            method = "GET" if body is None else "POST"
            answer = await http.request(
                method, f"/chats/c/{path}", data=body, headers={"cookie": "user=mallory"}
            )
            assert (path, answer.status_code) == (path, 403)


@pytest.mark.skipif(bool(ABSENT), reason=ABSENT)
def test_the_page_shows_an_answer_as_it_comes(site, tmp_path):
    site.worker()
    with open_browser(tmp_path / "browser") as driver:
        driver.get(f"{site.url}/#c")
        driver.find_element("css selector", "input").send_keys("gate:g Hello\n")
        said = lambda: [one.text for one in driver.find_elements("css selector", "li")]  # noqa: E731
        wait_until(lambda: said() == ["gate:g Hello", FIRST_WORDS.strip()], 30)
        site.stage.open("g")
        wait_until(lambda: re.match(FIRST_WORDS + "I was shown 1 messages", said()[-1]), 30)


def test_the_commands_of_the_page_start_what_is_there():
    page = (ROOT / "docs" / "web.md").read_text()
    for command in ("uvicorn django_app:app", "uvicorn fastapi_app:app", "flask --app flask_app run"):
        assert command in page
