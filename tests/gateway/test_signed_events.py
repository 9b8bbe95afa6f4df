"""Events that services have signed: GitHub, Slack, Stripe, and services that follow Standard Webhooks."""

import base64
import hashlib
import hmac
import json
import time

import pytest
from support.gateway import open_gateway
from support.here import running_worker
from support.waiting import waiting_turn

from antiphon import Agent, AsyncClient, tool
from antiphon.errors import SettingsError
from antiphon.testing import script, tool_call
from antiphon.tools import Context
from antiphon_gateway import Access
from antiphon_gateway.access.signers import Signer, Signers, read_signers
from antiphon_gateway.problems import Refused
from antiphon_worker.app import App

pytestmark = [pytest.mark.one_server, pytest.mark.lasting_keys("ant:*")]

KEY = b"a secret of thirty-two bytes or more"
PUSH = json.dumps({"ref": "refs/heads/main", "after": "0a1b"}).encode()


def mac(content, key=KEY):
    return hmac.new(key, content, hashlib.sha256)


def github(body, **more):
    return {"X-Hub-Signature-256": f"sha256={mac(body).hexdigest()}", "X-GitHub-Delivery": "d1", **more}


def stripe(body, at=None):
    at = int(time.time()) if at is None else at
    return {"Stripe-Signature": f"t={at},v1={mac(f'{at}.'.encode() + body).hexdigest()},v0=old"}


def standard(body, at=None, name="msg_1"):
    at = int(time.time()) if at is None else at
    signature = base64.b64encode(mac(f"{name}.{at}.".encode() + body).digest()).decode()
    return {"webhook-id": name, "webhook-timestamp": str(at), "webhook-signature": f"v1,AAAA v1,{signature}"}


def slack(body, at=None):
    at = int(time.time()) if at is None else at
    signature = mac(f"v0:{at}:".encode() + body).hexdigest()
    return {"X-Slack-Request-Timestamp": str(at), "X-Slack-Signature": f"v0={signature}"}


SIGN = {"github": github, "stripe": stripe, "standard": standard, "slack": slack}


@pytest.fixture
def signers(monkeypatch):
    monkeypatch.setenv("PLAIN", KEY.decode())
    monkeypatch.setenv("ENCODED", "whsec_" + base64.b64encode(KEY).decode())
    return Signers(
        {
            scheme: Signer(
                scheme=scheme,
                secret="ENCODED" if scheme == "standard" else "PLAIN",
                events=["push", "hook:*"],
                tenant="acme",
            )
            for scheme in SIGN
        }
    )


@pytest.mark.parametrize("scheme", SIGN)
async def test_a_signed_webhook_reaches_a_waiting_turn_once(redis_url, signers, scheme):
    async with (
        AsyncClient(redis_url) as client,
        open_gateway(redis_url, access=Access(signers=signers)) as (api, _),
    ):
        for session, tenant in (("mine", "acme"), ("theirs", "other")):
            await waiting_turn(client, session, tenant, "push")
        path = f"/events/push/from/{scheme}"
        for _ in range(2):
            answer = await api.call("POST", path, 200, content=PUSH, headers=SIGN[scheme](PUSH))
            assert answer == {"turns": 1}, "a repetition is the same event"
        cell = next(iter(client.connections.cells))
        (turn,) = (await cell.claim("w", "next", lease_ms=1000, limit=8, queues=["antiphon"])).turns
        assert turn.session_id == "mine"
        assert json.loads(turn.received[0].json)["data"]["after"] == "0a1b"
        changed = PUSH.replace(b"0a1b", b"0a1c")
        await api.call("POST", path, 401, content=changed, headers=SIGN[scheme](PUSH))
        await api.call("POST", path, 401, content=PUSH)
        await api.call("POST", "/events/other/from/" + scheme, 403, content=PUSH, headers=SIGN[scheme](PUSH))
        await api.call("POST", "/events/push/from/nobody", 401, content=PUSH, headers=SIGN[scheme](PUSH))
        await api.call("POST", path, 400, content=b"no json", headers=SIGN[scheme](b"no json"))
        big = b'"' + b"x" * 70_000 + b'"'
        await api.call("POST", path, 413, content=big, headers=SIGN[scheme](big))


@pytest.mark.parametrize("scheme", ["stripe", "standard", "slack"])
@pytest.mark.parametrize(("seconds", "passes"), [(-301, False), (-299, True), (299, True), (301, False)])
def test_an_old_signature_is_refused(signers, scheme, seconds, passes):
    now = 1_800_000_000
    signers._clock = lambda: now
    headers = {name.lower(): value for name, value in SIGN[scheme](PUSH, now + seconds).items()}
    if passes:
        assert signers.verified(scheme, "push", headers, PUSH).tenant == "acme"
    else:
        with pytest.raises(Refused, match="more than 300 s old"):
            signers.verified(scheme, "push", headers, PUSH)


