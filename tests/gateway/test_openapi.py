"""The OpenAPI document: it is valid, and what the gateway answers is what it says."""

import json

import pytest
from openapi_spec_validator import validate
from support.gateway import STAGE, open_gateway
from support.schemas import Schemas

from antiphon_gateway.app import operations
from antiphon_gateway.interface.openapi import openapi


def test_the_document_is_valid_and_has_every_operation():
    document = openapi(operations())
    validate(document)
    listed = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert listed == {(one.method, one.route) for one in operations()}
    for methods in document["paths"].values():
        for one in methods.values():
            assert one["summary"][0].isupper()
    assert {"Problem", "Event", "TurnInfo", "Message"} <= document["components"]["schemas"].keys()
    assert not any(name.endswith("Query") for name in document["components"]["schemas"])


@pytest.mark.one_server
async def test_answers_fit_the_document(redis_url, ensemble):
    async with ensemble.worker(), open_gateway(redis_url) as (api, _):
        document = await api.get("/openapi.json")
        schemas = Schemas(document)

        async def check(method, route, body=None, **names):
            answer = await api.http.request(
                method, route.format(**names), **({"json": body} if body is not None else {})
            )
            known = document["paths"][route][method.lower()]["responses"]
            content = known.get(str(answer.status_code), known["default"]).get("content")
            if content is None:
                assert not answer.content
                return None
            ((kind, how),) = content.items()
            assert answer.headers["content-type"] == kind
            schemas.check(answer.json(), how["schema"])
            return answer.json()

        await check("POST", "/sessions", {"session_id": "s", "metadata": {"a": 1}})
        turn = (
            await check("POST", "/sessions/{session}/turns", {"input": "x", "agent": STAGE}, session="s")
        )["turn_id"]
        await api.result(turn)
        failed = await api.submit("s", "fail:rejected")
        await api.result(failed)
        items = await api.get("/v1/conversations/s/items")
        named = {
            "session": "s", "turn": turn, "response": f"resp_{turn}", "item": items["first_id"],
            "model": "stage%2Fstage-1", "tenant": "a", "scope": "agent",
        }  # fmt: skip
        for one in operations():
            if one.method == "GET" and not one.streams and one.answer and one.name != "show_document":
                await check("GET", one.route, **named)
                if not one.route.startswith("/v1/"):  # whose errors are OpenAI's
                    await check("GET", one.route, session="nothing", turn="nothing", tenant="b", scope="user")
        found = await check("GET", "/turns/{turn}", turn=failed)
        assert found["code"] == "provider_rejected"
        await check("GET", "/turns/{turn}/result", turn=failed)
        await check("POST", "/turns/{turn}/requeue", turn=turn)
        await check("POST", "/turns/{turn}/cancel", {}, turn=turn)
        for event in await ensemble.events("s"):
            schemas.check(json.loads(event.to_json()), {"$ref": "#/components/schemas/Event"})
