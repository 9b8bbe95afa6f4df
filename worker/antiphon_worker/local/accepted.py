"""A turn as it is accepted: how it begins, and what tells it from others with the same key."""

from __future__ import annotations

import copy

from antiphon.input.ids import new_turn_id
from antiphon.input.values import now_ms
from antiphon.model import encode
from antiphon.session.runtime import SessionRef
from antiphon.session.turn_info import TurnInfo
from antiphon.session.work import Work


def turn_of(session: SessionRef, work: Work) -> TurnInfo:
    """Return a new turn of this work, which was accepted now."""
    agent, created = work.agent, now_ms()
    return TurnInfo(
        new_turn_id(session.id), session.id, "queued", [message.copied() for message in work.messages],
        agent=agent if agent is None or isinstance(agent, str) else agent.name,
        metadata=copy.deepcopy(work.metadata), key=work.key, created=created,
        due=None if work.delay is None else created + int(work.delay * 1000),
    )  # fmt: skip


def request_of(work: Work) -> bytes:
    """Return the contents of a request, to detect a key that is used for another request."""
    agent = work.agent if work.agent is None or isinstance(work.agent, str) else work.agent.described()
    return encode((work.messages, agent, work.params, work.output, work.metadata, work.timeout, work.revises))
