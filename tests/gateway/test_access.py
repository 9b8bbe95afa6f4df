"""Who may what: keys, JSON web tokens, tokens for streams, and all that is tried to get around them (G15)."""

import asyncio
import base64
import hashlib
import hmac
import itertools
import json
import re
import time
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from redis.asyncio import Redis
from support.eventually import wait_until_async
from support.gateway import STAGE, keys, open_gateway, programs
from support.here import running_worker
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from antiphon import Agent
from antiphon.client import AsyncClient
from antiphon.errors import SettingsError
from antiphon.model import Message
from antiphon.session.saved import SavedSession
from antiphon.stores.base import MemoryStore
from antiphon.testing import script
from antiphon_gateway import A2AAgent, Access, Caller, Limits, Refused
from antiphon_gateway.access.caller import hash_of, read_keys
from antiphon_gateway.access.secret import opened
from antiphon_gateway.access.tokens import JwtSettings
from antiphon_gateway.app import operations
from antiphon_worker.app import App

pytestmark = pytest.mark.one_server

SECRET = "a secret that every replica has, 32 bytes"
OTHER = "another secret that has 32 bytes or more"
LATER = "/sessions/{session}/turns"


@asynccontextmanager
async def shared(redis_url, secret=SECRET, limits=None, cors=(), jwt_settings=None, archive=None, **given):
    """A gateway with these keys, and a program for each of them."""
    known, secrets = keys(**given)
    async with AsyncExitStack() as stack:
        access = Access(known, jwt_settings, secret)
        api, _ = await stack.enter_async_context(
            open_gateway(
                redis_url,
                access=access,
                limits=limits or Limits(rate=1000),
                cors=cors,
                archive=archive,
                a2a=[A2AAgent("stage")],
            )
        )
        yield api, await stack.enter_async_context(programs(api, secrets))


BODIES = (
    {"input": "x", "agent": STAGE, "key": "k"}, {"to": "m"}, {"messages": [{"role": "user", "content": "x"}]},
    {"metadata": {"x": 1}}, {"metadata": {"x": "1"}}, {"input": "x"}, {},
    {"items": [{"type": "message", "role": "user", "content": "x"}]},
    {"threadId": "s", "runId": "r", "messages": [{"id": "m", "role": "user", "content": "x"}]},
    {"text": "x"}, {"input": "x", "agent": STAGE, "every": 3600}, {"url": "https://example.com/hidden"},
    {"score": 1, "note": "x"}, {"budgets": []}, {"revision": "x"}, {"revision": "x", "tenant": "a"},
)  # fmt: skip
REFUSED_TO_ALL = {
    "delete_item", "set_a2a_push", "list_a2a_push", "show_a2a_push", "delete_a2a_push", "show_extended_agent_card"
}  # fmt: skip
# Their routes name nothing of a tenant.
OF_NO_OTHER = {"send_event", "call_agent", "send_a2a_message", "stream_a2a_message", "list_a2a_tasks"}
EVERYTHING = ["read", "write", "send", "admin"]


FILE = hashlib.sha256(b"hidden content").hexdigest()


def path_of(route, session, turn):
    """The path of an operation with a value for each of its places."""
    return route.format(
        session=session, turn=turn, message="m", call="c", response=f"resp_{turn}", tenant="a", agent="stage", item="m",
        model="nothing", schedule="daily", webhook="hook", fact="f", name="paid", file=FILE, scope="tenant",
        task=turn, config="c",
    )  # fmt: skip


def bearer(token):
    return {"authorization": f"Bearer {token}"}


@pytest.mark.lasting_keys("ant:schedule*", "ant:webhook*")
async def test_no_route_of_a_tenant_is_open_to_another_one(redis_url):
    given = {"a": {"tenant": "a", "rights": EVERYTHING}, "b": {"tenant": "b", "rights": EVERYTHING}}
    async with shared(redis_url, **given) as (_, programs):
        a, b = programs["a"], programs["b"]
        await a.call("PUT", "/webhooks/hook", json={"url": "https://example.com/hidden"})
        await a.call(
            "PUT", "/sessions/s/schedules/daily", json={"input": "hidden", "agent": STAGE, "every": 3600}
        )
        turn = await a.submit("s", "hidden words", key="k")
        await a.call("POST", "/sessions/s/files?name=hidden.txt", content=b"hidden content")
        tried = 0
        for one in operations():
            if one.right is None or "{" not in one.route or one.name in REFUSED_TO_ALL | OF_NO_OTHER:
                continue
            path = path_of(one.route, "s", turn)
            calls = [{"json": body} for body in BODIES] if one.body else [{}]
            spoken = {"a2a-version": "1.0"}
            answers = [await b.http.request(one.method, path, headers=spoken, **more) for more in calls]
            assert {answer.status_code for answer in answers} & {403, 404}, path
            for answer in answers:
                assert answer.status_code in (400, 403, 404), (one.name, answer.text)
                assert "hidden" not in answer.text, path
                tried += 1
        assert tried > 50
        assert (await b.get("/sessions"))["sessions"] == []
        assert (await b.get("/sessions?tenant=a", 403))["code"] == "wrong_tenant"
        assert (await b.post("/sessions", {"session_id": "n", "tenant": "a"}, 403))["code"] == "wrong_tenant"
        await b.post("/sessions", {"session_id": "own"})
        assert (await b.post("/sessions/own/fork", {"session_id": "s"}, 409))["code"] == "session_exists"
        unknown = await b.get("/turns/" + "0" * 32, 404)
        assert (await b.get(f"/turns/{turn}", 404))["code"] == unknown["code"]
        assert (await a.get(f"/turns/{turn}"))["status"] in ("queued", "waiting")
        await a.post(f"/turns/{turn}/cancel", {})


