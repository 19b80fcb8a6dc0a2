"""The parts of a report, without any markup: both templates show the same ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Tone = Literal["", "good", "bad", "open", "muted"]
"""How a text is set off. It is never the only sign: the text says it, too."""
Arm = Literal["baseline", "candidate"]


@dataclass(frozen=True)
class Cell:
    """`code`: an id, a hash or a value of a setting, shown as it is."""

    text: str
    tone: Tone = ""
    code: bool = False


@dataclass(frozen=True)
class Column:
    """`number`: its cells line up by their digits."""

    name: str
    number: bool = False


@dataclass(frozen=True)
class Table:
    """The first cell of each row names it. `folded`: shown closed, with the caption to open it."""

    id: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    folded: bool = False
    kind: Literal["table"] = "table"


@dataclass(frozen=True)
class Text:
    """One paragraph. `notice`: set off from the others."""

    text: str
    tone: Tone = ""
    notice: bool = False
    kind: Literal["text"] = "text"


@dataclass(frozen=True)
class Facts:
    """Names with values."""

    items: tuple[tuple[str, Cell], ...]
    kind: Literal["facts"] = "facts"


@dataclass(frozen=True)
class Commands:
    """Lines for a shell."""

    label: str
    lines: tuple[str, ...]
    kind: Literal["commands"] = "commands"


@dataclass(frozen=True)
class Mark:
    """One sign of a figure. Horizontal places are per cent of the figure's width, vertical ones pixels.

    `look` names its style; `text` is the label, or of a dot and a line what a pointer on it shows.
    """

    shape: Literal["line", "dot", "band", "label"]
    look: str
    x: float
    y: float
    x2: float = 0.0
    y2: float = 0.0
    text: str = ""
    anchor: Literal["start", "middle", "end"] = "start"


@dataclass(frozen=True)
class Figure:
    """A drawing, `height` in pixels; `note` stands below its title.

    `title` and `description` say for who does not see it what it shows; a table beside it has the same numbers.
    """

    id: str
    title: str
    description: str
    height: int
    marks: tuple[Mark, ...]
    legend: tuple[tuple[str, str], ...] = ()
    note: str = ""
    kind: Literal["figure"] = "figure"


@dataclass(frozen=True)
class Figures:
    """Small figures side by side where there is room."""

    figures: tuple[Figure, ...]
    kind: Literal["figures"] = "figures"


Block = Table | Text | Facts | Commands | Figure | Figures


@dataclass(frozen=True)
class Section:
    """`parts`: sections below it."""

    id: str
    heading: str
    blocks: tuple[Block, ...] = ()
    parts: tuple[Section, ...] = ()


@dataclass(frozen=True)
class Banner:
    """What a report says first. `code` names the reason, `sentence` what it means, `why` is the record's own line."""

    verdict: str
    code: str
    sentence: str
    why: str
    tone: Tone


@dataclass(frozen=True)
class Download:
    """The records themselves: `name` of the file, its content, gzip, in base64."""

    name: str
    base64: str
    size: int


@dataclass(frozen=True)
class Page:
    """A whole report. `data`: what was plotted, as JSON text."""

    kind: str
    title: str
    subtitle: str
    banner: Banner
    sections: tuple[Section, ...]
    data: str
    download: Download | None
    left_out: tuple[str, ...] = ()


def table(
    id: str, caption: str, columns: Sequence[str], rows: Sequence[Sequence[Cell | str]], *, folded: bool = False
) -> Table:
    """A table; a column's name that begins with `#` is one of numbers, a plain text is a plain cell."""
    return Table(
        id,
        caption,
        tuple(Column(name.removeprefix("#"), name.startswith("#")) for name in columns),
        tuple(tuple(cell if isinstance(cell, Cell) else Cell(cell) for cell in row) for row in rows),
        folded,
    )


def tables_of(sections: Sequence[Section]) -> Iterator[Table]:
    """All tables of a page, in their order."""
    for section in sections:
        yield from (block for block in section.blocks if isinstance(block, Table))
        yield from tables_of(section.parts)
