"""Push notifications of A2A: each new state of a task reaches the URLs that its caller named, and no one else's."""

import asyncio
import json
from contextlib import AsyncExitStack

import pytest
from a2a.client import A2AClientError
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import InternalError, InvalidParamsError, TaskNotFoundError
from google.protobuf.json_format import ParseDict
from support.a2a_clients import BINDINGS, a2a_client, said, sent
from support.eventually import wait_until_async
from support.gateway import keys, open_gateway, stand
from support.receiver import Receiver

from antiphon_gateway import A2AAgent, Access
from antiphon_gateway.a2a import methods

pytestmark = [pytest.mark.one_server, pytest.mark.lasting_keys("ant:pushes")]

INSIDE, STAGE = A2AAgent("stage", private_push=True), A2AAgent("stage")
PUBLIC = "https://agents.example.com/hook"
LOGIN = pb.AuthenticationInfo(scheme="Bearer", credentials="s3cret")
SPOKEN = {"a2a-version": "1.0", "content-type": "application/json"}


@pytest.fixture
def receiver():
    with Receiver() as one:
        yield one


def pushed(receiver):
    """What has come, by the types of the protocol."""
    return [ParseDict(json.loads(one.body), pb.StreamResponse()) for one in receiver.received]


def states(receiver):
    return [pb.TaskState.Name(one.status_update.status.state) for one in pushed(receiver)]


def config(url=PUBLIC, task="", **more):
    return pb.TaskPushNotificationConfig(url=url, task_id=task, **more)


def with_push(url, **more):
    return pb.SendMessageConfiguration(task_push_notification_config=config(url, **more))


@pytest.mark.main_path
@pytest.mark.parametrize("binding", BINDINGS)
async def test_each_new_state_is_sent_once(redis_url, tmp_path, binding, receiver):
    async with (
        stand(redis_url, tmp_path, a2a=[INSIDE]) as (_, api, _),
        a2a_client(f"{api.url}/a2a/stage", binding=binding) as client,
    ):
        wanted = with_push(receiver.url, token="t0ken", authentication=LOGIN)
        task = await sent(client, said("tool:guarded", configuration=wanted))
        await wait_until_async(lambda: states(receiver) == ["TASK_STATE_INPUT_REQUIRED"], 20)
        await sent(client, said("Approve.", task_id=task.id))
        await wait_until_async(lambda: len(receiver.received) == 2, 20)
        first, last = pushed(receiver)
        assert states(receiver) == ["TASK_STATE_INPUT_REQUIRED", "TASK_STATE_COMPLETED"]
        for one in (first.status_update, last.status_update):
            assert (one.task_id, one.context_id) == (task.id, task.context_id)
        assert first.status_update.status.timestamp.seconds <= last.status_update.status.timestamp.seconds
        headers = receiver.received[0].headers
        assert headers["content-type"] == "application/a2a+json"
        assert headers["authorization"] == "Bearer s3cret"
        assert headers["x-a2a-notification-token"] == headers["a2a-notification-token"] == "t0ken"
        assert "webhook-signature" not in headers


@pytest.mark.parametrize("binding", BINDINGS)
async def test_configs_are_created_read_listed_and_deleted(redis_url, tmp_path, binding):
    async with (
        stand(redis_url, tmp_path, a2a=[STAGE]) as (_, api, _),
        a2a_client(f"{api.url}/a2a/stage", binding=binding) as client,
    ):
        card = (await api.http.get("/a2a/stage/.well-known/agent-card.json")).json()
        assert card["capabilities"]["pushNotifications"] is True
        task = await sent(client, said("Hello"))
        made = await client.create_task_push_notification_config(
            config(task=task.id, id="mine", token="t0ken", authentication=LOGIN)
        )
        assert made == config(task=task.id, id="mine", token="t0ken", authentication=LOGIN)
        unnamed = await client.create_task_push_notification_config(config(task=task.id))
        assert unnamed.id == task.id
        read = pb.GetTaskPushNotificationConfigRequest(task_id=task.id, id="mine")
        assert await client.get_task_push_notification_config(read) == made
        every = pb.ListTaskPushNotificationConfigsRequest(task_id=task.id)
        assert [*(await client.list_task_push_notification_configs(every)).configs] == [made, unnamed]
        gone = pb.DeleteTaskPushNotificationConfigRequest(task_id=task.id, id="mine")
        for _ in range(2):
            await client.delete_task_push_notification_config(gone)
        with pytest.raises(TaskNotFoundError):
            await client.get_task_push_notification_config(read)
        assert [*(await client.list_task_push_notification_configs(every)).configs] == [unnamed]
        with pytest.raises(TaskNotFoundError):
            await client.create_task_push_notification_config(config(task="none"))


