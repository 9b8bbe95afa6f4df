"""What is sent to the server as a script: only the definitions that it uses, each where it is used."""

import re

import pytest

from antiphon.wire.joining import inlined_keys, joined
from antiphon.wire.scripts import load_script, script_names

ONCE = """
local LIMIT = 3

local function rare(x)
  return x + LIMIT
end

local function short(x) return rare(x) end

local function each(x) -- @often
  return short(x)
end

local function unused(x)
  return each(x)
end
"""


def test_a_definition_stands_in_the_one_function_that_uses_it():
    assert " ".join(joined(ONCE, "return short(1)").split()) == (
        "local function short(x) local function rare(x) local LIMIT = 3 return x + LIMIT end return rare(x) end "
        "return short(1)"
    )


def test_nothing_is_moved_into_a_function_that_is_called_often():
    text = joined(ONCE, "for x = 1, 9 do each(x) end")
    assert text.index("return rare(x)") < text.index("local function each(x)")


def test_a_definition_without_a_use_is_left_out():
    assert "unused" not in joined(ONCE, "return each(1)")
    assert joined(ONCE, "return 1").strip() == "return 1"


def test_what_functions_share_during_a_call_stays_before_them():
    text = joined(
        "local seen = {} -- @state\nlocal function see(x)\n  seen[x] = true\nend\n", "see(1)\nsee(2)"
    )
    assert text.startswith("local seen = {}\nlocal function see(x)\n")
    assert joined("local seen = {} -- @state\n", "return 1") == "return 1"


def test_a_text_and_the_field_of_a_table_do_not_use_a_definition():
    text = joined(
        "local function stop() return 1 end\nlocal function way(f) return f.stop == 'stop' or stop() end\n",
        "local f = {}\nf.stop = 'stop'\nreturn way(f)",
    )
    assert " ".join(text.split()) == (
        "local function way(f) local function stop() return 1 end return f.stop == 'stop' or stop() end "
        "local f = {} f.stop = 'stop' return way(f)"
    )


def test_a_script_has_the_constants_that_it_uses_only():
    assert "DEPLOYMENT" in load_script("claim").source
    assert "DEPLOYMENT" not in load_script("emit").source


def test_a_definition_that_two_functions_use_stays_before_both():
    text = joined(
        "local A = 1\nlocal function b() return A end\nlocal function c() return A end\n", "return b() + c()"
    )
    assert text.startswith("local A = 1\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("key_active()", "(PREFIX .. ':active')"),
        ("key_turn(turn)", "(PREFIX .. ':turn:' .. turn)"),
        ("key_turn(f[1] or '')", "(PREFIX .. ':turn:' .. (f[1] or ''))"),
        ("key_line(f.queue, share_of(a, b))", "(PREFIX .. ':line:' .. f.queue .. ':' .. (share_of(a, b)))"),
        ("key_rq_job(key_turn(x))", "('rq:job:' .. ((PREFIX .. ':turn:' .. x)))"),
        ("key_live(id)", "(PREFIX .. ':live:' .. DB .. ':' .. id)"),
    ],
)
def test_keys_are_written_in_place(text, expected):
    assert inlined_keys(text) == expected


def test_the_scripts_of_a_turn_create_few_functions_at_each_call():
    """A function costs a call 0.2 µs whether or not it is used: more than many a command."""
    most = {"submit": 33, "claim": 31, "finish": 19, "emit": 4, "renew": 3, "append_step": 4}
    found = {
        name: len(re.findall(r"^local function", load_script(name).source, re.MULTILINE)) for name in most
    }
    assert all(found[name] <= most[name] for name in most), found


def test_every_script_has_its_own_definitions():
    for name in script_names():
        source = load_script(name).source
        assert "key_" not in re.sub(r"'[^']*'", "", source), name
        assert "@often" not in source, name
