"""A Slack bot: a message is one turn, however often Slack sends it, and a thread is a session.

    pip install fastapi uvicorn httpx standardwebhooks
    OPENAI_API_KEY=… antiphon worker --app bot:workers
    antiphon webhooks add slack https://bot.example.com/finished --types turn_finished
    SLACK_SIGNING_SECRET=… SLACK_TOKEN=… ANTIPHON_WEBHOOK_SECRET=… uvicorn bot:app

In Slack, subscribe the bot to app_mention at https://bot.example.com/slack.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import time

import httpx
from fastapi import FastAPI, Request, Response
from standardwebhooks import Webhook, WebhookVerificationError

from antiphon import Agent, AsyncClient
from antiphon_worker import App

workers = App(agents=[Agent("openai", "gpt-5-mini", name="bot", system="You are a colleague. Be brief.")])
client = AsyncClient(os.environ.get("ANTIPHON_REDIS_URL", "redis://localhost:6379/0"))
slack = httpx.AsyncClient(
    base_url=os.environ.get("SLACK_URL", "https://slack.com/api/"),
    headers={"Authorization": f"Bearer {os.environ.get('SLACK_TOKEN', '')}"},
)
app = FastAPI()


def is_from_slack(request: Request, body: bytes) -> bool:
    sent, secret = request.headers.get("x-slack-request-timestamp", ""), os.environ["SLACK_SIGNING_SECRET"]
    if not sent.isdigit() or abs(time.time() - int(sent)) > 300:
        return False
    own = "v0=" + hmac.digest(secret.encode(), f"v0:{sent}:".encode() + body, hashlib.sha256).hex()
    return hmac.compare_digest(own, request.headers.get("x-slack-signature", ""))


@app.post("/slack")
async def receive(request: Request) -> Response:
    body = await request.body()
    if not is_from_slack(request, body):
        return Response(status_code=401)
    message = json.loads(body)
    if message["type"] == "url_verification":
        return Response(message["challenge"])
    event = message["event"]
    channel, thread = event["channel"], event.get("thread_ts", event["ts"])
    await client.submit(
        f"slack-{channel}-{thread}", event["text"], agent="bot", key=event["ts"], user=event["user"],
        metadata={"channel": channel, "thread_ts": thread},
    )  # fmt: skip
    return Response()  # Slack sends a message again that is not answered within three seconds


@app.post("/finished")
async def reply(request: Request) -> Response:
    try:
        webhook = Webhook(os.environ["ANTIPHON_WEBHOOK_SECRET"])
        event = webhook.verify(await request.body(), dict(request.headers))["data"]
    except WebhookVerificationError:
        return Response(status_code=401)
    turn = await (await client.turn(event["turn_id"])).info()
    if "thread_ts" in turn.metadata:
        answer = await slack.post(
            "chat.postMessage", json={"text": event["response"]["text"], **turn.metadata}
        )
        answer.raise_for_status()  # otherwise the worker posts the event again later
    return Response(status_code=204)