async def test_a_config_for_a_task_that_has_ended_is_told_of_its_end(redis_url, tmp_path, receiver):
    async with (
        stand(redis_url, tmp_path, a2a=[INSIDE]) as (_, api, _),
        a2a_client(f"{api.url}/a2a/stage") as client,
    ):
        task = await sent(client, said("Hello"))
        await client.create_task_push_notification_config(config(receiver.url, task.id))
        await wait_until_async(lambda: states(receiver) == ["TASK_STATE_COMPLETED"], 20)


async def test_a_config_is_the_caller_s_own(redis_url, tmp_path):
    known, secrets = keys(
        acme={"tenant": "acme"}, other={"tenant": "other"}, colleague={"tenant": "acme"},
        reader={"tenant": "acme", "rights": ["read"]},
    )  # fmt: skip
    async with (
        stand(redis_url, tmp_path, a2a=[STAGE], access=Access(known)) as (_, api, _),
        AsyncExitStack() as stack,
    ):
        clients = {
            name: await stack.enter_async_context(a2a_client(f"{api.url}/a2a/stage", key=key))
            for name, key in secrets.items()
        }
        task = await sent(clients["acme"], said("Hello"))
        own = await clients["acme"].create_task_push_notification_config(config(task=task.id, id="c"))
        read = pb.GetTaskPushNotificationConfigRequest(task_id=task.id, id="c")
        every = pb.ListTaskPushNotificationConfigsRequest(task_id=task.id)
        gone = pb.DeleteTaskPushNotificationConfigRequest(task_id=task.id, id="c")
        other = clients["other"]
        for refused in (
            other.get_task_push_notification_config(read),
            other.list_task_push_notification_configs(every),
            other.delete_task_push_notification_config(gone),
            other.create_task_push_notification_config(config(task=task.id)),
        ):
            with pytest.raises(TaskNotFoundError):
                await refused
        colleague = clients["colleague"]
        with pytest.raises(TaskNotFoundError):
            await colleague.get_task_push_notification_config(read)
        assert not (await colleague.list_task_push_notification_configs(every)).configs
        await colleague.delete_task_push_notification_config(gone)
        for refused in (
            clients["reader"].create_task_push_notification_config(config(task=task.id)),
            clients["reader"].delete_task_push_notification_config(gone),
        ):
            with pytest.raises(A2AClientError, match="403"):
                await refused
        assert await clients["acme"].get_task_push_notification_config(read) == own


UNSAFE = [
    "http://agents.example.com/hook", "https://127.0.0.1/hook", "https://169.254.169.254/latest/meta-data",
    "https://[::1]/hook", "https://localhost/hook", "https://10.0.0.1/", "https://me:pass@example.com/", "file:///etc/passwd",
    "javascript:alert(1)", "https:///hook", "", "https://example.com/\r\nX-Header: 1",
]  # fmt: skip
WRONG = {
    "a token of two lines": {"token": "a\nb"},
    "credentials of two lines": {"authentication": {"scheme": "Bearer", "credentials": "a\r\nHost: b"}},
    "a scheme with a letter that is not ASCII": {"authentication": {"scheme": "Bärer", "credentials": "a"}},
    "a long token": {"token": "t" * 5000},
    "a long id": {"id": "i" * 201},
}