async def test_a_cursor_of_a_list_does_not_tell_of_the_sessions_of_others(redis_url, monkeypatch):
    monkeypatch.setattr("antiphon.session.listing.MOST_LOOKED_AT", 2)
    async with shared(redis_url, a={"tenant": "a"}, b={"tenant": "b"}) as (_, all_):
        for number in range(5):
            await all_["a"].post("/sessions", {"session_id": f"a-{number}"})
        await all_["b"].post("/sessions", {"session_id": "b-old"})
        for number in range(5):
            await all_["a"].post("/sessions", {"session_id": f"a-{number}", "metadata": {"n": number}})
        seen, cursor, pages = [], None, 0
        while pages < 20:
            page = await all_["b"].get("/sessions?limit=1" + (f"&cursor={cursor}" if cursor else ""))
            seen += [one["session_id"] for one in page["sessions"]]
            cursor, pages = page["cursor"], pages + 1
            if cursor is None:
                break
            assert not re.search(rb"a-\d", base64.urlsafe_b64decode(cursor))
        assert seen == ["b-old"]
        assert pages > 1
        await all_["b"].get("/sessions?cursor=1795357923409:a-1", 400)


def guesses(known):
    """The keys that a caller can compute: from nothing, and from its own API key."""
    for seed in ([], [b"", b""], [bytes.fromhex(hash_of(known)), b"", b""], [b""]):
        yield hashlib.sha256(b"antiphon cursor\0" + b"\0".join(seed)).digest()


