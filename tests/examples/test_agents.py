"""The examples of agents together run as they stand, with the demo's model server in place of a model service."""

from __future__ import annotations

import hashlib
import hmac
import importlib.util
import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
import standardwebhooks
from rq import SimpleWorker
from support.eventually import wait_until
from support.models import ModelProcess
from support.signals import kept_handlers
from support.source_tree import ROOT

from antiphon import Client

pytestmark = pytest.mark.one_server

EXAMPLES = ROOT / "examples"


@pytest.fixture
def models(processes):
    return ModelProcess(processes).environment


@contextmanager
def loaded(path: Path, monkeypatch, **environment):
    """An example as a module of this process."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)
    yield module


@pytest.fixture
def run(models):
    """Run an example with these arguments and this input, and return what it printed."""

    def run(path, *words, said="", env=None):
        command, env = [sys.executable, str(EXAMPLES / path), *words], {**os.environ, **models, **(env or {})}
        done = subprocess.run(
            command, check=False, env=env, input=said, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.short
@pytest.mark.parametrize(("said", "refunded"), [("y", True), ("n", False)])
def test_customer_service_hands_over_and_refunds_with_an_approval(run, said, refunded):
    output = run(
        "customer_service.py",
        'Twice! call:transfer_to_billing {"reason": "A double charge."} '
        'then call:refund {"order": 4711, "euros": 30}',
        said=f"{said}\n",
    )
    assert "triage hands over to billing: A double charge." in output
    assert "Allow refund {'order': 4711, 'euros': 30}? [y/n]" in output
    assert ("30.00 € were refunded for order 4711." in output) is refunded


@pytest.mark.short
def test_research_asks_in_parallel_on_workers(processes, run, models, redis_url):
    env = {"ANTIPHON_REDIS_URL": redis_url, "ANTIPHON_APP": "research:app", "PYTHONPATH": str(EXAMPLES)}
    processes.worker(redis_url, env=models | env).wait_for_output("takes turns")
    output = run(
        "research.py", 'call:researcher {"input": "Japan"} call:researcher {"input": "Alps"}', env=env
    )
    assert [output.count(f"turn_{what}") for what in ("started", "finished")] == [2, 2]


@pytest.mark.short
def test_the_coding_assistant_reads_and_asks_before_it_writes(run, tmp_path):
    pytest.importorskip("mcp")
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "parse.py").write_text("def parse(): ...\n")
    written = json.dumps({"path": "test_parse.py", "text": "import parse\n"})
    escape = json.dumps({"path": "../outside", "text": "no"})
    words = f'call:files__read_file {{"path": "parse.py"}} then call:files__write_file {written}'
    run("coding/assistant.py", str(folder), words, said="y\n")
    assert (folder / "test_parse.py").read_text() == "import parse\n"
    run("coding/assistant.py", str(folder), words.replace("test_parse", "refused"), said="n\n")
    run("coding/assistant.py", str(folder), f"call:files__write_file {escape}", said="y\n")
    assert {path.name for path in folder.iterdir()} == {"parse.py", "test_parse.py"}
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize(
    "number", [300, pytest.param(10_000, marks=[pytest.mark.nightly, pytest.mark.timeout(900)])]
)
def test_a_batch_asks_a_person_about_each_doubtful_text_once(number, redis_url, processes, monkeypatch):
    """The model is a script, which knows the words of the texts; every tenth one is doubtful."""
    texts = [f"{'Hmm' if n % 10 == 0 else 'Great'} {n}" for n in range(number)]
    env = {
        "ANTIPHON_REDIS_URL": redis_url,
        "ANTIPHON_APP": "support.classifying:app",
        "PYTHONPATH": f"{EXAMPLES}:{ROOT / 'tests'}",
    }
    processes.worker(redis_url, "--concurrency", "50", env=env).wait_for_output("takes turns")
    with loaded(EXAMPLES / "classify.py", monkeypatch) as classify, Client(redis_url) as client:
        turns = classify.submit(client, texts)
        asked: list[str] = []

        def person(call):
            asked.append(call.arguments["text"])
            return "question"

        while len(asked) < number // 10:
            classify.settle_doubts(client, person)
        assert classify.submit(client, texts) == turns
        outcomes = [one.text for one in client.results(turns)]
    assert sorted(asked) == sorted(text for text in texts if text.startswith("Hmm"))
    assert outcomes == ["question" if text.startswith("Hmm") else "praise" for text in texts]


def test_the_results_of_a_batch_are_those_of_their_texts(redis_url, processes, monkeypatch, tmp_path, capsys):
    """Its ``main`` runs unchanged. A blank line is no text, and moves no other result."""
    file, path = tmp_path / "texts.txt", f"{EXAMPLES}:{ROOT / 'tests'}"
    file.write_text("Great 0\n\nHmm 2\nGreat 3\n")
    env = {"ANTIPHON_APP": "support.classifying:app", "PYTHONPATH": path}
    processes.worker(redis_url, env=env).wait_for_output("takes turns")
    with loaded(EXAMPLES / "classify.py", monkeypatch, ANTIPHON_REDIS_URL=redis_url) as classify:
        asked: list[str] = []
        monkeypatch.setattr("builtins.input", lambda prompt: asked.append(prompt) or "question")

        def printed(*words: str) -> list[str]:
            monkeypatch.setattr(sys, "argv", ["classify.py", *words])
            classify.main()
            return capsys.readouterr().out.splitlines()

        assert printed("submit", str(file)) == ["3 turns"]
        wait_until(lambda: printed("doubts") or asked)
        results = printed("results", str(file))
    assert asked == ["Hmm 2: "]
    assert results == ["praise\tGreat 0", "question\tHmm 2", "praise\tGreat 3"]


class Slack(httpx.AsyncBaseTransport):
    """What the bot posts, in place of Slack."""

    def __init__(self):
        self.posted = []

    async def handle_async_request(self, request):
        self.posted.append((request.url.path, json.loads(await request.aread())))
        return httpx.Response(200, json={"ok": True})


@pytest.mark.short
async def test_a_message_that_slack_sends_again_is_one_turn(redis_url, processes, models, monkeypatch):
    secret = "whsec_" + "c2VjcmV0" * 4
    env = {
        "SLACK_SIGNING_SECRET": "signing",
        "ANTIPHON_WEBHOOK_SECRET": secret,
        "ANTIPHON_REDIS_URL": redis_url,
    }
    with loaded(EXAMPLES / "slack" / "bot.py", monkeypatch, **env) as bot:
        processes.worker(
            redis_url, "--app", "bot:workers", env=models | env | {"PYTHONPATH": str(EXAMPLES / "slack")}
        ).wait_for_output("takes turns")
        bot.slack._transport = slack = Slack()
        transport = httpx.ASGITransport(bot.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://bot") as internet:

            async def send(event, secret=b"signing"):
                body = json.dumps({"type": "event_callback", "event": event}).encode()
                now = str(int(time.time()))
                signed = "v0=" + hmac.digest(secret, f"v0:{now}:".encode() + body, hashlib.sha256).hex()
                headers = {"x-slack-request-timestamp": now, "x-slack-signature": signed}
                return (await internet.post("/slack", content=body, headers=headers)).status_code

            said = {"type": "app_mention", "channel": "C1", "ts": "17.1", "user": "U1", "text": "Hello"}
            assert await send(said, b"forged") == 401
            assert [await send(said) for _ in range(3)] == [200, 200, 200]
            [turn] = [one async for one in bot.client.turns("slack-C1-17.1")]
            finished = await (await bot.client.turn(turn.id)).result(20)
            body = json.dumps(
                {"data": {"turn_id": turn.id, "response": {"text": finished.text}}},
                ensure_ascii=False,
            )
            at = datetime.fromtimestamp(int(time.time()), UTC)
            headers = {
                "webhook-id": "m1", "webhook-timestamp": str(int(at.timestamp())),
                "webhook-signature": standardwebhooks.Webhook(secret).sign("m1", at, body),
            }  # fmt: skip
            assert (await internet.post("/finished", content=body, headers=headers)).status_code == 204
            forged = headers | {"webhook-signature": "v1,AAAA"}
            assert (await internet.post("/finished", content=body, headers=forged)).status_code == 401
        await bot.client.aclose()
    posted = {"text": finished.text, "channel": "C1", "thread_ts": "17.1"}
    assert slack.posted == [("/api/chat.postMessage", posted)]


@pytest.mark.short
def test_before_and_after_the_migration_give_the_same_answer(redis_url, processes, models, monkeypatch):
    folder = EXAMPLES / "migration"
    with loaded(folder / "before.py", monkeypatch, REDIS_URL=redis_url, **models) as before:
        job = before.ask("ada", "Hello")
        with kept_handlers():
            SimpleWorker([before.queue], connection=before.redis).work(burst=True)
        answer = job.return_value()
    with loaded(folder / "after.py", monkeypatch, REDIS_URL=redis_url) as after:
        env = models | {"PYTHONPATH": str(folder), "REDIS_URL": redis_url}
        processes.worker(redis_url, "--app", "after:app", env=env).wait_for_output("takes turns")
        assert after.client.turn(after.ask("ada", "Hello")).result(20).text == answer != ""
        after.client.close()
    code = (folder / "after.py").read_text().partition('"""\n\n')[2]
    assert len([line for line in code.splitlines() if line]) <= 10
