"""Draws the pictures of the documents: python docs/make.py [FOLDER]."""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

# One row of boxes a stage: (title, what it gives, the file it lives in).
ROWS = [
    (
        "learn",
        [
            ("read", "Examples", "data, catalogue"),
            ("tokenise", "ids, once", "tokens"),
            ("batch", "rows that meet", "samplers, tasks"),
            ("encode", "(R, T, H)", "encoder"),
            ("views", "logits, pooled, tokens", "heads"),
            ("objective", "one number", "objectives"),
            ("update", "Step", "training"),
        ],
    ),
    (
        "measure",
        [
            ("evaluate", "scores", "evaluation, metrics"),
            ("save", "model folder", "model"),
            ("record", "Result rows", "protocol"),
            ("report", "table, test, picture", "report, plots"),
        ],
    ),
]
WIDTH, HEIGHT, GAP, LEFT, TOP, PITCH = 128, 74, 26, 86, 26, 132
INK, SOFT, FILL, ACCENT = "#22313a", "#5b6770", "#f3f5f6", "#c8553d"


def words(x: float, y: float, text: str, size: int, colour: str, more: str = "") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="middle" font-size="{size}" fill="{colour}" {more}>{escape(text)}</text>'


def box(x: int, y: int, title: str, gives: str, where: str, colour: str) -> str:
    middle = x + WIDTH / 2
    frame = (
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="8" fill="{FILL}" stroke="{colour}"/>'
    )
    return (
        frame
        + words(middle, y + 24, title, 15, INK, 'font-weight="600"')
        + words(middle, y + 43, gives, 12, INK)
        + words(middle, y + 61, where, 11, SOFT, 'font-family="monospace"')
    )


def line(path: str, colour: str = SOFT) -> str:
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.6" marker-end="url(#tip)"/>'


def dataflow() -> str:
    """How data flow through the package, as SVG."""
    width = LEFT + 7 * WIDTH + 6 * GAP + 24
    height = TOP + PITCH + HEIGHT + 64
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="Helvetica, Arial, sans-serif">',
        f'<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="{SOFT}"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for row, (stage, boxes) in enumerate(ROWS):
        y = TOP + row * PITCH
        parts.append(f'<text x="14" y="{y + HEIGHT / 2 + 5}" font-size="14" fill="{SOFT}">{stage}</text>')
        for column, (title, gives, where) in enumerate(boxes):
            x = LEFT + column * (WIDTH + GAP)
            parts.append(box(x, y, title, gives, where, ACCENT if title == "objective" else "#9aa5ab"))
            if column:
                parts.append(line(f"M{x - GAP + 2} {y + HEIGHT / 2} H{x - 2}"))
    # the loop goes back from the update to the next batch; what was learnt goes down to be measured
    update, batch = LEFT + 6 * (WIDTH + GAP) + WIDTH / 2, LEFT + 2 * (WIDTH + GAP) + WIDTH / 2
    low = TOP + HEIGHT + 22
    parts.append(line(f"M{update} {TOP + HEIGHT} V{low} H{batch} V{TOP + HEIGHT + 3}"))
    parts.append(f'<text x="{batch + 12}" y="{low - 6}" font-size="11" fill="{SOFT}">next step</text>')
    down = LEFT + 3 * (WIDTH + GAP) + WIDTH / 2
    y = TOP + PITCH + HEIGHT + 34
    parts.append(
        f'<text x="{LEFT}" y="{y}" font-size="12" fill="{SOFT}">The encoder sees one list of R rows. An objective reads only '
        "the views it names; a joint objective is a list of (weight, objective, view).</text>"
    )
    first = LEFT + WIDTH / 2
    encode = TOP + HEIGHT
    parts.append(line(f"M{down} {encode} V{low + 18} H{first} V{TOP + PITCH - 3}"))
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "images"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dataflow.svg").write_text(dataflow(), encoding="utf-8")