async def test_unsafe_urls_and_wrong_headers_are_refused_before_anything_is_written(redis_url):
    async with (
        open_gateway(redis_url, a2a=[STAGE]) as (api, _), a2a_client(f"{api.url}/a2a/stage") as client,
    ):  # fmt: skip
        for url in UNSAFE:
            with pytest.raises(InvalidParamsError):
                await sent(client, said("Hello", configuration=with_push(url)))
        for fields in WRONG.values():
            wanted = ParseDict({"url": PUBLIC, **fields}, pb.TaskPushNotificationConfig())
            request = said(
                "Hello", configuration=pb.SendMessageConfiguration(task_push_notification_config=wanted)
            )
            with pytest.raises(InvalidParamsError, match=r"is sent in a header|at most 200"):
                await sent(client, request)
        assert not (await api.get("/sessions"))["sessions"]


async def test_a_redirect_is_not_followed(redis_url, tmp_path, receiver):
    with Receiver() as inside:
        receiver.answers, receiver.headers = [302, 307], {"location": inside.url}
        async with (
            stand(redis_url, tmp_path, a2a=[INSIDE]) as (_, api, _),
            a2a_client(f"{api.url}/a2a/stage") as client,
        ):
            await sent(client, said("Hello", configuration=with_push(receiver.url)))
            await wait_until_async(lambda: len(receiver.received) >= 3, 60)
        assert not inside.received
        assert len({one.body for one in receiver.received}) == 1


async def test_a_receiver_that_hangs_holds_up_no_other(redis_url, tmp_path, receiver):
    with Receiver() as hanging:
        hanging.hold()
        async with (
            stand(redis_url, tmp_path, a2a=[INSIDE]) as (_, api, _),
            a2a_client(f"{api.url}/a2a/stage") as client,
        ):
            task = await sent(client, said("Hello"))
            for n in range(10):
                await client.create_task_push_notification_config(config(hanging.url, task.id, id=f"{n}"))
            await wait_until_async(lambda: len(hanging.received) == 10, 20)
            more = await sent(client, said("Hello again", configuration=with_push(hanging.url)))
            await client.create_task_push_notification_config(config(receiver.url, more.id, id="well"))
            await wait_until_async(lambda: states(receiver) == ["TASK_STATE_COMPLETED"], 20)
            assert len(hanging.received) == 10, "so many at once, and no more"
            hanging.release()
            await wait_until_async(lambda: len(hanging.received) >= 11, 60)


async def test_many_callers_with_configs_are_each_told_once(redis_url, tmp_path, receiver):
    async with (
        stand(redis_url, tmp_path, a2a=[INSIDE]) as (_, api, _),
        a2a_client(f"{api.url}/a2a/stage") as client,
    ):
        tasks = await asyncio.gather(
            *(sent(client, said("Hello", configuration=with_push(f"{receiver.url}/{n}"))) for n in range(60))
        )
        await wait_until_async(lambda: len(receiver.received) >= 60, 60)
        assert {one.status_update.task_id for one in pushed(receiver)} == {task.id for task in tasks}
        assert len(receiver.received) == 60


async def test_a_message_that_is_sent_again_sets_its_config(redis_url, tmp_path, receiver, monkeypatch):
    """The gateway has died between the message and its config."""
    original = methods.set_config

    async def dies(*_):
        monkeypatch.setattr(methods, "set_config", original)
        raise RuntimeError("killed")

    monkeypatch.setattr(methods, "set_config", dies)
    async with (
        stand(redis_url, tmp_path, a2a=[INSIDE]) as (_, api, _),
        a2a_client(f"{api.url}/a2a/stage") as client,
    ):
        message = said("Hello", context_id="c", configuration=with_push(receiver.url))
        with pytest.raises(InternalError):
            await sent(client, message)
        await sent(client, message)
        await sent(client, message)
        await wait_until_async(lambda: receiver.received, 20)
        await client.list_tasks(pb.ListTasksRequest())
        assert states(receiver) == ["TASK_STATE_COMPLETED"]
