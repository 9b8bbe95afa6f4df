"""The threats of the security page: each line names a test, and each test is there to be run."""

import ast
import re

import pytest
from support.source_tree import ROOT

PAGE = (ROOT / "docs" / "security.md").read_text()
THREATS = PAGE.partition("\n## Threats, and the test of each\n")[2].partition("\n## ")[0]
LINES = [line for line in THREATS.splitlines() if line.startswith("| ") and not line.startswith("| attack |")]
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py::\w+)`", THREATS)))
BOUNDARIES = [
    "Submitters", "Readers", "Workers", "Model services", "Tools", "Webhooks", "The gateway", "Redis",
    "Archives and stores", "Pages, terminals, logs and metrics", "What is installed",
]  # fmt: skip


def test_every_boundary_has_its_threats():
    assert re.findall(r"^### (.*)$", THREATS, re.MULTILINE) == BOUNDARIES
    assert len(LINES) > 70


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.split("|")[1].strip()[:50])
def test_a_threat_names_its_test(line):
    cells = line.strip("|").split("|")
    assert len(cells) == 3
    assert re.fullmatch(r" `tests/[\w/]+\.py::test_\w+` ", cells[2])


@pytest.mark.parametrize("named", TESTS)
def test_every_test_that_is_named_is_there(named):
    path, _, name = named.partition("::")
    found = [one for one in ast.parse((ROOT / path).read_text()).body if getattr(one, "name", "") == name]
    assert len(found) == 1
    marks = [ast.unparse(mark) for mark in found[0].decorator_list]
    assert not [mark for mark in marks if re.search(r"mark\.(skip\b|xfail)", mark)], "it would not be run"
