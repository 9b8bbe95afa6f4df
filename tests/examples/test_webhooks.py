"""The receiver of examples/webhooks, with a worker that tells it of a turn."""

import urllib.error
import urllib.request

import pytest
from support.eventually import wait_until
from support.network import free_port
from support.source_tree import ROOT

from antiphon import Agent
from antiphon.client import Client

RECEIVER = ROOT / "examples/webhooks/receiver.py"


def status(port, body=b"{}", **headers):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


@pytest.mark.main_path
@pytest.mark.one_server
@pytest.mark.lasting_keys("ant:webhook*", "ant:dispatched")
def test_the_receiver_prints_what_is_genuine_once_and_refuses_the_rest(redis_url, processes):
    port = free_port()
    with Client(redis_url) as client:
        secret = client.webhooks().set("here", f"http://127.0.0.1:{port}/", private=True)
        receiver = processes.python(
            RECEIVER.as_posix(), str(port), env={"WEBHOOK_SECRET": secret}, name="receiver"
        )
        wait_until(lambda: status(port) == 401, 30)
        assert status(port, **{"webhook-timestamp": "1", "webhook-signature": "v1,x"}) == 401
        processes.worker(redis_url)
        turn = client.submit("s", "Hello", agent=Agent("scripted", "any"))
        turn.result(60)
        wait_until(lambda: f"turn_finished s {turn.id}" in receiver.output, 30)
        wait_until(lambda: [one.delivered for one in client.webhooks()] == [1], 10)
        assert receiver.output.count(turn.id) == 1
