"""What the compatibility kit of the A2A project demands of a server, as plain requests by both bindings."""

import asyncio
import json
import re
import uuid
from contextlib import asynccontextmanager

import httpx2
import pytest
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import ParseDict
from support.eventually import wait_until_async
from support.gateway import stand
from support.receiver import Receiver

from antiphon_gateway import A2AAgent

pytestmark = [pytest.mark.one_server, pytest.mark.lasting_keys("ant:pushes")]

STAGE = A2AAgent("stage", private_push=True)
INPUT, DONE = "tool:guarded", "Hello"
ENDED = ("TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED")
CODES = {  # by JSON-RPC and by HTTP
    "TASK_NOT_FOUND": (-32001, 404), "TASK_NOT_CANCELABLE": (-32002, 400), "UNSUPPORTED_OPERATION": (-32004, 400),
    "CONTENT_TYPE_NOT_SUPPORTED": (-32005, 400), "VERSION_NOT_SUPPORTED": (-32009, 400),
    "INVALID_PARAMS": (-32602, 400),
}  # fmt: skip
ROUTES = {
    "SendMessage": ("POST", "/message:send"), "SendStreamingMessage": ("POST", "/message:stream"),
    "GetTask": ("GET", "/tasks/{id}"), "ListTasks": ("GET", "/tasks"), "CancelTask": ("POST", "/tasks/{id}:cancel"),
    "SubscribeToTask": ("POST", "/tasks/{id}:subscribe"), "GetExtendedAgentCard": ("GET", "/extendedAgentCard"),
    "CreateTaskPushNotificationConfig": ("POST", "/tasks/{taskId}/pushNotificationConfigs"),
    "GetTaskPushNotificationConfig": ("GET", "/tasks/{taskId}/pushNotificationConfigs/{id}"),
    "ListTaskPushNotificationConfigs": ("GET", "/tasks/{taskId}/pushNotificationConfigs"),
    "DeleteTaskPushNotificationConfig": ("DELETE", "/tasks/{taskId}/pushNotificationConfigs/{id}"),
}  # fmt: skip


class Caller:
    """Calls an agent by one binding, as its card names the address."""

    def __init__(self, http, card, binding):
        (self.url,) = (one["url"] for one in card["supportedInterfaces"] if one["protocolBinding"] == binding)
        self.http, self.rpc = http, binding == "JSONRPC"

    def request(self, method, params, headers=()):
        headers = {"a2a-version": "1.0", "content-type": "application/json", **dict(headers)}
        if self.rpc:
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            return self.http.build_request("POST", self.url, content=json.dumps(body), headers=headers)
        verb, path = ROUTES[method]
        rest = {name: value for name, value in params.items() if f"{{{name}}}" not in path}
        url = self.url + path.format(**params)
        if verb == "POST":
            content = json.dumps(rest) if rest or "message" in path else None
            return self.http.build_request(verb, url, content=content, headers=headers)
        return self.http.build_request(verb, url, params=rest, headers=headers)

    async def ok(self, method, **params):
        """The result of a call that must work."""
        answered = await self.http.send(self.request(method, params))
        body = answered.json()
        assert answered.status_code == 200, body
        kind = "application/json" if self.rpc else "application/a2a+json"
        assert answered.headers["content-type"].startswith(kind)
        if self.rpc:
            assert (body["jsonrpc"], body["id"], body.keys()) == ("2.0", 1, {"jsonrpc", "id", "result"})
            body = body["result"]
        return body

    async def refused(self, reason, method, headers=(), **params):
        """A call is refused for this reason."""
        answered = await self.http.send(self.request(method, params, headers))
        error = answered.json()["error"]
        rpc, http = CODES[reason]
        assert error["code"] == (rpc if self.rpc else http), error
        assert answered.status_code == (200 if self.rpc else http)
        assert isinstance(error["message"], str)
        assert answered.headers["content-type"].startswith("application/json")
        infos = error["data" if self.rpc else "details"]
        assert isinstance(infos, list)
        if reason != "INVALID_PARAMS":
            (info,) = [one for one in infos if one["@type"] == "type.googleapis.com/google.rpc.ErrorInfo"]
            assert (info["reason"], info["domain"]) == (reason, "a2a-protocol.org")

    async def events(self, method, *, at_first=None, **params):
        """The results of a stream to its end."""
        answered = await self.http.send(self.request(method, params), stream=True)
        found = []
        try:
            assert answered.headers["content-type"].startswith("text/event-stream")
            async for line in answered.aiter_lines():
                if line.startswith("data: "):
                    body = json.loads(line[6:])
                    found.append(body["result"] if self.rpc else body)
                    ParseDict(found[-1], pb.StreamResponse())
                    if at_first is not None and len(found) == 1:
                        at_first.set()
        finally:
            await answered.aclose()
        return found

    async def task(self, text, message="", **more):
        configuration = more.pop("configuration", {})
        asked = {"message": said(text, message, **more), "configuration": configuration}
        return (await self.ok("SendMessage", **asked))["task"]