def test_what_names_an_event_is_signed(signers):
    def key(scheme, body, headers):
        return signers.verified(scheme, "push", {k.lower(): v for k, v in headers.items()}, body).key

    other = github(PUSH, **{"X-GitHub-Delivery": "d2"})
    assert key("github", PUSH, github(PUSH)) == key("github", PUSH, other), "the delivery's id is not signed"
    assert key("standard", PUSH, standard(PUSH, name="msg_7")) == "msg_7"
    paid = b'{"id": "evt_1"}'
    assert key("stripe", paid, stripe(paid)) == "evt_1"
    said = b'{"id": "x", "event_id": "Ev1"}'
    assert key("slack", said, slack(said)) == "Ev1"


def test_the_example_of_slacks_documentation_is_verified(monkeypatch):
    """https://docs.slack.dev/authentication/verifying-requests-from-slack"""
    monkeypatch.setenv("SLACK", "8f742231b10e8888abcd99yyyzzz85a5")
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&"
        b"channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url="
        b"https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&"
        b"trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    headers = {
        "x-slack-signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
        "x-slack-request-timestamp": "1531420618",
    }
    signers = Signers({"slack": Signer(scheme="slack", secret="SLACK", events=["*"])}, lambda: 1531420620)
    assert signers.verified("slack", "said", headers, body).signer == "slack"


async def test_slack_may_send_forms_and_check_the_address(redis_url, signers):
    form = {"content-type": "application/x-www-form-urlencoded"}
    async with (
        AsyncClient(redis_url) as client,
        open_gateway(redis_url, access=Access(signers=signers)) as (api, _),
    ):

        async def post(body, headers, status=200, event="push"):
            asked = {"content": body, "headers": slack(body) | headers}
            return await api.call("POST", f"/events/{event}/from/slack", status, **asked)

        asked = b'{"type": "url_verification", "challenge": "3eZb"}'
        assert await post(asked, {}) == {"turns": 0, "challenge": "3eZb"}
        found = []
        for number, body in enumerate([b"payload=%7B%22ok%22%3A+true%7D", b"text=yes+please&user=U1&more="]):
            await waiting_turn(client, f"s{number}", "acme", f"hook:{number}")
            assert await post(body, form, event=f"hook:{number}") == {"turns": 1}
            cell = next(iter(client.connections.cells))
            (turn,) = (
                await cell.claim("w", f"next{number}", lease_ms=1000, limit=8, queues=["antiphon"])
            ).turns
            found.append(json.loads(turn.received[0].json)["data"])
        assert found == [{"ok": True}, {"text": "yes please", "user": "U1", "more": ""}]
        await post(b"payload=none", form, 400)
        await post(b"\xff", form, 400)


@pytest.mark.parametrize("wrong", ["sha1=00", "sha256=", "sha256=é", "=", "sha256"])
def test_a_damaged_signature_is_refused(signers, wrong):
    with pytest.raises(Refused):
        signers.verified("github", "push", {"x-hub-signature-256": wrong}, PUSH)


def test_a_file_of_signers_is_read_and_checked(tmp_path, monkeypatch):
    path = tmp_path / "signers.toml"
    text = '[signers.a]\nscheme = "github"\nsecret = "A_SECRET"\nevents = ["push"]\n'
    path.write_text(text)
    with pytest.raises(SettingsError, match="needs its secret in the environment variable A_SECRET"):
        read_signers(path)
    monkeypatch.setenv("A_SECRET", "x")
    read_signers(path)
    for wrong in (
        text.replace("github", "gitlab"),
        text + "rate = 1\n",
        "signers",
        text.replace('["push"]', "[]"),
    ):
        path.write_text(wrong)
        with pytest.raises(SettingsError, match="cannot be read"):
            read_signers(path)
    with pytest.raises(SettingsError, match="cannot be read"):
        read_signers(tmp_path / "none.toml")


async def test_a_webhook_of_github_ends_the_turn_of_a_worker_that_waits_for_it(redis_url, signers):
    """From the signed request to the answer: the tool receives what GitHub has sent, once for three deliveries."""

    @tool
    async def deploy(context: Context) -> str:
        """Deploy what is pushed next."""
        push = await context.wait_for_event("push", timeout=3600)
        return f"deployed {push['after']}"

    agent = Agent(script(tool_call("deploy"), "Done."), "any", name="a", tools=[deploy])
    async with (
        AsyncClient(redis_url) as client,
        running_worker(redis_url, App(agents=[agent])),
        open_gateway(redis_url, access=Access(signers=signers)) as (api, _),
    ):
        turn = await client.submit("s", "Deploy.", agent="a", tenant="acme")
        async for event in turn.stream():
            if event.type == "turn_sleeping":
                for _ in range(3):
                    headers = github(PUSH)
                    answer = await api.call(
                        "POST", "/events/push/from/github", 200, content=PUSH, headers=headers
                    )
                    assert answer == {"turns": 1}
        response = await turn.result(20)
    assert [call.result for call in response.tool_calls] == ["deployed 0a1b"]
    assert response.text == "Done."
