"""docs/protocol.md has every event that is published, every key, field and word that a reader may meet.

It says plainly which names are only reserved.
"""

from __future__ import annotations

import re
from typing import get_args

import pytest
from support.source_tree import ROOT, packages

from antiphon import events
from antiphon.events import EventBase, Heartbeat, UnknownEvent, decode_event
from antiphon.model import ROLES, Message, Part, Response, Status, StopReason, Usage, decode_message
from antiphon.wire.keys import Keys, rq_key
from antiphon_worker.rq.foreign_jobs import OPTIONS

PAGE = (ROOT / "docs" / "protocol.md").read_text()
TABLE = "\n".join(re.findall(r"^\| `.*", PAGE, re.MULTILINE))
KINDS = [
    one
    for one in vars(events).values()
    if isinstance(one, type)
    and issubclass(one, EventBase)
    and one not in (EventBase, Heartbeat, UnknownEvent)
]
RESERVED = [one for one in KINDS if (one.__doc__ or "").startswith("Reserved:")]
PUBLISHED = [one for one in KINDS if one not in RESERVED]


def is_published(kind: type[EventBase]) -> bool:
    """True where our Python makes such an event, or a script writes one."""
    python = [path.read_text() for package in packages() for path in package.rglob("*.py")]
    scripts = [path.read_text() for package in packages() for path in package.rglob("*.lua")]
    made = re.compile(rf"^(?!\s*(?:case|class) ).*\b{kind.__name__}\(", re.MULTILINE)
    return any(made.search(text) for text in python) or any(f"'{kind().type}'" in text for text in scripts)


@pytest.mark.parametrize("kind", PUBLISHED, ids=lambda kind: kind().type)
def test_an_event_that_is_published_stands_in_the_table_with_its_fields(kind):
    assert is_published(kind), f'begin the docstring of {kind.__name__} with "Reserved:"'
    assert f"`{kind().type}`" in TABLE
    for name in set(kind.__struct_fields__) - set(EventBase.__struct_fields__) - {"reason"}:
        assert f"`{name}`" in TABLE, name


@pytest.mark.parametrize("kind", RESERVED, ids=lambda kind: kind().type)
def test_an_event_that_nothing_publishes_is_called_reserved(kind):
    assert not is_published(kind)
    assert f"`{kind().type}`" in re.search(r"([^.]*) (?:is|are) reserved\.", PAGE)[1]
    assert f"`{kind().type}`" not in TABLE


def names_of(kinds: object) -> set[str]:
    """The fields of these structs, as they stand in JSON."""
    return {name for kind in get_args(kinds) or (kinds,) for name in kind.__struct_fields__}


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(names_of(Message), id="messages"),
        pytest.param({part.__struct_config__.tag for part in get_args(Part)}, id="types of parts"),
        pytest.param(names_of(Part), id="parts"),
        pytest.param(names_of(Response), id="responses"),
        pytest.param(names_of(Usage), id="usage"),
        pytest.param({*ROLES, *get_args(StopReason)}, id="roles and reasons to stop"),
        pytest.param(set(get_args(Status)), id="states of a turn"),
        pytest.param(OPTIONS, id="options of a job"),
    ],
)
def test_the_page_names_all_that_a_reader_may_meet(names):
    assert [name for name in sorted(names) if f"`{name}`" not in PAGE] == []


def test_the_page_names_keys_as_they_are():
    keys = Keys()
    known = {getattr(keys, name)("<session>") for name in ("session", "inbox", "history", "events")}
    known |= {keys.live("<database>", "<session>"), keys.turn("<turn>"), keys.bell("<queue>")}  # type: ignore[arg-type]
    known |= {rq_key("rq_job", "<turn>"), rq_key("rq_queue", "<queue>"), rq_key("rq_failed", "<queue>")}
    known |= {rq_key("rq_queues")}
    table = PAGE.partition("## Names")[2].partition("## Cells")[0]
    assert set(re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)) == known
    named = set(re.findall(r"\b((?:ant|rq):[a-z]+:[<>a-z:]*<[a-z]+>)", PAGE))
    assert named <= known


def test_the_examples_of_the_page_can_be_read():
    lines = [
        line
        for block in re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ]
    read = [decode_event(line) if '"seq"' in line else decode_message(line) for line in lines]
    assert len(read) == 5
    assert not any(isinstance(one, UnknownEvent) for one in read)
