"""docs/protocol.md has every event that is published, and says plainly which names are only reserved."""

from __future__ import annotations

import re

import pytest
from support.source_tree import ROOT

from antiphon import events
from antiphon.events import EventBase, UnknownEvent

PAGE = (ROOT / "docs" / "protocol.md").read_text()
TABLE = "\n".join(re.findall(r"^\| `.*", PAGE, re.MULTILINE))
KINDS = [
    one
    for one in vars(events).values()
    if isinstance(one, type) and issubclass(one, EventBase) and one not in (EventBase, UnknownEvent)
]
RESERVED = [one for one in KINDS if (one.__doc__ or "").startswith("Reserved:")]
PUBLISHED = [one for one in KINDS if one not in RESERVED]


def is_published(kind: type[EventBase]) -> bool:
    """True where our Python makes such an event, or a script writes one."""
    python = [path.read_text() for folder in ("client", "worker") for path in (ROOT / folder).rglob("*.py")]
    scripts = [path.read_text() for path in (ROOT / "client").rglob("*.lua")]
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
    assert f"`{kind().type}`" in re.search(r"Reserved are (.*?)\.", PAGE, re.DOTALL)[1]
    assert f"`{kind().type}`" not in TABLE
