"""What releases share on one Redis is frozen in wire.json: nothing of it changes, and what is new is added."""

import copy
import re

import pytest
from support.frozen_wire import FROZEN, NEW, additions, complaints, frozen, text_of, wire
from support.lua_fields import arguments, fields_of_scripts
from support.source_tree import ROOT

from antiphon.wire.keys import KINDS


def test_what_earlier_releases_rely_on_is_as_it_was():
    assert complaints(frozen(), wire()) == []


def test_what_is_new_is_frozen():
    found = additions(frozen(), wire())
    assert not found, f"{', '.join(found)}. {NEW}"


def test_the_file_is_as_the_command_writes_it():
    assert FROZEN.read_text() == text_of(frozen())


CHANGES = {
    "a field of an event is renamed": ("events", "text_delta text", None),
    "a default is another one": ("events", "text_delta text", {"default": "?", "type": "string"}),
    "a closed list of words has one more": ("events", "step_finished stop_reason", {"enum": ["end", "new"]}),
    "a key stands elsewhere": ("keys", "inbox", "list ant:in:{}"),
    "a key has another type": ("keys", "inbox", "sorted set ant:inbox:{}"),
    "a field of a turn is gone": ("fields of hashes and streams", "turn status", None),
    "a job says something else": ("job", "data", '["antiphon_worker.run",null,["<turn>"],{}]'),
    "a command has one field less": ("commands", "cancel", ["command", "turn_id"]),
    "a code is gone": ("words", "code provider_rejected", None),
    "a version falls": ("versions", "request", 1),
}


@pytest.mark.parametrize(("section", "name", "form"), CHANGES.values(), ids=CHANGES)
def test_a_change_that_harms_an_older_process_says_what_to_do(section, name, form):
    now = copy.deepcopy(wire())
    if form is None:
        del now[section][name]
    else:
        now[section][name] = form
    (sentence,) = complaints(frozen(), now)
    assert sentence.startswith(f"{section}: {name!r} was ")
    assert "put what is new under a new name" in sentence


def test_what_is_new_is_no_harm_and_is_named():
    now = copy.deepcopy(wire())
    now["events"]["text_delta tone"] = {"default": "", "type": "string"}
    now["versions"]["request"] += 1
    assert complaints(frozen(), now) == []
    assert [sentence.partition(" is ")[0] for sentence in additions(frozen(), now)] == [
        "events: 'text_delta tone'", "versions: 'request'",
    ]  # fmt: skip


def test_the_rule_stands_where_the_sentences_say():
    assert f"## {re.search('“(.+)”', NEW)[1]}" in (ROOT / "CONTRIBUTING.md").read_text()


def test_fields_are_found_however_a_script_names_their_key():
    found = fields_of_scripts()
    assert {"seq", "fence", "holder", "agent", "usage"} <= found[
        "session"
    ]  # written, kept from the first turn on
    assert {"status", "response", "error_code", "first_seq", "offered_at"} <= found[
        "turn"
    ]  # listed, of its end
    assert {"data", "origin", "ant_prefix"} <= found["rq_job"]  # through a local name
    assert found["events"] == {"e"}
    ours = {kind.name for kind in KINDS}
    assert {kind for kind in found if not kind.startswith("rq_")} <= ours


def test_arguments_are_told_apart_within_brackets_and_quotes():
    assert arguments("'a,b', f(x, {1, 2}), g[\"),\"])") == ["'a,b'", "f(x, {1, 2})", 'g["),"]']
