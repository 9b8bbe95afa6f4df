"""Every public name shows how it is used, in an example that runs."""

from __future__ import annotations

import pytest
from redis import Redis
from support.docstrings import documented, type_in
from support.offenders import for_each

# The modules that callers import from; of the last two what they meet.
FRONTS = {
    "antiphon": (), "antiphon.errors": (), "antiphon.hooks": (), "antiphon.mcp": (), "antiphon.memory": (),
    "antiphon.stores": (),
    "antiphon.testing": (),
    "antiphon_worker": (), "antiphon.ext.openai_agents": (), "antiphon.ext.turns": ("ModelAnswer", "TurnFunction"),
    "antiphon.ext.langchain": (), "antiphon.ext.llama_index": (), "antiphon.ext.pydantic_ai": (),
    "antiphon.redis.turn": ("AsyncTurn",), "antiphon.session.turn": ("Turn",), "antiphon.window": ("Summary", "Window"),
}  # fmt: skip
# Public for other modules of the library alone.
SEAMS = {
    "antiphon.Agent.open_session",
    "antiphon.redis.turn.AsyncTurn.ended",
}
EVERY = [one for front, names in FRONTS.items() for one in documented(front, names)]
PUBLIC = [one for one in EVERY if one.name not in SEAMS]
REDIS = "redis://localhost:6379/0"
POSTGRES = "postgresql://localhost/antiphon"


def example_expected(one) -> bool:
    """Errors are caught as their root shows, and a method that names its other form is used as that one."""
    name = one.name.rpartition(".")[2]
    if one.doc.startswith(
        tuple(f"``{other}``, " for other in (name.removesuffix("_async"), f"a{name}", f"async_{name}"))
    ):
        return False
    return not one.name.startswith("antiphon.errors.") or one.name.startswith("antiphon.errors.AgentError")


@for_each(PUBLIC, lambda one: one.name)
def test_a_public_name_says_what_happens_and_shows_it(one):
    assert one.doc, f"{one.name} has no docstring"
    if example_expected(one):
        assert one.examples, f"{one.name} shows no example: add lines that begin with >>> to its docstring"


@pytest.mark.parametrize("one", [one for one in PUBLIC if one.examples], ids=lambda one: one.name)
def test_the_example_gives_what_it_says(one, request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if any(POSTGRES in example.source for example in [*one.before, *one.examples]):
        type_in(one, {POSTGRES: request.getfixturevalue("postgres").new_database()})
        return
    if not any(REDIS in example.source for example in [*one.before, *one.examples]):
        type_in(one)
        return
    workers = request.getfixturevalue("workers")
    workers.use(None)
    workers.app.use_hooks(())
    with Redis.from_url(workers.url) as redis:
        redis.flushall()
    type_in(one, {REDIS: workers.url})


def test_the_seams_exist():
    assert {one.name for one in EVERY} >= SEAMS
