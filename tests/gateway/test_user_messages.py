"""What end users read of an error: in streams for browsers, in histories and in refusals."""

import json

import pytest
from support.gateway import keys, programs, stand

from antiphon.errors import ProviderUnauthorized, WrongTenant
from antiphon.events import ChildEvent
from antiphon.wire.records import Published
from antiphon_gateway import Access
from antiphon_gateway.http.streams import json_of

pytestmark = pytest.mark.one_server

SENTENCE = ProviderUnauthorized().user_message
INTERNAL = "API key"


async def test_a_browser_reads_only_the_sentence_for_end_users(redis_url, tmp_path):
    known, secrets = keys(shop={"tenant": "acme"}, other={"tenant": "b"})
    access = Access(known, secret="a secret that every replica has, 32 bytes")
    async with (
        stand(redis_url, tmp_path, access=access) as (_, api, _),
        programs(api, secrets) as callers,
    ):
        shop = callers["shop"]
        turn = await shop.submit("s", "fail:unauthorized now")
        await shop.result(turn)
        failed = await shop.get(f"/turns/{turn}")
        assert INTERNAL in failed["error"]
        assert failed["user_error"] == SENTENCE
        page = await shop.get("/sessions/s/messages?failed=true")
        assert page["messages"][-1]["user_error"] == SENTENCE
        made = await shop.post("/sessions/s/tokens", {"seconds": 60}, 201)
        for caller, query in ((shop, ""), (api, f"?token={made['token']}")):
            streamed = await caller.http.get(f"/turns/{turn}/events{query}")
            (event,) = [json.loads(one[6:]) for one in streamed.text.split("\n") if '"turn_failed"' in one]
            assert event["user_message"] == SENTENCE
            assert (INTERNAL in event["message"]) == (caller is shop)
        refused = await callers["other"].post("/sessions/s/turns", {"input": "Hello", "agent": "a"}, 403)
        assert refused["user_message"] == WrongTenant().user_message


def test_a_browser_reads_only_that_sentence_of_the_failure_of_a_sub_agent():
    failed = {"type": "turn_failed", "code": "provider_unauthorized", "message": f"check the {INTERNAL}"}
    event = Published(1, "child_event", "t", 1, ChildEvent(seq=1, child_id="c", event=failed).to_json())
    assert json.loads(json_of(event, for_users=True))["event"]["message"] == SENTENCE
    assert json_of(event) == event.json