@pytest.mark.parametrize("access", ["one key", "public keys", "a function"])
async def test_no_caller_can_compute_the_key_of_cursors(redis_url, monkeypatch, access):
    """Two gateways read each other's cursors all the same."""
    monkeypatch.setattr("antiphon.session.listing.MOST_LOOKED_AT", 1)
    given, secrets = keys(a={"tenant": "a", "sessions": ["own-*"]})

    async def caller_of(request):
        return Caller(name="a", tenant="a", sessions=("own-*",))

    service = _Identity()
    service.keys = {"r": rsa.generate_private_key(65537, 2048)}
    claims = {"tenant": "a", "sessions": ["own-*"], "exp": time.time() + 60}
    token = jwt.encode(claims, service.keys["r"], "RS256", headers={"kid": "r"})
    who, bearer = {
        "one key": (Access(given), secrets["a"]),
        "public keys": (Access(jwt=JwtSettings(jwks_url=service.url)), token),
        "a function": (caller_of, "x"),
    }[access]
    async with AsyncClient(redis_url) as client:
        for name in ("other-1", "other-2"):
            await client.session(name, tenant="a").set_metadata({"n": "1"})
    async with open_gateway(redis_url, access=who, key=bearer) as (api, _):
        cursor = (await api.get("/sessions?limit=1"))["cursor"]
        for key in guesses(secrets["a"]):
            with pytest.raises(Refused):
                opened(key, cursor)
        async with open_gateway(redis_url, access=who, key=bearer) as (other, _):
            await other.get(f"/sessions?limit=1&cursor={cursor}")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/sessions", {}),
        ("/v1/chat/completions", {"model": "any", "messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/responses", {"model": "any", "input": "Hi"}),
        ("/v1/conversations", {}),
        ("/a2a/any/message:send", {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Hi"}]}}),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)  # fmt: skip
async def test_a_key_for_certain_sessions_begins_no_other(redis_url, path, body):
    known, secrets = keys(a={"tenant": "a", "sessions": ["mine"]})
    app = App([Agent(script("Hello", repeat=True), "any", name="any")])
    async with (
        running_worker(redis_url, app),
        open_gateway(redis_url, access=Access(known), key=secrets["a"], a2a=[A2AAgent("any")]) as (api, _),
        AsyncClient(redis_url) as client,
    ):
        answer = await api.http.post(path, json=body, headers={"a2a-version": "1.0"})
        assert "This key has no access to this session id." in answer.text
        assert [one.session_id async for one in client.sessions()] == []


async def test_gateways_agree_on_a_secret_again_after_redis_has_lost_it(redis_url, monkeypatch):
    async with open_gateway(redis_url) as (one, first), open_gateway(redis_url) as (two, second):
        for api in (one, two):
            await api.get("/sessions")
        known = first._services.secret.cursor_key
        assert known == second._services.secret.cursor_key
        async with AsyncClient(redis_url) as client:
            await client.connections.cell_of_session("s").redis.flushall()
        await one.get("/sessions")
        assert first._services.secret.cursor_key == known, "it is not read for each request"
        monkeypatch.setattr("antiphon_gateway.access.secret.AGAIN_SECONDS", 0)
        for api in (one, two):
            await api.get("/sessions")
        assert first._services.secret.cursor_key == second._services.secret.cursor_key != known


async def test_the_id_of_a_session_with_a_key_cannot_be_predicted(redis_url):
    async with shared(redis_url, a={"tenant": "a"}, b={"tenant": "b"}) as (_, all_):
        made = {
            name: [
                (await all_[name].post("/sessions", {}, headers={"idempotency-key": "k"}))["session_id"]
                for _ in "12"
            ]
            for name in ("a", "b")
        }
        assert made["a"][0] == made["a"][1] != made["b"][0]
        seed = b"key a\0/sessions\0k"
        assert made["a"][0] != hashlib.sha256(seed).hexdigest()[:32]
    async with AsyncClient(redis_url) as client:
        await client.connections.cell_of_session("s").redis.flushall()
    async with shared(redis_url, OTHER, a={"tenant": "a"}) as (_, all_):
        again = await all_["a"].post("/sessions", {}, headers={"idempotency-key": "k"})
        assert again["session_id"] != made["a"][0], "another deployment has another secret"


async def test_a_key_may_use_the_sessions_and_rights_that_it_names(redis_url):
    given = {
        "reader": {"tenant": "t", "rights": ["read"]}, "writer": {"tenant": "t", "rights": ["write"]},
        "part": {"tenant": "t", "sessions": ["order-*", "one"]}, "all": {"tenant": "*", "rights": EVERYTHING},
    }  # fmt: skip
    async with shared(redis_url, **given) as (_, all_):
        await all_["writer"].post("/sessions", {"session_id": "s"})
        assert (await all_["writer"].get("/sessions/s", 403))["code"] == "forbidden"
        assert (await all_["reader"].post("/sessions", {"session_id": "s"}, 403))["code"] == "forbidden"
        assert (await all_["reader"].call("DELETE", "/sessions/s", 403))["code"] == "forbidden"
        part = all_["part"]
        for name, fits in (("order-7", True), ("one", True), ("one2", False), ("s", False), ("order", False)):
            await part.post("/sessions", {"session_id": name}, 201 if fits else 403)
        new = await part.post("/sessions", {})
        assert new["session_id"].startswith("order-")
        await part.post("/sessions/one/fork", {"session_id": "s2"}, 403)
        await part.get("/sessions/s", 403)
        seen = {one["session_id"] for one in (await part.get("/sessions"))["sessions"]}
        assert seen == {"order-7", "one", new["session_id"]}
        turn = await all_["writer"].submit("s", "x")
        await part.get(f"/turns/{turn}", 404)
        await all_["writer"].post(f"/turns/{turn}/cancel", {})
        await part.post("/sessions/one/turns", {"input": "x", "queue": "urgent"}, 403)
        await all_["all"].post("/sessions", {"session_id": "other", "tenant": "u"})
        assert (await all_["all"].get("/sessions/other"))["tenant"] == "u"
        assert [one["session_id"] for one in (await all_["all"].get("/sessions?tenant=u"))["sessions"]] == [
            "other"
        ]
        await all_["all"].call("DELETE", "/sessions/other", 204)


async def test_a_request_without_a_valid_key_is_refused(redis_url):
    async with shared(redis_url, a={"tenant": "a"}) as (api, all_):
        good = all_["a"].http.headers["authorization"]
        wrong = [
            {}, {"authorization": ""}, {"authorization": "Bearer"},
            {"authorization": good[:-1]}, {"authorization": good + "x"}, {"authorization": "Basic " + good[7:]},
            {"authorization": "Bearer " + hash_of(good[7:])}, {"x-api-key": good[7:]},
            [("authorization", good), ("authorization", good)], {"authorization": good + ", " + good},
        ]  # fmt: skip
        for headers in wrong:
            answer = await api.http.get("/sessions", headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), headers
            assert good[7:] not in answer.text
        assert (await api.http.get(f"/sessions?token={good[7:]}")).status_code == 401
        assert (await api.http.get("/sessions", headers={"authorization": good})).status_code == 200
        assert (await api.http.get("/health")).status_code == 200


def token(claims=None, secret=SECRET, algorithm="HS256", **more):
    return jwt.encode(
        {"tenant": "a", "exp": time.time() + 60, "sub": "u", **(claims or {}), **more}, secret, algorithm
    )


def unsigned(**claims):
    parts = [{"alg": "none", "typ": "JWT"}, {"tenant": "a", "exp": time.time() + 60, **claims}]
    return (
        ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
        + "."
    )


async def test_a_token_of_an_identity_service_says_who_it_is(redis_url):
    settings = JwtSettings(secret=OTHER, issuer="us", audience="antiphon")
    async with shared(redis_url, jwt_settings=settings, a={"tenant": "a"}) as (api, all_):

        async def status(given, method="GET", path="/sessions/u-1"):
            body = {"json": {"session_id": "u-1"}} if method == "POST" else {}
            answer = await api.http.request(method, path, headers=bearer(given), **body)
            return answer.status_code

        good = {"iss": "us", "aud": "antiphon", "sessions": ["u-*"], "rights": "read write"}
        assert await status(token(good, OTHER), "POST", "/sessions") == 201
        assert await status(token(good, OTHER)) == 200
        assert await status(token(good, OTHER), path="/sessions/v-1") == 403
        assert await status(token(good, OTHER, rights="read"), "POST", "/sessions") == 403
        assert await status(token({**good, "rights": None}, OTHER)) == 401
        assert await status(token({**good, "tenant": "b"}, OTHER)) == 403
        refused = [
            token(good, SECRET), token(good, OTHER, exp=time.time() - 60), unsigned(**good), unsigned(**good)[:-1],
            token(good, OTHER, iss="them"), token(good, OTHER, aud="others"), token({**good, "sessions": "u-1"}, OTHER),
            token(good, OTHER, rights="root"), token(good, OTHER, tenant=""), token(good, OTHER, tenant=7),
            jwt.encode({**good, "tenant": "a"}, OTHER), jwt.encode({**good, "exp": time.time() + 60}, OTHER),
            token({**good, "nbf": time.time() + 600}, OTHER), "a.b.c", "antk_" + token(good, OTHER),
        ]  # fmt: skip
        assert [await status(one) for one in refused] == [401] * len(refused)
        assert (await all_["a"].get("/sessions"))["sessions"][0]["session_id"] == "u-1"


class _Identity:
    """An identity service: its public keys, and how often they were read."""

    def __init__(self):
        self.reads, self.keys, self.wrong = 0, {}, None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.reads += 1
                found = [
                    json.loads(to_jwk(key.public_key())) | {"kid": kid, "use": "sig"}
                    for kid, key, to_jwk in outer.listed()
                ]
                self.send_response(500 if outer.wrong == b"" else 200)
                self.end_headers()
                self.wfile.write(json.dumps({"keys": found}).encode() if outer.wrong is None else outer.wrong)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/keys"
        Thread(target=self.server.serve_forever, daemon=True).start()

    def listed(self):
        kinds = jwt.algorithms.RSAAlgorithm, jwt.algorithms.ECAlgorithm
        known = self.keys.items()
        return [(kid, key, kinds[not isinstance(key, rsa.RSAPrivateKey)].to_jwk) for kid, key in known]


async def test_public_keys_are_read_from_their_service_and_no_oftener_than_needed(redis_url, monkeypatch):
    service = _Identity()
    service.keys = {"r": rsa.generate_private_key(65537, 2048), "e": ec.generate_private_key(ec.SECP256R1())}
    async with shared(redis_url, jwt_settings=JwtSettings(jwks_url=service.url)) as (api, _):

        async def status(given):
            return (await api.http.get("/sessions", headers=bearer(given))).status_code

        def signed(kid, algorithm, key=None, **more):
            claims = {"tenant": "a", "exp": time.time() + 60}
            return jwt.encode(claims, key or service.keys[kid], algorithm, headers={"kid": kid, **more})

        assert [await status(signed("r", "RS256")), await status(signed("e", "ES256"))] == [200, 200]
        strange = rsa.generate_private_key(65537, 2048)
        public = jwt.algorithms.RSAAlgorithm.to_jwk(service.keys["r"].public_key())
        for bad in (
            signed("r", "RS256", strange), signed("x", "RS256", strange), signed("r", "HS256", public.encode()[:64]),
            signed("e", "HS256", b"x" * 32), unsigned(), signed("r", "RS256", strange, jku="http://127.0.0.1:1/"),
        ):  # fmt: skip
            assert await status(bad) == 401
        assert service.reads == 1, "tokens of unknown keys do not make the gateway ask again and again"
        service.keys["new"] = rsa.generate_private_key(65537, 2048)
        monkeypatch.setattr("antiphon_gateway.access.tokens.JWKS_PAUSE", 0)
        assert await status(signed("new", "RS256")) == 200
        service.server.shutdown()
        service.server.server_close()
        assert await status(signed("r", "RS256")) == 200


@pytest.mark.parametrize("how", ["away", "no JSON", "no keys", "a list"])
async def test_while_public_keys_cannot_be_read_callers_are_told_to_come_back(redis_url, monkeypatch, how):
    service = _Identity()
    service.keys = {"r": rsa.generate_private_key(65537, 2048)}
    service.wrong = {"away": b"", "no JSON": b"<html>", "no keys": b"{}", "a list": b"[1]"}[how]
    token = jwt.encode(
        {"tenant": "a", "exp": time.time() + 60}, service.keys["r"], "RS256", headers={"kid": "r"}
    )
    async with shared(redis_url, jwt_settings=JwtSettings(jwks_url=service.url)) as (api, _):
        for _ in range(3):
            answer = await api.http.get("/sessions", headers=bearer(token))
            assert (answer.status_code, answer.json()["code"]) == (503, "keys_unavailable")
            assert int(answer.headers["retry-after"]) > 0
        service.wrong = None
        monkeypatch.setattr("antiphon_gateway.access.tokens.JWKS_PAUSE", 0)
        await api.get("/sessions", headers=bearer(token))
        service.wrong = b""
        other = jwt.encode(
            {"tenant": "a", "exp": time.time() + 60}, service.keys["r"], "RS256", headers={"kid": "x"}
        )
        await api.get("/sessions", 503, headers=bearer(other))
        await api.get("/sessions", headers=bearer(token))


DEEP = "[" * 9000 + "]" * 9000


@pytest.mark.parametrize(
    "claims",
    [
        '{"tenant":"a","exp":1' + "0" * 309 + "}", '{"tenant":"a","exp":1e999}', '{"tenant":"a","exp":-1e999}',
        '{"tenant":"a","exp":NaN}', '{"tenant":"a","exp":9e9,"nbf":1e999}', '{"tenant":"a","exp":9e9,"iat":1e999}',
        '{"tenant":"a","exp":true,"nbf":[]}', '{"tenant":"a","exp":"x"}', '{"tenant":"a","exp":null}', "[]", "1",
        '{"tenant":"a","exp":9e9,"x":' + DEEP + "}", '{"tenant":"a","exp":1' + "0" * 5000 + "}",
        '{"tenant":"a","exp":9e9,"sub":[]}', '{"tenant":"a","exp":9e9,"rights":7}', '{"tenant":{},"exp":9e9}',
    ],
    ids=range(16),
)  # fmt: skip
async def test_a_token_with_strange_claims_is_no_token(redis_url, claims):
    def signed(header):
        parts = b".".join(base64.urlsafe_b64encode(one.encode()).rstrip(b"=") for one in (header, claims))
        signature = hmac.digest(SECRET.encode(), parts, "sha256")
        return f"{parts.decode()}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"

    async with shared(redis_url, jwt_settings=JwtSettings(secret=SECRET)) as (api, _):
        for header in ('{"alg":"HS256"}', '{"alg":"HS256","x":' + DEEP + "}"):
            await api.get("/sessions", 401, headers={"authorization": f"Bearer {signed(header)}"})


async def test_a_token_for_a_stream_shows_one_session_and_nothing_else(redis_url):
    async with shared(redis_url, a={"tenant": "a"}, b={"tenant": "b"}) as (api, all_):
        a = all_["a"]
        turn, other = await a.submit("s*", "hello"), await a.submit("s*2", "secret")
        made = await a.post("/sessions/s*/tokens", {"seconds": 60, "types": ["turn_queued"]}, 201)
        query = f"token={made['token']}"

        async def status(path, method="GET", **more):
            async with api.http.stream(method, path, **more) as answer:
                return answer.status_code

        assert await status(f"/sessions/s*/events?{query}") == 200
        assert await status(f"/turns/{turn}/events?{query}") == 200
        assert await status(f"/sessions/s*2/events?{query}") == 403, "a name that ends with * is no pattern"
        assert await status(f"/turns/{other}/events?{query}") == 404
        for one in operations():
            if one.right is not None and not one.streams:
                path = path_of(one.route, "s*", turn)
                body = {"json": {"input": "x"}} if one.body else {}
                assert await status(f"{path}?{query}", one.method, **body) == 401, one.name
        assert await status(f"/sessions/s*/events?{query}x") == 401
        assert await status(f"/sessions/s*/events?{query}&{query}") in (400, 401)
        assert (
            await status("/sessions/s*/messages", headers={"authorization": f"Bearer {made['token']}"}) == 401
        )
        forged = jwt.encode(
            {"aud": "antiphon-stream", "sub": "x", "exp": time.time() + 60, "session": "s*", "tenant": "a"},
            OTHER,
        )
        assert await status(f"/sessions/s*/events?token={forged}") == 401
        await all_["b"].post("/sessions/s*/tokens", {}, 403)
        await a.post("/sessions/s*/tokens", {"seconds": 86401}, 400)
        async with api.http.stream("GET", f"/sessions/s*/events?after=0&{query}") as answer:
            lines = [line async for line in _until(answer.aiter_lines(), "turn_queued")]
        assert any("hello" in line for line in lines)
        for one in (turn, other):
            await a.post(f"/turns/{one}/cancel", {})
        path = f"/turns/{turn}/events?{query}&types=turn_cancelled,turn_queued"
        assert "turn_cancelled" not in (await api.http.get(path)).text


async def _until(lines, text):
    async for line in lines:
        yield line
        if text in line:
            return


async def test_a_stream_ends_with_the_token_that_opened_it(redis_url):
    async with shared(redis_url, a={"tenant": "a"}) as (api, all_):
        await all_["a"].post("/sessions", {"session_id": "s"})
        made = await all_["a"].post("/sessions/s/tokens", {"seconds": 2})
        async with api.http.stream("GET", f"/sessions/s/events?token={made['token']}") as answer:
            assert answer.status_code == 200
            text = "".join([part async for part in answer.aiter_text()])
        assert "event: end" not in text
        assert time.time() >= made["until"]
        assert (await api.http.get(f"/sessions/s/events?token={made['token']}")).status_code == 401


READERS = {
    "its session": "/sessions/user-123/events",
    "from its beginning": "/sessions/user-123/events?after=0",
    "several sessions": "/events?sessions=%5B%22user-123%22%5D",
}


@pytest.mark.parametrize("path", READERS.values(), ids=READERS)
@pytest.mark.parametrize("later", ["a", "b"])
async def test_a_stream_of_a_tenant_shows_nothing_of_a_later_session(redis_url, path, later):
    async with shared(redis_url, a={"tenant": "a"}, b={"tenant": "b"}) as (_, all_):
        await all_["b"].post("/sessions", {"session_id": "user-123", "ttl": 2})
        async with all_["b"].http.stream("GET", path) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            async with Redis.from_url(redis_url) as redis:  # its two seconds are over
                await redis.delete("ant:history:user-123", "ant:events:user-123", "ant:turns:user-123")
                await redis.pexpire("ant:session:user-123", 60_000)
            turn = await all_[later].submit("user-123", "secret")
            seen = [line async for line in lines]
        assert "event: end" in seen
        assert "secret" not in "".join(seen)
        await all_[later].post(f"/turns/{turn}/cancel", {})


@pytest.mark.parametrize(
    "path", [*READERS.values(), "/events", "/turns/{turn}/events", "/chat/user-123/stream"]
)
async def test_a_token_is_not_for_a_later_session(redis_url, path):
    async with shared(redis_url, a={"tenant": "a", "rights": EVERYTHING}) as (api, all_):
        a = all_["a"]
        await a.post("/sessions", {"session_id": "user-123"})
        made = await a.post("/sessions/user-123/tokens", {"seconds": 60}, 201)

        def stream(turn):
            query = f"{'&' if '?' in path else '?'}token={made['token']}"
            return api.http.stream("GET", path.format(turn=turn) + query)

        first = await a.submit("user-123", "hello")
        async with stream(first) as answer:
            assert answer.status_code == 200
            lines = answer.aiter_lines()
            await anext(lines)
            await a.post(f"/turns/{first}/cancel", {})
            await a.call("DELETE", "/sessions/user-123")
            turn = await a.submit("user-123", "secret")
            async with stream(turn) as refused:
                assert refused.status_code == 401
            await a.post(f"/turns/{turn}/cancel", {})
            assert turn not in "".join([line async for line in lines])


async def test_a_token_is_made_only_for_a_session_that_exists(redis_url):
    """Otherwise it would be for any later session with the id, of another tenant too."""
    given = {"a": {"tenant": "a", "rights": EVERYTHING}, "every": {"tenant": "*", "rights": EVERYTHING}}
    async with shared(redis_url, **given) as (_, all_):
        for caller in all_.values():
            problem = await caller.post("/sessions/user-123/tokens", {}, 404)
            assert problem["code"] == "session_not_found"
        await all_["a"].post("/sessions", {"session_id": "user-123"})
        await all_["every"].post("/sessions/user-123/tokens", {}, 201)
        await all_["a"].call("DELETE", "/sessions/user-123")
        for caller in all_.values():
            await caller.post("/sessions/user-123/tokens", {}, 404)


async def test_a_token_for_an_archived_session_is_for_this_one(redis_url):
    archive = MemoryStore()
    async with shared(redis_url, archive=archive, a={"tenant": "a"}, b={"tenant": "b"}) as (api, all_):
        archive.save("user-123", SavedSession("user-123", [Message.user("earlier")], tenant="a").to_dict())
        await all_["b"].post("/sessions/user-123/tokens", {}, 403)
        token = (await all_["a"].post("/sessions/user-123/tokens", {}, 201))["token"]
        async with api.http.stream("GET", f"/sessions/user-123/events?token={token}") as answer:
            assert answer.status_code == 200


async def test_limits_of_rate_and_streams_say_when_to_come_back(redis_url):
    given = {"slow": {"tenant": "a", "rate": 2}, "few": {"tenant": "a", "streams": 2}}
    async with shared(redis_url, **given) as (_, all_):
        answers = [await all_["slow"].http.get("/turns/t") for _ in range(8)]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert refused
        assert refused[0].json()["limit"] == "rate"
        assert int(refused[0].headers["retry-after"]) >= 1
        few = all_["few"]
        async with AsyncExitStack() as open_streams:
            for _ in range(2):
                answer = await open_streams.enter_async_context(few.http.stream("GET", "/sessions/s/events"))
                assert answer.status_code == 200
            third = await few.http.get("/sessions/s/events")
            assert (third.status_code, third.json()["limit"]) == (429, "streams")

        async def again():
            async with few.http.stream("GET", "/sessions/s/events") as answer:
                return answer.status_code == 200

        await wait_until_async(again, 10, "the streams that were closed count no more")


async def test_a_body_is_bounded_however_it_comes(redis_url):
    async with open_gateway(redis_url, limits=Limits(body_bytes=1000)) as (api, _):

        async def chunks():
            for _ in itertools.repeat(None, 100):
                yield b" " * 100

        headers = {"content-type": "application/json"}
        for body in (b'{"input":"' + b"x" * 2000, chunks()):
            answer = await api.http.post("/sessions/s/turns", content=body, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
        for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
            answer = await api.http.post("/sessions/s/turns", content=b"{}", headers={"content-type": kind})
            assert answer.status_code == 415, "a page of another origin could send these without asking"


async def test_without_keys_only_this_machine_is_answered(redis_url):
    async with open_gateway(redis_url) as (api, _):
        assert (await api.http.get("/sessions")).status_code == 200
        for headers in (
            {"origin": "http://localhost:3000"},
            {"host": "evil.example.com"}, {"host": "127.0.0.1.evil.example.com"}, {"x-forwarded-for": "127.0.0.1"},
            {"forwarded": "for=127.0.0.1"}, {"origin": "https://evil.example.com"}, {"origin": "null"},
            {"via": "1.1 x"},
        ):  # fmt: skip
            assert (await api.http.get("/sessions", headers=headers)).status_code == 403, headers


async def test_pages_of_listed_origins_may_call(redis_url):
    async with shared(redis_url, cors=["https://chat.example.com"], a={"tenant": "a"}) as (api, all_):
        asks = {
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        }
        good = await api.http.options("/sessions", headers={"origin": "https://chat.example.com", **asks})
        assert good.headers["access-control-allow-origin"] == "https://chat.example.com"
        bad = await api.http.options("/sessions", headers={"origin": "https://evil.example.com", **asks})
        assert "access-control-allow-origin" not in bad.headers
        answer = await all_["a"].http.get("/sessions", headers={"origin": "https://chat.example.com"})
        assert answer.headers["access-control-allow-origin"] == "https://chat.example.com"


async def test_an_application_may_say_itself_who_calls(redis_url):
    async def caller_of(request):
        if request.cookies.get("user") is None:
            raise Refused(401, "unauthorized", "Log in.")
        return Caller(name=request.cookies["user"], tenant=request.cookies["user"])

    async with open_gateway(redis_url, access=caller_of) as (api, _):
        assert (await api.http.get("/sessions")).status_code == 401
        await api.post("/sessions", {"session_id": "s"}, headers={"cookie": "user=alice"})
        assert (await api.http.get("/sessions/s", headers={"cookie": "user=alice"})).json()[
            "tenant"
        ] == "alice"
        assert (await api.http.get("/sessions/s", headers={"cookie": "user=bob"})).status_code == 403


FOREIGN = [
    {"origin": "https://evil.example.com"}, {"origin": "null"}, {"origin": "http://127.0.0.1"}, {"origin": ""},
    {"origin": "http://127.0.0.1:1"}, {"origin": "http://localhost:{port}"}, {"origin": "http://[::1]:{port}"},
    {"origin": "http://127.0.0.1:{port}.evil.example.com"}, {"origin": "http://user@evil.example.com:{port}"},
    {"origin": "http://127.0.0.1:x"}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "anything"},
]  # fmt: skip


def at_port(api, headers):
    port = api.url.rpartition(":")[2]
    return {name: value.replace("{port}", port) for name, value in headers.items()}


async def logged_in(request):
    """An application's own check, which knows its users by their cookies."""
    if request.cookies.get("user") is None:
        raise Refused(401, "unauthorized", "Log in.")
    return Caller(name=request.cookies["user"], tenant=None)


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
@pytest.mark.parametrize("access", [None, logged_in], ids=["without keys", "with cookies"])
async def test_a_page_of_another_origin_changes_nothing(redis_url, access, headers):
    """Its browser sends the cookies of its user, and a POST without a body needs no permission of ours."""
    async with open_gateway(redis_url, access=access) as (api, _):
        own = {"cookie": "user=alice"}
        await api.post("/sessions", {"session_id": "s"}, headers=own)
        foreign = {**own, **at_port(api, headers)}
        await api.post("/sessions/s/close", status=403, headers=foreign)
        with pytest.raises(InvalidStatus) as refused:
            async with connect(
                api.url.replace("http", "ws") + "/v1/responses", proxy=None, additional_headers=foreign
            ):
                pass
        assert refused.value.response.status_code == 403
        assert not (await api.get("/sessions/s", headers=own)).get("closed")


@pytest.mark.parametrize(
    "headers",
    [
        {}, {"origin": "http://127.0.0.1:{port}"}, {"origin": "https://127.0.0.1:{port}"},
        {"origin": "https://chat.example.com"}, {"origin": "https://CHAT.example.com"},
        {"origin": "https://chat.example.com", "sec-fetch-site": "cross-site"}, {"sec-fetch-site": "none"},
        {"origin": "https://behind-a-proxy.example.com", "sec-fetch-site": "same-origin"},
    ],
    ids=str,
)  # fmt: skip
async def test_pages_of_this_origin_and_of_listed_ones_and_programs_may_call(redis_url, headers):
    async with open_gateway(redis_url, access=logged_in, cors=["https://chat.example.com"]) as (api, _):
        headers = {"cookie": "user=alice", **at_port(api, headers)}
        await api.post("/sessions", {"session_id": "s"}, headers=headers)
        await api.post("/sessions/s/close", headers=headers)
        async with connect(
            api.url.replace("http", "ws") + "/v1/responses", proxy=None, additional_headers=headers
        ):
            pass


@pytest.mark.parametrize(
    "trailer",
    ["Authorization: Bearer {key}", "Cookie: user=alice", "Idempotency-Key: k", "Host: x", "Origin: null"],
)
async def test_trailers_never_become_headers(redis_url, trailer):
    given, secrets = keys(a={"tenant": "a"})
    seen = []

    async def caller_of(request):
        seen.append(request.headers.keys())
        return await Access(given).caller(request, stream=False)

    async with open_gateway(redis_url, access=caller_of) as (api, _):
        port = int(api.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = (
            f"POST /sessions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
            "Transfer-Encoding: chunked\r\nTrailer: Authorization\r\nConnection: close\r\n\r\n2\r\n{}\r\n0\r\n"
        )
        writer.write(f"{head}{trailer.replace('{key}', secrets['a'])}\r\n\r\n".encode())  # in one packet
        assert (await reader.read()).startswith(b"HTTP/1.1 401")
        writer.close()
        assert seen == [["host", "content-type", "transfer-encoding", "trailer", "connection"]]


async def test_white_space_around_the_value_of_a_header_is_no_part_of_it(redis_url):
    seen = []

    async def caller_of(request):
        seen.append(request.headers["x-name"])
        return await Access().caller(request, stream=False)

    async with open_gateway(redis_url, access=caller_of) as (api, _):
        port = int(api.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"GET /sessions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nX-Name: \t a b \t \r\n"
        writer.write(f"{head}Connection: close\r\n\r\n".encode())
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()
    assert seen == ["a b"]


@pytest.mark.parametrize(
    "more", [b"0\r\nx-more: ", b"0\r\n", b"5;"], ids=["a trailer", "trailers", "an extension"]
)
async def test_trailers_and_extensions_without_an_end_close_the_connection(redis_url, more):
    async with open_gateway(redis_url) as (api, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(api.url.rpartition(":")[2]))
        writer.write(
            b"POST /sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n" + more
        )
        line = b"x: y\r\n" if more == b"0\r\n" else b"y"
        with suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(line * 100)
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()


def test_a_file_of_keys_that_is_wrong_is_refused(tmp_path):
    digest = hash_of("x")
    for text in (
        "", "keys", f'[keys.a]\nhash = "{digest}"', '[keys.a]\nhash = "x"\ntenant = "a"',
        f'[keys.a]\nhash = "{digest}"\ntenant = ""', f'[keys.a]\nhash = "{digest}"\ntenant = "a"\nrights = ["all"]',
        f'[keys.a]\nhash = "{digest}"\ntenant = "a"\nright = ["read"]',
        f'[keys.a]\nhash = "{digest}"\ntenant = "a"\n[keys.b]\nhash = "{digest}"\ntenant = "b"',
    ):  # fmt: skip
        path = tmp_path / "keys.toml"
        path.write_text(text)
        with pytest.raises(SettingsError):
            read_keys([path])
    with pytest.raises(SettingsError, match="cannot be read"):
        read_keys([tmp_path / "none.toml"])


async def test_facts_are_those_of_the_callers_tenant(redis_url):
    given = {
        "a": {"tenant": "a", "rights": EVERYTHING},
        "b": {"tenant": "b", "rights": EVERYTHING},
        "part": {"tenant": "a", "rights": EVERYTHING, "sessions": ["mine-*"]},
        "reader": {"tenant": "a", "rights": ["read"]},
    }
    async with shared(redis_url, **given) as (_, programs):
        a, b, part = programs["a"], programs["b"], programs["part"]
        fact = await a.post("/facts", {"text": "Likes tea."}, 201)
        assert (await a.call("PATCH", f"/facts/{fact['id']}", json={"text": "Likes coffee."}))[
            "by"
        ] == "person"
        assert [one["text"] for one in (await programs["reader"].get("/facts"))["facts"]] == ["Likes coffee."]
        assert (await b.get("/facts"))["facts"] == []
        await b.call("DELETE", f"/facts/{fact['id']}", 404)
        await b.get("/facts?tenant=a", 403)
        await part.get("/facts", 403)
        await part.get("/facts?agent=host", 403)
        await part.get("/facts?session=other", 403)
        assert (await part.get("/facts?session=mine-1"))["facts"] == []
        await programs["reader"].post("/facts", {"text": "x"}, 403)
        await a.post("/facts", {"text": " "}, 400)
        await a.call("DELETE", f"/facts/{fact['id']}", 204)
        assert (await a.get("/facts"))["facts"] == []
