"""The page of problems quotes what the code says, and the quickstart lists the extras of the package."""

import re
import tomllib

import pytest
from support.source_tree import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
MESSAGES = re.findall(r"^\| `([^`]+)` \|", PAGE.partition("## Symptoms")[0], re.MULTILINE)
SOURCES = [path.read_text() for part in ("client", "worker") for path in (ROOT / part).rglob("*.py")]
NOT_FOR_USERS = {"bench", "dev", "docs", "release"}


@pytest.mark.parametrize("message", MESSAGES)
def test_a_quoted_message_is_one_of_the_code(message):
    message = message.rpartition("…")[2]
    joined = re.compile(r'"\s*\n\s*f?"')
    assert any(message in joined.sub("", source) for source in SOURCES)


def test_the_quickstart_lists_every_extra_for_users():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    table = (ROOT / "docs" / "quickstart.md").read_text().partition("## Extras")[2]
    listed = {
        name
        for row in re.findall(r"^\| (`.+?`) \|", table, re.MULTILINE)
        for name in re.findall("`([^`]+)`", row)
    }
    assert listed == project["optional-dependencies"].keys() - NOT_FOR_USERS
