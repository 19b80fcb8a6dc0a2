"""Reads a report as a browser's parser would, without a browser: tags, ids, texts, links, what stands in its script."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "link", "br", "hr", "img", "input"}


@dataclass
class Outline:
    """`tags` with their attributes in order; `text` of everything but style and script."""

    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    text: str = ""
    script: str = ""
    unclosed: list[str] = field(default_factory=list)

    def names(self) -> list[str]:
        return [name for name, _ in self.tags]

    def having(self, attribute: str) -> list[str]:
        return [str(found[attribute]) for _, found in self.tags if attribute in found]

    def data(self) -> Any:
        return json.loads(self.script)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found = Outline()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> without a beginning"
        assert self.open[-1] == tag, f"</{tag}> in <{self.open[-1]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.found.script += data
        elif not self.open or self.open[-1] != "style":
            self.found.text += data


def outline(html: str) -> Outline:
    """What the page is made of; elements that are closed in another order are an AssertionError."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    reader.found.unclosed = list(reader.open)
    return reader.found
