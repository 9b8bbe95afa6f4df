"""Pages, docstrings, errors and ``--help`` are written in plain English: the rules are in CONTRIBUTING.md, "Words"."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from support.source_tree import ROOT, modules

# What to write instead, and what it replaces.
WORDS = {
    "name the actor, or write you": r"\b(?:who|whom)ever\b|\b(?:some|no|any|every)body\b",
    "things do not speak: returns, contains, describes, reports": r"\b(?:says?|said|tells?|told|untold)\b",
    "use words of time for time: again, in the meantime": r"\b(?:anew|meanwhile)\b",
    "use words of order for order: after, with": r"\bbeside\b|\bbehind\b(?! (?:an?|any|the) (?:load balancer|proxy))",
    "use a verb: is, has, applies, waits": r"\bstand(?:s|ing)?\b(?! ?by\b)|\bstood\b",
    "use does not, without": r"(?<!there )(?<!there will )\b(?:is|are|was|were|be) (?:no|(?-i:none))\b(?! longer)",
    "use continue or resume": r"\b(?:go|goes|going|went) on\b",
    "requeue": r"\b(?:give[ns]?|gave|giving) back\b",
    "overtake": r"\bpass(?:es|ed)? by\b",
    "use the glossary's word": r"\b(?:doorbells?|travelling agents?|open calls?|distil\w*|wordings?|mend(?:s|ed)?)\b",
    "client-side tool, operator dashboard": r"\btools? of the caller\b|\bpages? of operators\b",
}
# A phrase that may stay, and why.
ALLOWED = {
    "what a user said": "users speak",
}
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def faults(text: str) -> list[str]:
    """What to change in a text, with the words around it; code and quoted names are not read."""
    for phrase in ALLOWED:
        text = text.replace(phrase, "")
    return [
        f"{rule}: …{text[max(0, found.start() - 40) : found.end() + 20]}…".replace("\n", " ")
        for rule, pattern in WORDS.items()
        for found in re.finditer(pattern, text, re.IGNORECASE)
    ]


def prose(page: str) -> str:
    """A page without code, and without the figures that the benchmark writes."""
    page = re.sub(r"<!-- figures:.*?<!-- end of figures -->", "", page, flags=re.DOTALL)
    page = re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`]*`|\]\([^)]*\)", "", page)


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The first sentence of each docstring, and each text of an error or of ``--help``, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = re.split(r"(?<=[.:])\s", ast.get_docstring(node) or "", maxsplit=1)[0]
            yield getattr(node, "lineno", 1), re.sub(r"``.*?``", "", first)
        elif isinstance(node, ast.Raise) and node.exc is not None:
            yield from constants(node.exc)
        elif isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg in ("help", "description", "epilog", "doc"):
                    yield from constants(keyword.value)


def constants(node: ast.AST) -> Iterator[tuple[int, str]]:
    for one in ast.walk(node):
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.lineno, one.value


def test_the_pages_are_in_plain_english():
    found = [
        f"{page.relative_to(ROOT)}: {fault}" for page in PAGES for fault in faults(prose(page.read_text()))
    ]
    assert found == [], "\n".join(found)


def test_docstrings_errors_and_help_are_in_plain_english():
    found = [
        f"{module.path.relative_to(ROOT)}:{line}: {fault}"
        for module in modules().values()
        for line, text in texts(module.tree)
        for fault in faults(text)
    ]
    assert found == [], "\n".join(found)


def test_what_the_rules_find():
    assert faults("The function returns a list. There is no limit. It is no longer kept.") == []
    assert len(faults("Whoever asks is told so; that is no error.")) == 3
    assert prose("Run `whoever`.\n```\nnobody\n```\n[x](behind.md)\n").split() == ["Run", ".", "[x"]
