"""A chat with Django, in one file: ``uvicorn django_app:app``. In a project, the views go into one of its apps."""

# pyright: basic
from __future__ import annotations

import os
import secrets
from pathlib import Path

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import path

from antiphon import AsyncClient, sse
from antiphon.errors import WrongTenant

client = AsyncClient(os.environ.get("ANTIPHON_REDIS_URL", "redis://localhost:6379/0"))


def user_of(request: HttpRequest) -> str:
    """Return who asks. Put your login here: this cookie is not checked by anyone."""
    return request.COOKIES.get("user") or "guest"


async def page(_request: HttpRequest) -> HttpResponse:
    return HttpResponse(Path(__file__).with_name("page.html").read_bytes())


async def send(request: HttpRequest, chat: str) -> HttpResponse:
    text, key = str(request.POST["text"]), str(request.POST["key"])
    try:
        turn = await client.submit(chat, text, agent="assistant", key=key, tenant=user_of(request))
    except WrongTenant as error:
        return JsonResponse({"message": error.user_message}, status=403)
    return JsonResponse({"turn": turn.id})


async def events(request: HttpRequest, chat: str) -> HttpResponse | StreamingHttpResponse:
    after = request.META.get("HTTP_LAST_EVENT_ID") or str(request.GET.get("after", "0"))
    found = client.subscribe(chat, after, tenant=user_of(request))
    try:
        await found.start()  # raises before the response begins
    except WrongTenant as error:
        return JsonResponse({"message": error.user_message}, status=403)
    return StreamingHttpResponse(sse.stream(found, to_users=True), headers=sse.HEADERS)


urlpatterns = [
    path("", page),
    path("chats/<str:chat>/messages", send),
    path("chats/<str:chat>/events", events),
]
# A project has these in its settings, with its middleware: also that against forged requests.
settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY=secrets.token_hex())
app = get_asgi_application()
