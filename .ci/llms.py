"""Writes ``llms.txt`` and ``llms-full.txt`` into the site: the index and the text of its pages for language models.

The format is that of https://llmstxt.org. Pages of the API reference are in the index only: their text is generated.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

texts: dict[str, str] = {}
sections: list[tuple[str, list[Any]]] = []
SENTENCE = re.compile(r"[^.:]+(?:\.(?=\S)[^.:]*)*[.:]")
LINKED = re.compile(r"\[([^\]]*)\]\([^)]*\)")


class Entry(NamedTuple):
    title: str
    url: str
    text: str


def on_nav(nav: Any, config: Any, files: Any) -> None:
    """Remember the sections of the navigation; pages outside a section form the first one."""
    pages = [item for item in nav.items if item.is_page]
    sections[:] = [("Start", pages), *[(item.title, item.children) for item in nav.items if item.is_section]]


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Remember the text of a page as the site shows it."""
    texts[page.file.src_uri] = markdown
    return markdown


def on_post_build(config: Any) -> None:
    """Write both files."""
    found = [
        (title, [Entry(page.title, page.file.url, texts[page.file.src_uri]) for page in pages])
        for title, pages in sections
    ]
    site = Path(config["site_dir"])
    (site / "llms.txt").write_text(index(config["site_name"], config["site_description"], found))
    (site / "llms-full.txt").write_text(full(found))


def index(name: str, description: str, found: list[tuple[str, list[Entry]]]) -> str:
    """The name, the description, and a link with a description for each page."""
    lines = [f"# {name}", "", f"> {description}"]
    for title, entries in found:
        lines += [
            "",
            f"## {title}",
            "",
            *[f"- [{one.title}]({one.url}){summary(one.text)}" for one in entries],
        ]
    return "\n".join([*lines, ""])


def summary(text: str) -> str:
    """The first sentence of a page after its heading, or nothing."""
    paragraphs = [part for part in text.split("\n\n") if re.match(r"[`A-Z\[]", part)]
    sentence = SENTENCE.match(LINKED.sub(r"\1", paragraphs[0].replace("\n", " "))) if paragraphs else None
    return f": {sentence[0].rstrip(':.')}" if sentence else ""


def full(found: list[tuple[str, list[Entry]]]) -> str:
    """The text of all pages, except those that are generated from docstrings."""
    pages = [one.text.strip() for _, entries in found for one in entries]
    return "\n\n".join(text for text in pages if not re.search(r"^::: ", text, re.MULTILINE)) + "\n"
