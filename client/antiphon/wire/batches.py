"""Model steps that are answered in batches: collected, sent together, and delivered to the turns that wait for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from antiphon.errors import CorruptRecord
from antiphon.input.ids import SessionId
from antiphon.model import Decision, encode
from antiphon.text import text_of
from antiphon.wire.cell import Cell
from antiphon.wire.errors import asked, unexpected
from antiphon.wire.lists.reading import fields_of
from antiphon.wire.records import ClaimedTurn, pairs, readable

MOST_BYTES = 64 * 1024 * 1024
"""The most bytes that the stored requests of one batch may have."""
KEPT_MS = 2 * 24 * 3_600_000
"""How long a step is kept after its deadline: longer than a service keeps a batch open."""
LABEL_BYTES = 16
UNSURE = "?"
ACCOUNTS = "batch accounts"
"""The place that digests of accounts belong to; they are keyed if content is encrypted."""
ANSWER, ERROR = "answer", "error"
"""The arguments of a decision about a step: the service's answer as JSON, or the reason why there is none."""

Delivered: TypeAlias = Literal["DELIVERED", "LATER", "GONE"]
What: TypeAlias = Literal["sending", "sent", "running", "later", "unread", "another", "again", "over"]


class Group(NamedTuple):
    """What the steps of one batch have in common. ``headers`` are their request headers, as sorted pairs.

    ``account`` is a digest of the service's address and key: only workers with both can send the batch and read its
    answers.
    """

    provider: str
    path: str
    model: str
    headers: tuple[tuple[str, str], ...] = ()
    account: str = ""

    def __str__(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def of(cls, text: str) -> Group:
        """Read what ``str`` returns. Raises ``msgspec.DecodeError`` and ``msgspec.ValidationError``."""
        return msgspec.json.decode(text, type=cls)

    @property
    def asked(self) -> tuple[object, ...]:
        """The group without its account: a step stays valid when only the key of its service has changed."""
        return self[:-1]


class TakenBatch(NamedTuple):
    """A batch that this worker holds under a fence. ``service_id`` is '' until it is known to be sent.

    The id begins with ``UNSURE`` if the batch was found at the service and may be a different one; ``others`` are the
    ids of batches found to be different. ``sending`` is the number of requests it had if it was sent, or 0 if it was
    not. ``round`` counts temporary refusals by the service, ``unread`` unreadable answers about the batch. ``created``
    is in ms since 1970. ``steps`` contains the steps in ``all_steps`` whose turns still need an answer.
    """

    name: str
    fence: int
    group: Group
    service_id: str
    sending: int
    round: int
    unread: int
    created: int
    others: frozenset[str]
    all_steps: frozenset[str]
    steps: list[str]

    @property
    def sent_as(self) -> str:
        """The id of the batch at the service."""
        return self.service_id.removeprefix(UNSURE)

    @property
    def unsure(self) -> bool:
        """Whether the batch with this id at the service may be a different one."""
        return self.service_id.startswith(UNSURE)

    @property
    def label(self) -> str:
        """The name that the service stores with the batch, to find it again."""
        return f"{self.name}.{self.round}"


async def collect(
    cell: Cell, turn: ClaimedTurn, step_id: str, wait_id: str, group: Group, body: bytes, *,
    seconds: float, size: int, lasts: float,
) -> bool:  # fmt: skip
    """Keep the request of a step until it is sent: after ``seconds``, or once its group has ``size`` steps.

    ``lasts`` is how many seconds the turn waits for the answer. Returns False if another fence is in force.
    Raises ``StoreError``.
    """
    sealed = cell.seal.seal(turn.session_id, "batched", body)
    return await cell.run_held(
        b"COLLECTED", "batches/collect", turn.session_id, turn.turn_id, turn.fence, step_id, wait_id, str(group),
        sealed, int(seconds * 1000), size, int(lasts * 1000) + KEPT_MS,
    )  # fmt: skip


async def take_batch(
    cell: Cell, label: str, accounts: Sequence[str], *, lease_ms: int, size: int
) -> tuple[TakenBatch | None, bool]:
    """Take a batch that is due, or create one named ``label``. Also returns whether any will be due.

    Only batches of these ``accounts`` are taken. An account is a provider's name, followed by a space and the group's
    account if it has one. Raises ``StoreError`` and ``CorruptRecord``.
    """
    answer = await cell.run("batches/take", label, lease_ms, size, MOST_BYTES, KEPT_MS, *accounts)
    match answer:
        case [b"NONE", more]:
            return None, bool(int(more))
        case [b"TAKEN", name, fence, flat, all_steps, steps]:
            with readable("A batch"):
                return _batch(text_of(name), int(fence), pairs(flat), all_steps, steps), True
        case _:
            raise unexpected("batches/take", answer)


def _batch(
    name: str, fence: int, fields: dict[str, bytes], all_steps: list[bytes], steps: list[bytes]
) -> TakenBatch:
    found = {field: text_of(value) for field, value in fields.items()}
    sending, again, unread, created = (
        int(found.get(one, 0)) for one in ("sending", "round", "unread", "created")
    )
    return TakenBatch(
        name, fence, Group.of(found["group"]), found.get("service_id", ""), sending, again, unread, created,
        frozenset(found.get("others", "").split()), frozenset(map(text_of, all_steps)), [*map(text_of, steps)],
    )  # fmt: skip


async def requests_of(cell: Cell, steps: Sequence[str]) -> list[tuple[str, bytes]]:
    """Read the requests of these steps, except those that are gone or cannot be decrypted.

    Raises ``StoreError``.
    """
    found = await fields_of(cell, map(cell.keys.batch_step, steps), "session", "body")
    known: list[tuple[str, bytes]] = []
    for step_id, (session, body) in zip(steps, found, strict=True):
        if session and body:
            try:
                known.append((step_id, cell.seal.open(text_of(session), "batched", body)))
            except CorruptRecord:
                continue
    return known


async def note(
    cell: Cell, batch: TakenBatch, what: What, said: str | int = "", *, seconds: float = 0.0
) -> bool:
    """Record what became of a batch, which is due again after ``seconds``. Returns False if another worker holds it.

    ``said`` is the number of requests for ``sending``, and the id of the service's batch for ``sent`` and ``another``.
    Raises ``StoreError``.
    """
    return await cell.run_held(
        b"OK", "batches/note", batch.name, batch.fence, what, said, int(seconds * 1000)
    )


async def deliver(cell: Cell, step_id: str, *, answer: str = "", error: str = "") -> Delivered:
    """Deliver to its turn the answer of a step, or the reason why there is none. Raises ``StoreError``."""
    ((session, wait),) = await fields_of(cell, [cell.keys.batch_step(step_id)], "session", "wait")
    if session is None or wait is None:
        return "GONE"
    said = {ANSWER: answer} if answer else {ERROR: error}
    decision = encode(Decision(text_of(wait), "approve", arguments=said))
    sealed = cell.seal.seal(SessionId(text_of(session)), "decision", decision)
    found = await cell.run("batches/deliver", step_id, sealed)
    match found:
        case [(b"DELIVERED" | b"LATER" | b"GONE") as word]:
            return text_of(word)  # type: ignore[return-value]
        case _:
            raise unexpected("batches/deliver", found)


async def leave(cell: Cell, step_id: str, group: Group) -> bool:
    """Do not send a step, or drop its answer. Returns whether it is already in a batch. Raises ``StoreError``."""
    match await cell.run("batches/leave", step_id, str(group)):
        case [b"SENT"]:
            return True
        case [b"UNSENT"]:
            return False
        case answer:
            raise unexpected("batches/leave", answer)


async def providers_with_batches(cell: Cell) -> set[str]:
    """Return the names of the providers with steps or batches in this cell. Raises ``StoreError``."""
    groups: list[bytes] = await asked(cell.redis.zrange(cell.keys.batch_groups, 0, -1))
    names: list[bytes] = await asked(cell.redis.zrange(cell.keys.batches, 0, -1))
    found = await fields_of(cell, [cell.keys.batch(text_of(name)) for name in names], "group")
    with readable("A batch"):
        return {Group.of(text_of(one)).provider for one in (*groups, *(group for (group,) in found if group))}


async def known_batches(cell: Cell) -> set[str]:
    """Return the ids of the batches of this cell at their services. Raises ``StoreError``."""
    names: list[bytes] = await asked(cell.redis.zrange(cell.keys.batches, 0, -1))
    found = await fields_of(cell, [cell.keys.batch(text_of(name)) for name in names], "service_id")
    return {text_of(one).removeprefix(UNSURE) for (one,) in found if one}
