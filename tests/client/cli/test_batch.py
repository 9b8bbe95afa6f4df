"""``antiphon batch``: a turn for each line of a file, to be gone on with after any end of the command."""

import asyncio
import json
import os
import pty
import signal
import subprocess

import pytest
from redis import Redis
from support.batched import working
from support.eventually import wait_until
from support.here import running_worker
from support.processes import COMMAND

from antiphon.cli.main import main

pytestmark = [pytest.mark.one_server, pytest.mark.timeout(120)]

ECHO = ("--provider", "scripted", "--model", "any")


@pytest.fixture
def files(tmp_path):
    def write(*lines):
        (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return tmp_path / "in.jsonl", tmp_path / "out.jsonl"

    return write


def command(files, url, *more):
    return ["batch", str(files[0]), "--out", str(files[1]), "--redis-url", url, *ECHO, *more]


async def run(*arguments):
    return await asyncio.to_thread(main, command(*arguments))


def started(*arguments, stderr=subprocess.PIPE):
    return subprocess.Popen(
        [COMMAND, *command(*arguments)], stderr=stderr, env={**os.environ, "COLUMNS": "100"}
    )


def outcomes(files):
    return [json.loads(line) for line in files[1].read_text().splitlines()]


async def test_each_line_gets_its_outcome_and_the_same_command_again_does_nothing(redis_url, files, capsys):
    both = files(
        {"text": "one"}, {"text": "one"}, {"id": "a", "text": "two", "session": "s"},
        {"id": 7, "text": "x", "agent": "nobody"}, {"id": "bad", "text": "x", "params": {"api_key": "1"}},
    )  # fmt: skip
    async with running_worker(redis_url):
        assert await run(both, redis_url) == 1, "not all have finished"
    found = {one["id"]: one for one in outcomes(both)}
    assert [one["text"] for one in found.values() if one["status"] == "finished"].count("You said: one") == 2
    assert (found["a"]["text"], found["a"]["session_id"]) == ("You said: two", "s")
    assert (found["7"]["status"], found["7"]["code"]) == ("failed", "unknown_agent")
    assert found["bad"]["status"] == "refused"
    before = both[1].read_bytes()
    assert await run(both, redis_url) == 1
    assert both[1].read_bytes() == before
    assert capsys.readouterr().err == "", "no bar in a pipe"


async def test_a_redis_that_refuses_the_command_is_no_outcome_of_a_line(redis_url, files, capsys):
    one = files({"id": "a", "text": "one"})
    assert await run(one, redis_url.replace("//", "//nobody:wrong@")) == 1
    assert capsys.readouterr().err.startswith("antiphon batch: Redis refuses the user or password")
    assert outcomes(one) == []
    async with running_worker(redis_url):
        assert await run(one, redis_url) == 0
    assert [found["status"] for found in outcomes(one)] == ["finished"]


async def test_failed_lines_run_again_where_that_is_asked(redis_url, files):
    both = files({"id": "a", "text": "x", "agent": "nobody"}, {"id": "b", "text": "y"})
    async with running_worker(redis_url):
        assert await run(both, redis_url) == 1
        assert await run(both, redis_url, "--retry-failed") == 1
    assert [one["id"] for one in outcomes(both)][-1] == "a"
    assert len(outcomes(both)) == 3


async def test_a_line_cut_short_by_a_crash_is_written_again(redis_url, files):
    both = files({"id": "a", "text": "x"}, {"id": "b", "text": "y"})
    async with running_worker(redis_url):
        assert await run(both, redis_url) == 0
        whole = outcomes(both)
        both[1].write_bytes(both[1].read_bytes()[:-20])
        assert await run(both, redis_url) == 0
    assert sorted(one["id"] for one in outcomes(both)) == ["a", "b"]
    assert {one["turn_id"] for one in outcomes(both)} == {one["turn_id"] for one in whole}, "the same turns"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ({"text": "x", "txet": 1}, "line 2: The field 'txet' is unknown: did you mean 'text'?"),
        ({"id": "a", "text": "y"}, "line 2: the id 'a' was used before"),
        ({"id": "b", "text": "x", "session": ""}, "line 2: A session id must have"),
    ],
)
def test_a_wrong_line_is_named_before_anything_runs(redis_url, files, capsys, line, complaint):
    both = files({"id": "a", "text": "x"}, line)
    assert main(command(both, redis_url)) == 2
    assert complaint in capsys.readouterr().err
    with Redis.from_url(redis_url) as redis:
        assert redis.keys("*") == []


async def test_the_outcomes_of_another_batch_are_not_added_to(redis_url, files, capsys):
    async with running_worker(redis_url):
        assert await run(files({"id": "a", "text": "x"}), redis_url) == 0
    assert await run(files({"id": "a", "text": "another"}), redis_url) == 2
    assert "choose another file" in capsys.readouterr().err


@pytest.mark.main_path
@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
async def test_a_command_that_was_stopped_goes_on(redis_url, files, how, code):
    both = files(*({"text": f"text {n}"} for n in range(60)))
    process = started(both, redis_url, "--at-once", "20")
    with Redis.from_url(redis_url) as redis:
        wait_until(lambda: redis.zcard("ant:active") == 20, description="so many turns are accepted at once")
        process.send_signal(how)
        said = process.communicate(timeout=30)[1]
        assert process.returncode == code
        assert (b"Run the same command again" in said) == (how == signal.SIGINT)
        async with running_worker(redis_url):
            assert await run(both, redis_url) == 0
        assert len({one["id"] for one in outcomes(both)}) == len(outcomes(both)) == 60
        assert redis.zcard("ant:sessions") == 60
        assert {redis.llen(key) for key in redis.keys("ant:turns:*")} == {1}, "no turn was submitted twice"


async def test_one_command_at_a_time_writes(redis_url, files, capsys):
    both = files({"text": "x"})
    process = started(both, redis_url)
    with Redis.from_url(redis_url) as redis:
        wait_until(lambda: redis.zcard("ant:active") == 1)
    assert await run(both, redis_url) == 2
    assert "Another command is writing" in capsys.readouterr().err
    async with running_worker(redis_url):
        assert await asyncio.to_thread(process.wait, 30) == 0
    process.stderr.close()


async def test_a_terminal_gets_a_bar(redis_url, files):
    both = files(*({"text": f"text {n}"} for n in range(5)), {"text": "x", "agent": "nobody"})
    ours, theirs = pty.openpty()
    async with running_worker(redis_url):
        process = started(both, redis_url, stderr=theirs)
        os.close(theirs)
        assert await asyncio.to_thread(process.wait, 30) == 1
    said = os.read(ours, 65536).decode()
    os.close(ours)
    assert "[##############################] 6/6" in said
    assert "1 failed" in said


async def test_the_lines_of_a_file_are_answered_in_one_batch_of_the_model_service(
    redis_url, tmp_path, monkeypatch
):
    monkeypatch.setattr("antiphon_worker.batches.IDLE_SECONDS", 0.05)
    both = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    both[0].write_text("".join(json.dumps({"id": f"{n}", "text": "Hello"}) + "\n" for n in range(5)))
    arguments = ["--redis-url", redis_url, "--agent", "a", "--service", "batch"]
    async with working(redis_url, "openai", batch_seconds=600.0, batch_size=5) as (_, server):
        code = await asyncio.to_thread(main, ["batch", str(both[0]), "--out", str(both[1]), *arguments])
    assert code == 0
    assert {one["text"] for one in outcomes(both)} == {"Hello."}
    assert all(one["usage"]["cost"] == pytest.approx(0.0015) for one in outcomes(both)), "half of the price"
    assert len(server.orders) == 1
