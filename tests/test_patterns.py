"""Every regular expression of the packages takes time in proportion to the text: one slow text stops no process."""

from __future__ import annotations

import re

import pytest
from support.growth import adversarial, superlinear
from support.offenders import for_each
from support.patterns import Pattern, patterns, patterns_of, pieces_of, signs_of
from support.source_tree import ROOT, Module

EVERY = sorted(patterns(), key=lambda pattern: (pattern.where, pattern.method))


@for_each(EVERY, lambda pattern: f"{pattern.where} {pattern.method}")
def test_an_expression_takes_time_in_proportion_to_the_text(pattern):
    assert slow_text(pattern) is None


def slow_text(pattern: Pattern) -> str | None:
    """The first signs of a text that the expression reads in more than linear time."""
    read = pattern.reader()
    texts = adversarial(pieces_of(pattern.text), signs_of(pattern.text))
    return next((text(30) for text in texts if superlinear(read, text)), None)


def test_all_expressions_stand_in_the_sources():
    """The ``pattern`` of a schema comes from a caller: an engine without backtracking reads it."""
    assert [pattern.where for pattern in EVERY if pattern.where.endswith("(given)")] == []


def test_nobody_reads_with_expressions_under_another_name():
    """``import re`` alone: what is imported from it, or renamed, would not be found."""
    wrong = [
        path.name
        for package in ("client", "worker")
        for path in sorted((ROOT / package).rglob("*.py"))
        if re.search(r"^\s*from re import|^\s*import (re as|regex|sre_)", path.read_text(), re.MULTILINE)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("expression", "method"),
    [
        (r"(?<=//)[^/\s@]*:[^/\s@]*(?=@)", "sub"),  # this one stopped workers
        (r"(a+)+$", "match"),
        (r"\s+$", "search"),
        (r"\w+\s*(?:\([^)]*\))?\s*:", "match"),
        (r"[0-9]*\.?[0-9]+", "fullmatch"),
        (r"```(.*?)\r?\n?[ \t]*```", "fullmatch"),
    ],
)
def test_the_measure_finds_what_is_slow(expression, method):
    assert slow_text(Pattern("here", expression, re.DOTALL, method)) is not None


@pytest.mark.parametrize(
    ("expression", "method"),
    [
        (r"[a-z]+", "fullmatch"),
        (r"\{([^\W\d]\w*)\}", "sub"),
        (r"^a[ \t]*([^\n]*)", "search"),
        (r"\S+", "findall"),
    ],
)
def test_the_measure_lets_pass_what_is_linear(expression, method):
    assert slow_text(Pattern("here", expression, re.MULTILINE, method)) is None


def test_expressions_are_found_with_their_flags_and_uses():
    source = """
import re
_A = re.compile(r"a+", re.I | re.S)
def function(text, given):
    _A.sub("", text); _A.fullmatch(text)
    return re.split(rf"x{given}y", text, flags=re.M), re.search(given, text), other.search("z", text)
"""
    found = patterns_of(Module("m", ROOT / "m.py", source))
    assert found == [
        Pattern("m:3", "a+", re.IGNORECASE | re.DOTALL, "sub"),
        Pattern("m:3", "a+", re.IGNORECASE | re.DOTALL, "fullmatch"),
        Pattern("m:6", "xwordy", re.MULTILINE, "split"),
        Pattern("m:6 (given)", "", 0, "search"),
    ]
