"""The list of accepted deletions is about scripts as they are, and the way statements are deleted is right."""

from __future__ import annotations

import builtins
import os
import signal
from pathlib import Path

import pytest
from mutation import python
from mutation.__main__ import ELSEWHERE, FILES, modules_for
from mutation.accepted import read_accepted
from mutation.forks import in_a_fork
from mutation.hook import SCRIPTS
from mutation.statements import mutants_of

PYTHON = '''
def f(x):
    """Kept."""
    if x:
        g(x)
    return 1

class A:
    async def h(self):
        self.a = [1,
                  2]
'''

SOURCE = """-- A comment.
local a = redis.call('GET', 'if x then',
  'y')
if a == 1
  or a == 2 then
  one()
elseif a then return 3
else
  two()
end
for i = 1, 3 do three(i) end
local function f(x)
  return x
end
return {a,
  f(1)}
"""


def all_mutants():
    return [m for name in FILES for m in mutants_of(name, (SCRIPTS / f"{name}.lua").read_text())]


def test_each_statement_is_deleted_whole():
    deleted = [(mutant.line, mutant.statement) for mutant in mutants_of("x", SOURCE)]
    assert deleted == [
        (2, "local a = redis.call('GET', 'if x then', 'y')"),
        (4, "if a == 1 or a == 2 then one() elseif a then return 3 else two() end"),
        (6, "one()"),
        (7, "elseif a then return 3"),
        (8, "else two()"),
        (9, "two()"),
        (11, "for i = 1, 3 do three(i) end"),
        (13, "return x"),
        (15, "return {a, f(1)}"),
    ]


def test_statements_of_python_are_removed_and_conditions_reversed():
    mutants = list(python.mutants_of(Path("m.py"), PYTHON))
    changed = {(one.function, one.line): one.changed.decode() for one in mutants}
    assert {place: "pass" in source for place, source in changed.items()} == {
        ("f", 4): False, ("f", 5): True, ("f", 6): True, ("A.h", 10): True,
    }  # fmt: skip
    assert "if (not (x)):" in changed["f", 4]
    for source in changed.values():
        compile(source, "m.py", "exec")


def changeable(x: int) -> int:
    return x + 1


def only_mutant():
    path = Path(__file__)
    (mutant,) = [one for one in python.mutants_of(path, path.read_text()) if one.function == "changeable"]
    return mutant


@pytest.fixture
def living():
    before = changeable.__code__
    yield python.Living({Path(__file__)})
    changeable.__code__ = before


def test_a_living_function_is_given_the_changed_code(living):
    mutant = only_mutant()
    assert living.change(mutant.path, mutant.function, mutant.changed)
    assert changeable(1) is None


def test_a_function_without_code_of_its_own_cannot_be_changed(living):
    assert not living.change(Path(__file__), "missing", only_mutant().changed)


def test_a_probed_statement_adds_itself_to_what_was_run(living, monkeypatch):
    seen: set[str] = set()
    monkeypatch.setattr(builtins, python.SEEN, seen, raising=False)
    living.probe([only_mutant()])
    assert changeable(1) == 2
    assert seen == {only_mutant().place}


def test_a_probed_condition_keeps_its_value():
    probed = python._edited(python.mutants_of(Path(__file__), PYTHON), python.Mutant.probe).decode()
    for wanted in (True, False):
        seen, called = set(), []
        names = {python.SEEN: seen, "g": called.append}
        exec(probed, names)
        assert names["f"](wanted) == 1
        assert (called, len(seen)) == (([True], 3) if wanted else ([], 2))


@pytest.mark.one_server
def test_what_is_left_is_still_a_script(redis):
    """It can be compiled: what fails then, fails for what it does."""
    for mutant in all_mutants():
        redis.script_load(f"local function whole()\n{mutant.source}\nend")


def test_the_accepted_deletions_are_statements_of_the_scripts():
    statements = {str(mutant) for mutant in all_mutants()}
    stale = [statement for statement in read_accepted() if statement not in statements]
    assert not stale, "No longer in the scripts: take them out of tools/mutation/accepted.txt"


def test_the_tests_that_may_notice_are_there():
    names = {path.name for path in modules_for("claim")}
    assert {"test_script_claim.py", "test_script_reap.py", "test_damaged_keys.py"} <= names
    assert [path.name for path in modules_for("include/files")[:2]] == [
        "test_script_files.py",
        "test_byte_stores.py",
    ]
    assert modules_for("reap")[0].name == "test_script_reap.py"
    assert all(path.exists() for name in ("reap", *ELSEWHERE) for path in modules_for(name))


def test_a_process_forked_for_tests_says_how_it_ended(tmp_path):
    assert [in_a_fork(lambda code=code: code) for code in (0, 1, 2, 3)] == [0, 1, 2, 1]
    assert in_a_fork(lambda: os.kill(os.getpid(), signal.SIGSTOP) or 0) == 1
    said = tmp_path / "said.txt"
    assert in_a_fork(lambda: 1 // 0, said) == 1
    assert "ZeroDivisionError" in said.read_text()
