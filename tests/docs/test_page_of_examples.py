"""docs/examples.md has the example programs as they are, and the tests of examples run these."""

from __future__ import annotations

import pytest
from support.marked import with_block
from support.source_tree import ROOT

PAGE = ROOT / "docs" / "examples.md"
SHOWN = (
    "customer_service.py", "research.py", "coding/assistant.py", "classify.py", "slack/bot.py",
    "migration/before.py", "migration/after.py",
)  # fmt: skip


def block(name: str) -> str:
    return f"```python\n{(ROOT / 'examples' / name).read_text()}```"


@pytest.mark.parametrize("name", SHOWN)
def test_the_page_has_the_example(name):
    page = PAGE.read_text()
    assert page == with_block(page, name, block(name)), (
        "Run: PYTHONPATH=tests python tests/docs/test_page_of_examples.py"
    )


if __name__ == "__main__":
    page = PAGE.read_text()
    for name in SHOWN:
        page = with_block(page, name, block(name))
    PAGE.write_text(page)
