"""A report as a list of headings, paragraphs, tables and figures, written as Markdown and as HTML."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

__all__ = ["Block", "Figure", "Heading", "Table", "Text", "to_html", "to_markdown"]


@dataclass(frozen=True)
class Heading:
    """A heading of level 1, 2 or 3."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Table:
    """A table; the first column holds names, the others numbers."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Figure:
    """A picture in a file beside the report, PNG or SVG."""

    path: Path
    caption: str


Block = Heading | Text | Table | Figure

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222 }
body { max-width: 92rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0; font-size: 13px; font-variant-numeric: tabular-nums }
div.wide { overflow-x: auto }
th, td { padding: .2rem .4rem; text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left }
thead th { border-bottom: 1px solid #222 }
tbody tr:nth-child(even) { background: #f5f5f5 }
figure { margin: 1.5rem 0 } figure img { max-width: 100% } figcaption { color: #555 }
"""


def to_markdown(blocks: Sequence[Block]) -> str:
    """Return the report as Markdown; figures are linked."""
    return "\n\n".join(_markdown(block) for block in blocks) + "\n"


def to_html(blocks: Sequence[Block], title: str) -> str:
    """Return the report as one page that needs nothing else; figures are inside."""
    body = "\n".join(_html(block) for block in blocks)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width">\n<title>{escape(title)}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _markdown(block: Block) -> str:
    if isinstance(block, Heading):
        return "#" * block.level + " " + block.text
    if isinstance(block, Text):
        return block.text
    if isinstance(block, Figure):
        return f"![{block.caption}]({block.path.name})\n\n{block.caption}"
    lines = [block.head, ["---", *["---:"] * (len(block.head) - 1)], *block.rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _html(block: Block) -> str:
    if isinstance(block, Heading):
        return f"<h{block.level}>{_plain(block.text)}</h{block.level}>"
    if isinstance(block, Text):
        return f"<p>{_plain(block.text)}</p>"
    if isinstance(block, Figure):
        kind = "svg+xml" if block.path.suffix == ".svg" else "png"
        data = base64.b64encode(block.path.read_bytes()).decode()
        caption = escape(block.caption)
        return (
            f'<figure><img alt="{caption}" src="data:image/{kind};base64,{data}">'
            f"<figcaption>{caption}</figcaption></figure>"
        )
    head = "".join(f"<th>{_plain(cell)}</th>" for cell in block.head)
    rows = "\n".join(
        "<tr>" + "".join(f"<td>{_plain(cell)}</td>" for cell in row) + "</tr>" for row in block.rows
    )
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody></table></div>"
    )


def _plain(text: str) -> str:
    return escape(text, quote=False)
