"""The benchmark against an older commit: its sources, and the ratios of alternating rounds."""

from __future__ import annotations

import subprocess

import pytest
from bench.against import older, table


def test_the_ratio_is_that_of_each_round():
    rate, cost, gone = ("turns", "one", "turns"), ("turns", "one", "CPU"), ("turns", "one", "gone")
    rounds = [
        (
            {rate: (100.0, "a second"), cost: (50.0, "µs"), gone: (1.0, "")},
            {rate: (150.0, "a second"), cost: (25.0, "µs")},
        ),
        ({rate: (10.0, "a second"), cost: (80.0, "µs")}, {rate: (20.0, "a second"), cost: (20.0, "µs")}),
    ]
    assert table("v1", rounds).splitlines()[2:] == [
        "| turns: one: turns, a second | 55 | 85 | 1.75 (1.50 to 2.00) |",
        "| turns: one: CPU, µs | 65 | 22.5 | 0.38 (0.25 to 0.50) |",
    ]


def test_a_figure_that_only_one_of_them_has_is_left_out():
    name = ("turns", "one", "turns")
    assert table("v1", [({}, {name: (1.0, "")})]).splitlines()[2:] == []


def test_an_unknown_commit_is_an_error_that_says_what_to_do():
    with pytest.raises(ValueError, match=r"found 'no-such-tag': run git fetch --tags"):
        older("no-such-tag")


def test_the_older_interpreter_imports_the_older_sources():
    tree = older("HEAD")
    code = "import antiphon, antiphon_worker, redis; print(antiphon.__file__, antiphon_worker.__file__)"
    done = subprocess.run([tree.python, "-c", code], cwd="/", capture_output=True, text=True, check=True)
    assert [path.startswith(str(tree.root)) for path in done.stdout.split()] == [True, True]
