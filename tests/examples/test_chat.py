"""The chat of examples/chat over HTTP, while its workers and its web server are killed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx2
import pytest
from support.chat import Chat
from support.event_source import EventSource
from support.eventually import patience, wait_until_async
from support.processes import Process
from support.stage import FIRST_WORDS, reply

from antiphon.errors import user_message
from antiphon.model import Message

pytestmark = [pytest.mark.one_server, pytest.mark.timeout(90)]

keys = (f"key-{number}" for number in itertools.count())


@pytest.fixture
def chat(redis_url, processes, tmp_path) -> Chat:
    return Chat(redis_url, processes, tmp_path)


class User:
    """A browser of one user."""

    def __init__(self, url: str, name: str) -> None:
        self.url = url
        self.http = httpx2.AsyncClient(base_url=url, cookies={"user": name}, trust_env=False, timeout=20)

    async def call(self, method: str, path: str, **body: Any) -> dict[str, Any]:
        answer = await self.http.request(method, path, json=body or None)
        return {"status_code": answer.status_code, **answer.json()}

    async def send(self, text: str, key: str | None = None, chat: str = "c") -> str:
        answer = await self.call("POST", f"/chats/{chat}/messages", text=text, key=key or next(keys))
        assert answer["status_code"] == 200, answer
        return answer["turn"]

    async def chats(self, search: str = "") -> list[dict[str, Any]]:
        """The chats that the page lists."""
        return (await self.http.get("/chats", params={"search": search})).json()["chats"]

    async def finds(self, *expected: str) -> None:
        """Wait until a search for the last argument lists chats with these titles."""
        *titles, text = expected

        async def so() -> bool:
            return [one["title"] for one in await self.chats(text)] == titles

        await wait_until_async(so, 20)

    async def shown(self) -> list[tuple[str, ...]]:
        """What the page shows after a reload: role and text of each message, and what is said of it below."""
        page = await self.call("GET", "/chats/c")
        return [line(one) for one in page["messages"]] + [
            (*line(one), turn["status"]) for turn in page["turns"] for one in turn.get("input", [])
        ]

    async def shows(self, *expected: tuple[str, ...]) -> None:
        """Wait until a reload shows this."""
        last: list[tuple[str, ...]] = []

        async def so() -> bool:
            last[:] = await self.shown()
            return last == list(expected)

        with suppress(AssertionError):
            await wait_until_async(so, 20)
        assert last == list(expected)


def line(message: dict[str, Any]) -> tuple[str, ...]:
    marks = (
        "stopped" if message.get("interrupted") else "",
        message.get("status"),
        message.get("user_error"),
    )
    return (
        message["role"],
        "".join(part.get("text", "") for part in message["parts"]),
        *filter(None, marks),
    )


def answers(*before: tuple[str, ...]) -> tuple[str, str]:
    """What the stage answers to a conversation."""
    messages = [getattr(Message, role)(text) for role, text, *_ in before]
    return "assistant", FIRST_WORDS + reply(messages)


@asynccontextmanager
async def browser(chat: Chat, name: str = "alice") -> AsyncIterator[User]:
    user = User(chat.url, name)
    async with user.http:
        yield user


async def waits(chat: Chat, gate: str, times: int = 1) -> None:
    await wait_until_async(lambda: len(chat.stage.notes("waits", gate=gate)) >= times, 20, f"waits at {gate}")


async def killed(worker: Process) -> None:
    await asyncio.to_thread(worker.kill)


@pytest.mark.main_path
async def test_a_question_is_answered_by_another_worker_when_its_own_is_killed(chat):
    worker = chat.start_worker()
    async with browser(chat) as alice:
        hello, slow, last = ("user", "Hello"), ("user", "gate:g Go on"), ("user", "And then?")
        await alice.send("Hello")
        await alice.shows(hello, answers(hello))
        before = [hello, answers(hello), slow]
        await alice.send("gate:g Go on")
        await waits(chat, "g")
        await alice.send("And then?", key="once")
        await alice.send("And then?", key="once")
        await alice.shows(*before[:2], (*slow, "running"), (*last, "waiting"))
        await killed(worker)
        chat.start_worker()
        await waits(chat, "g", times=2)
        chat.stage.open("g")
        before += [answers(*before), last]
        await alice.shows(*before, answers(*before))


async def test_a_page_that_comes_back_gets_every_event_once(chat):
    worker = chat.start_worker()
    async with browser(chat) as alice:
        await alice.send("gate:g Hello")
        await waits(chat, "g")
        page = await alice.call("GET", "/chats/c")
        assert [turn["status"] for turn in page["turns"]] == ["running"]
        source = EventSource(f"{chat.url}/chats/c/events?after={page['cursor']}", alice.http.cookies)
        reading = asyncio.create_task(source.read_to_the_end())
        await wait_until_async(lambda: source.last_id)
        await asyncio.to_thread(chat.restart_server)
        await killed(worker)
        chat.start_worker()
        chat.stage.open("g")
        seen = await asyncio.wait_for(reading, patience(60))
        assert source.connections >= 2
        assert [event["seq"] for event in seen] == [*range(page["cursor"] + 1, seen[-1]["seq"] + 1)]
        [_, answer] = await alice.shown()
        assert said(seen) == answer[1]


def said(events: list[dict[str, Any]]) -> str:
    """The answer as the page puts it together."""
    text = ""
    for event in events:
        if event["type"] in ("turn_started", "turn_retrying"):
            text = ""
        text += event.get("text", "") if event["type"] == "text_delta" else ""
    return text


async def test_stop_keeps_what_was_said(chat):
    chat.start_worker()
    async with browser(chat) as alice:
        await alice.send("gate:g Tell me all")
        await waits(chat, "g")
        await alice.call("POST", "/chats/c/stop")
        question = ("user", "gate:g Tell me all")
        await alice.shows(question, ("assistant", FIRST_WORDS, "stopped"))


async def test_a_failed_question_stays_and_is_tried_again(chat):
    chat.start_worker()
    async with browser(chat) as alice:
        question = ("user", "fail:rejected*1 Please")
        turn = await alice.send(question[1])
        [failed, *_] = await shows_a_failure(alice)
        assert failed[:3] == (*question, "failed")
        assert failed[3] == user_message("provider_rejected")
        await alice.call("POST", f"/turns/{turn}/requeue")
        await alice.shows(question, answers(question))
        again = await alice.call("POST", f"/turns/{turn}/requeue")
        assert (again["status_code"], again["code"]) == (400, "usage")


async def shows_a_failure(user: User) -> list[tuple[str, ...]]:
    async def failed() -> list[tuple[str, ...]]:
        return [one for one in await user.shown() if "failed" in one[2:]]

    return await wait_until_async(failed, 20, "a turn has failed")  # type: ignore[return-value]


async def test_an_edit_and_a_new_answer_take_the_place_of_the_old_ones(chat):
    chat.start_worker()
    async with browser(chat) as alice:
        first, other, second = ("user", "Hello"), ("user", "gate:g Goodbye"), ("user", "gone")
        await alice.send(first[1])
        await alice.send(second[1])
        old = [first, answers(first), second]
        await alice.shows(*old, answers(*old))
        page = await alice.call("GET", "/chats/c")
        question = page["messages"][0]["id"]
        await alice.call("PUT", f"/chats/c/messages/{question}", text=other[1], key=next(keys))
        await waits(chat, "g")
        pending = await alice.call("GET", "/chats/c")
        assert pending["messages"] == page["messages"]
        assert pending["turns"][0]["metadata"] == {"replaces": question}
        chat.stage.open("g")
        await alice.shows(other, answers(other))
        turn = await alice.call("POST", "/chats/c/regenerate")

        async def answered_again() -> bool:
            messages = (await alice.call("GET", "/chats/c"))["messages"]
            return [one["turn_id"] for one in messages[1:]] == [turn["turn"]]

        await wait_until_async(answered_again, 20)
        await alice.shows(other, answers(other))
        nothing = await alice.call("POST", "/chats/empty/regenerate")
        assert (nothing["status_code"], nothing["code"]) == (404, "message_not_found")


@pytest.mark.main_path
async def test_nobody_reads_or_changes_the_chat_of_another_user(chat):
    chat.start_worker()
    async with browser(chat) as alice, browser(chat, "mallory") as mallory:
        turn = await alice.send("fail:rejected Hello")
        await shows_a_failure(alice)
        message = {"text": "mine now", "key": "k"}
        for method, path, body in (
            ("GET", "/chats/c", {}),
            ("GET", "/chats/c/events?after=0", {}),
            ("POST", "/chats/c/messages", message),
            ("PUT", f"/chats/c/messages/{turn}.1", message),
            ("POST", "/chats/c/regenerate", {}),
            ("POST", "/chats/c/stop", {}),
            ("PATCH", "/chats/c", {"title": "Mine"}),
            ("DELETE", "/chats/c", {}),
            ("POST", f"/turns/{turn}/requeue", {}),
        ):
            answer = await mallory.call(method, path, **body)
            assert (path, answer["status_code"], answer["code"]) == (path, 403, "wrong_tenant")
        assert await mallory.chats() == []
        assert [one["id"] for one in await alice.chats()] == ["c"]
        assert len(await alice.shown()) == len(await shows_a_failure(alice))


async def test_a_new_chat_is_empty_and_gets_a_title_with_its_first_answer(chat):
    async with browser(chat) as alice:
        page = await alice.call("GET", "/chats/c")
        assert page == {"status_code": 200, "cursor": 0, "messages": [], "turns": []}
        await alice.send("Hello")
        assert await alice.chats() == [{"id": "c", "title": "New chat", "said": None}]
        await alice.shows(("user", "Hello", "queued"))
        chat.start_worker()
        await alice.shows(("user", "Hello"), answers(("user", "Hello")))
        await alice.finds("Hello", "")
        assert await alice.call("POST", "/chats/c/stop") == {"status_code": 200, "status": None}


async def test_a_chat_is_found_renamed_and_deleted(chat):
    chat.start_worker()
    async with browser(chat) as alice, browser(chat, "mallory") as mallory:
        for name, title in (("c", "Hello"), ("d", "Goodbye")):
            await alice.send("Hi", chat=name)
            await alice.call("PATCH", f"/chats/{name}", title=title)
        await alice.call("PATCH", "/chats/d", title="Plans for May")
        assert await alice.chats("PLANS") == [{"id": "d", "title": "Plans for May", "said": None}]
        assert await alice.chats("goodbye") == []
        assert await mallory.chats("plans") == []
        assert (await alice.call("PATCH", "/chats/d", title=""))["status_code"] == 422
        assert (await alice.call("DELETE", "/chats/d"))["deleted"]
        assert [one["id"] for one in await alice.chats()] == ["c"]


async def test_the_assistant_answers_without_a_key(chat):
    chat.start_example_worker()
    async with browser(chat) as alice:
        await alice.send("Hello")
        await alice.shows(("user", "Hello"), ("assistant", "You said: Hello"))


async def test_a_user_finds_what_was_said_in_the_own_chats_where_there_is_a_search(
    redis_url, processes, tmp_path
):
    chat = Chat(redis_url, processes, tmp_path, f"sqlite:///{tmp_path}/chat.db")
    async with browser(chat) as alice, browser(chat, "mallory") as mallory:
        assert (await alice.http.get("/chats")).json() == {"chats": [], "in_messages": True}
        assert await alice.chats("kyoto") == []  # no worker has made an index yet
        chat.start_worker()
        await alice.send("Kyoto in May")
        await alice.call("PATCH", "/chats/c", title="A trip")
        await alice.finds("A trip", "may kyoto")
        (found,) = await alice.chats("kyoto")
        assert [part["text"] for part in found["said"] if part["match"]][:1] == ["Kyoto"]
        assert await alice.chats("?!") == []
        assert await mallory.chats("kyoto") == []