def said(text, message="", **more):
    return {
        "role": "ROLE_USER",
        "parts": [{"text": text}],
        "messageId": message or uuid.uuid4().hex,
        **more,
    }


def keys_of(value):
    """All names in a value, apart from those in the data of users."""
    if isinstance(value, dict):
        return {*value, *(name for key, one in value.items() if key != "metadata" for name in keys_of(one))}
    return {name for one in value for name in keys_of(one)} if isinstance(value, list) else set()


@pytest.fixture(params=["JSONRPC", "HTTP+JSON"])
def stage(request, redis_url, tmp_path):
    """Opens a caller of a served agent."""

    @asynccontextmanager
    async def opened():
        async with (
            stand(redis_url, tmp_path, a2a=[STAGE]) as (_, api, _),
            httpx2.AsyncClient(timeout=60, trust_env=False) as http,
        ):
            card = (await http.get(f"{api.url}/.well-known/agent-card.json")).json()
            yield Caller(http, card, request.param)

    return opened


async def test_messages_and_tasks(stage):
    async with stage() as caller:
        task = await caller.task(DONE, "complete")
        assert task["status"]["state"] == "TASK_STATE_COMPLETED"
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", task["status"]["timestamp"])
        assert task["contextId"]
        assert not [name for name in keys_of(task) if "_" in name], "names are in camelCase"
        again = await caller.task("Another", "complete")
        assert (again["id"] != task["id"], again["contextId"] != task["contextId"]) == (True, True)
        mine = await caller.task(DONE, "complete", contextId="mine")
        assert mine["contextId"] == "mine"
        assert (await caller.ok("GetTask", id=task["id"]))["id"] == task["id"]
        await caller.refused("TASK_NOT_FOUND", "GetTask", id="none")
        await caller.refused("TASK_NOT_FOUND", "CancelTask", id="none")
        await caller.refused("TASK_NOT_FOUND", "SubscribeToTask", id="none")
        await caller.refused("TASK_NOT_FOUND", "SendMessage", message=said(DONE, taskId="none"))
        await caller.refused("TASK_NOT_CANCELABLE", "CancelTask", id=task["id"])
        await caller.refused("UNSUPPORTED_OPERATION", "SubscribeToTask", id=task["id"])
        await caller.refused("UNSUPPORTED_OPERATION", "SendMessage", message=said(DONE, taskId=task["id"]))
        await caller.refused(
            "INVALID_PARAMS", "SendMessage", message=said(DONE, taskId=task["id"], contextId="wrong")
        )
        await caller.refused("UNSUPPORTED_OPERATION", "GetExtendedAgentCard")


async def test_what_is_wrong_with_a_request(stage):
    async with stage() as caller:
        odd = {"parts": [{"raw": "dGNr", "mediaType": "application/x-unsupported"}]}
        await caller.refused("CONTENT_TYPE_NOT_SUPPORTED", "SendMessage", message=said("") | odd)
        plain = {"content-type": "text/plain"}
        await caller.refused("CONTENT_TYPE_NOT_SUPPORTED", "SendMessage", plain, message=said(DONE))
        for version in ("99.0", "0.3", ""):
            spoken = {"a2a-version": version}
            await caller.refused("VERSION_NOT_SUPPORTED", "SendMessage", spoken, message=said(DONE))
        await caller.refused("INVALID_PARAMS", "SendMessage")
        extended = {"a2a-extensions": "https://example.com/one,https://example.com/two"}
        more = {"message": said(DONE, unknownField="x"), "extraParam": 42}
        answered = await caller.http.send(caller.request("SendMessage", more, extended))
        assert (answered.status_code, "error" in answered.json()) == (200, False)


async def test_input_is_asked_for_and_given_and_history_is_short(stage):
    async with stage() as caller:
        for _ in range(2):
            asked = await caller.task(INPUT, "input-required")
            assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
            done = await caller.task("Any text", "complete", taskId=asked["id"])
            assert (done["id"], done["status"]["state"]) == (asked["id"], "TASK_STATE_COMPLETED")
        for length in (0, 1, 2):
            task = await caller.ok("GetTask", id=done["id"], historyLength=length)
            assert len(task.get("history", ())) <= length
        whole = await caller.ok("GetTask", id=done["id"], historyLength=10)
        assert whole["history"][0]["parts"] == [{"text": INPUT}]
        short = await caller.task(DONE, configuration={"historyLength": 0})
        assert "history" not in short
        asked = await caller.task(INPUT)
        cancelled = await caller.ok("CancelTask", id=asked["id"])
        assert (cancelled["id"], cancelled["status"]["state"]) == (asked["id"], "TASK_STATE_CANCELED")


async def test_a_blocking_message_waits_and_another_does_not(stage):
    async with stage() as caller:
        slow = "slow " * 20
        waited = await caller.task(f"{slow}", configuration={"returnImmediately": False})
        assert waited["status"]["state"] in ENDED
        at_once = await caller.task("gate:never", configuration={"returnImmediately": True})
        assert at_once["status"]["state"] not in ENDED
        await caller.ok("CancelTask", id=at_once["id"])


async def test_tasks_are_listed(stage):
    async with stage() as caller:
        for n in range(3):
            await caller.task(DONE, f"m{n}", contextId="listed")
        first = await caller.ok("ListTasks", contextId="listed", pageSize=2)
        assert (len(first["tasks"]), first["pageSize"], first["totalSize"]) == (2, 2, 3)
        rest = await caller.ok("ListTasks", contextId="listed", pageSize=2, pageToken=first["nextPageToken"])
        assert (len(rest["tasks"]), rest["nextPageToken"]) == (1, "")
        tasks = first["tasks"] + rest["tasks"]
        at = [one["status"]["timestamp"] for one in tasks]
        assert at == sorted(at, reverse=True)
        assert not any("artifacts" in one for one in tasks)
        with_them = await caller.ok(
            "ListTasks", contextId="listed", includeArtifacts="true" if not caller.rpc else True
        )
        assert all(one["artifacts"] for one in with_them["tasks"])
        none = await caller.ok("ListTasks", contextId="none")
        assert (none["tasks"], none["nextPageToken"], none["totalSize"]) == ([], "", 0)


async def test_streams(stage):
    async with stage() as caller:
        found = await caller.events("SendStreamingMessage", message=said(DONE))
        assert [*found[0]] == ["task"]
        assert found[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
        task = await caller.task(INPUT)
        begun = [asyncio.Event(), asyncio.Event()]
        both = [
            asyncio.create_task(caller.events("SubscribeToTask", id=task["id"], at_first=one))
            for one in begun
        ]
        leaving = asyncio.Event()
        third = asyncio.create_task(caller.events("SubscribeToTask", id=task["id"], at_first=leaving))
        for one in (*begun, leaving):
            await one.wait()
        third.cancel()
        await asyncio.gather(third, return_exceptions=True)
        await caller.task("Any text", taskId=task["id"])
        first, second = await asyncio.gather(*both)
        assert first == second
        assert len(first) >= 2
        assert [*first[0]] == ["task"]
        assert first[-1]["statusUpdate"]["status"]["state"] in ENDED


async def test_push_notifications(stage):
    async with stage() as caller:
        task = (await caller.task(DONE))["id"]
        config = {"id": "kit", "url": "https://example.com/hook"}
        made = await caller.ok("CreateTaskPushNotificationConfig", taskId=task, **config)
        assert made == {**config, "taskId": task}
        assert await caller.ok("GetTaskPushNotificationConfig", taskId=task, id="kit") == made
        await caller.refused("TASK_NOT_FOUND", "GetTaskPushNotificationConfig", taskId=task, id="none")
        assert (await caller.ok("ListTaskPushNotificationConfigs", taskId=task))["configs"] == [made]
        for _ in range(2):
            await caller.ok("DeleteTaskPushNotificationConfig", taskId=task, id="kit")
        await caller.refused("TASK_NOT_FOUND", "GetTaskPushNotificationConfig", taskId=task, id="kit")
        with Receiver() as receiver:
            login = {"scheme": "Bearer", "credentials": "t0ken"}
            wanted = {
                "id": "kit",
                "url": receiver.url.replace("127.0.0.1", "localhost"),
                "authentication": login,
            }
            asked = await caller.task(INPUT, configuration={"taskPushNotificationConfig": wanted})
            await caller.task("Any text", taskId=asked["id"])
            await wait_until_async(lambda: len(receiver.received) == 2, 15)
            for one in receiver.received:
                assert one.headers["authorization"] == "Bearer t0ken"
                ParseDict(json.loads(one.body), pb.StreamResponse())


async def test_the_card_names_what_is_served(stage):
    async with stage() as caller:
        url = caller.url.removesuffix("/a2a/stage") + "/.well-known/agent-card.json"
        answered = await caller.http.get(url)
        card = answered.json()
        assert {
            "name",
            "description",
            "version",
            "supportedInterfaces",
            "capabilities",
            "skills",
        } <= card.keys()
        assert {"defaultInputModes", "defaultOutputModes"} <= card.keys()
        assert [one["protocolBinding"] for one in card["supportedInterfaces"]] == ["JSONRPC", "HTTP+JSON"]
        assert {one["protocolVersion"] for one in card["supportedInterfaces"]} == {"1.0"}
        assert "max-age" in answered.headers["cache-control"]
        assert answered.headers["etag"]
        assert card["capabilities"] == {
            "streaming": True,
            "pushNotifications": True,
            "extendedAgentCard": False,
        }
