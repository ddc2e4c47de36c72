"""Makes what the documents take from the source: python docs/make.py [FOLDER].

Draws the pictures; without a folder it also writes the tables of settings and the editor schemas.
"""

from __future__ import annotations

import math
import sys
from html import escape
from pathlib import Path
from typing import Any

from package_picture import packages

# One row of boxes per stage: (title, what it gives, the package or file it lives in).
ROWS = [
    (
        "learn",
        [
            ("read", "Examples", "data"),
            ("tokenise", "ids, once", "encoders/tokens"),
            ("batch", "rows that meet", "training/batches"),
            ("encode", "(R, T, H)", "encoders/encoder"),
            ("views", "logits, pooled, …", "encoders/views"),
            ("objective", "one number", "objectives"),
            ("update", "Step", "training/loop"),
        ],
    ),
    (
        "measure",
        [
            ("evaluate", "scores", "metrics"),
            ("save", "model folder", "models"),
            ("record", "Result rows", "studies/results"),
            ("report", "table, test, picture", "reports"),
        ],
    ),
]
WIDTH, HEIGHT, GAP, LEFT, TOP, PITCH = 128, 74, 26, 86, 26, 132
INK, SOFT, FILL, ACCENT = "#22313a", "#5b6770", "#f3f5f6", "#c8553d"
COLOURS = ["#2e6f95", "#c8553d"]
FAINT = "#d5dadd"

# Each colour of the pictures, and the colour in its place where the reader prefers a dark page.
DARK = {
    "white": "#12181c",
    INK: "#e4eaed",
    SOFT: "#a3b0b8",
    FILL: "#1e282e",
    FAINT: "#46545c",
    COLOURS[0]: "#6bb3dd",
    COLOURS[1]: "#e8836e",
}


def style() -> str:
    """The style sheet of a picture: its other colours for dark pages."""
    rules = "".join(
        f'[{attribute}="{light}"]{{{attribute}:{dark}}}'
        for light, dark in DARK.items()
        for attribute in ("fill", "stroke")
    )
    return f"<style>@media (prefers-color-scheme: dark){{{rules}}}</style>"


def words(x: float, y: float, text: str, size: int, colour: str, more: str = "") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="middle" font-size="{size}" fill="{colour}" {more}>{escape(text)}</text>'


def box(x: int, y: int, title: str, gives: str, where: str, colour: str) -> str:
    middle = x + WIDTH / 2
    frame = f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="8" fill="{FILL}" stroke="{colour}"/>'
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
        style(),
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for row, (stage, boxes) in enumerate(ROWS):
        y = TOP + row * PITCH
        parts.append(
            f'<text x="14" y="{y + HEIGHT / 2 + 5}" font-size="14" fill="{SOFT}">{stage}</text>'
        )
        for column, (title, gives, where) in enumerate(boxes):
            x = LEFT + column * (WIDTH + GAP)
            parts.append(
                box(x, y, title, gives, where, ACCENT if title == "objective" else "#9aa5ab")
            )
            if column:
                parts.append(line(f"M{x - GAP + 2} {y + HEIGHT / 2} H{x - 2}"))
    # the loop goes back from the update to the next batch; what was learnt goes down to be measured
    update, batch = LEFT + 6 * (WIDTH + GAP) + WIDTH / 2, LEFT + 2 * (WIDTH + GAP) + WIDTH / 2
    low = TOP + HEIGHT + 22
    parts.append(line(f"M{update} {TOP + HEIGHT} V{low} H{batch} V{TOP + HEIGHT + 3}"))
    parts.append(
        f'<text x="{batch + 12}" y="{low - 6}" font-size="11" fill="{SOFT}">next step</text>'
    )
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


# Eight texts of two classes at these angles, and the places of learnt centers.
ANGLES = [(0, 15), (0, 60), (0, 100), (0, 215), (1, 40), (1, 150), (1, 185), (1, 300)]
CENTERS = [[30.0, 80.0], [170.0, 260.0]]


def panels() -> list[tuple[str, Any, list[list[float]]]]:
    """(title, loss of the points, angles of the centers of each class)."""
    import torch

    from closeknit import objectives

    def on_circle(degrees: list[list[float]]) -> Any:
        angles = torch.tensor(degrees) * math.pi / 180
        return torch.stack([angles.cos(), angles.sin()], -1)

    soft = objectives.SoftTriple(2, 2, centers=2, gamma=0.1, scale=5.0, margin=0.1)
    soft.proxies.data = on_circle(CENTERS)
    nca = objectives.ProxyNCA(2, 2, scale=3.0)
    nca.proxies.data = on_circle([[45.0], [200.0]])[:, 0]
    distance = objectives.LabelDistance(2, scale=5.0)
    weights = torch.tensor([[0.6, 0.4]] * 4 + [[0.2, 0.8]] * 4)
    aware = objectives.LabelAware(temperature=0.5)
    return [
        ("contrastive", objectives.Contrastive(), []),
        ("triplet", objectives.Triplet(margin=0.5), []),
        ("supcon", objectives.SupCon(temperature=0.5), []),
        ("lcl", lambda z, y: aware(z, y, weights), []),
        ("clld", distance, []),
        ("proxy_nca", nca, [[45.0], [200.0]]),
        ("soft_triple", soft, CENTERS),
        (
            "info_nce, two views",
            lambda z, y: objectives.InfoNCE(temperature=0.5)(torch.stack([z[:4], z[4:]])),
            [],
        ),
    ]


def pulls_and_pushes() -> str:
    """Where each objective moves eight texts on the unit circle, as SVG."""
    import torch

    size, radius, columns = 250, 84, 4
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {columns * size} {2 * size + 30}" '
        'font-family="Helvetica, Arial, sans-serif">',
        f'<defs><marker id="head" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="{INK}"/></marker></defs>',
        style(),
        f'<rect width="{columns * size}" height="{2 * size + 30}" fill="white"/>',
    ]
    y = torch.tensor([label for label, _ in ANGLES])
    for number, (title, loss, centers) in enumerate(panels()):
        x0, y0 = (number % columns + 0.5) * size, (number // columns + 0.5) * size + 16
        parts.append(words(x0, y0 - radius - 28, title, 14, INK, 'font-weight="600"'))
        parts.append(f'<circle cx="{x0}" cy="{y0}" r="{radius}" fill="none" stroke="{FAINT}"/>')
        angle = torch.tensor(
            [math.radians(d) for _, d in ANGLES], dtype=torch.float64, requires_grad=True
        )
        z = torch.stack([angle.cos(), angle.sin()], -1)
        loss(z.float(), y).backward()
        turn, angle = -angle.grad, angle.detach()
        turn = turn / turn.abs().max().clamp_min(1e-12) * 0.42
        if title.startswith("info"):  # partners are views of one text
            for i in range(4):
                (ax, ay), (bx, by) = (place(x0, y0, radius, float(angle[j])) for j in (i, i + 4))
                parts.append(
                    f'<path d="M{ax} {ay} L{bx} {by}" stroke="{FAINT}" stroke-dasharray="3 3"/>'
                )
        for label, own in enumerate(centers):
            for degrees in own:
                cx, cy = place(x0, y0, radius, math.radians(degrees))
                parts.append(
                    f'<rect x="{cx - 6}" y="{cy - 6}" width="12" height="12" fill="none" stroke="{COLOURS[label]}"/>'
                )
        for i, (label, _) in enumerate(ANGLES):
            start = float(angle[i])
            px, py = place(x0, y0, radius, start)
            colour = SOFT if title.startswith("info") else COLOURS[label]
            parts.append(f'<circle cx="{px}" cy="{py}" r="6" fill="{colour}"/>')
            if abs(float(turn[i])) > 0.02:
                (ax, ay), (bx, by) = (
                    place(x0, y0, radius + 15, start + t) for t in (0.0, float(turn[i]))
                )
                sweep = 0 if turn[i] > 0 else 1
                parts.append(
                    f'<path d="M{ax} {ay} A{radius + 15} {radius + 15} 0 0 {sweep} {bx} {by}" fill="none" stroke="{INK}" '
                    'stroke-width="1.6" marker-end="url(#head)"/>'
                )
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def place(x0: float, y0: float, radius: float, angle: float) -> tuple[float, float]:
    return round(x0 + radius * math.cos(angle), 1), round(y0 - radius * math.sin(angle), 1)


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "images"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dataflow.svg").write_text(dataflow(), encoding="utf-8")
    (folder / "packages.svg").write_text(packages(style()), encoding="utf-8")
    (folder / "objectives.svg").write_text(pulls_and_pushes(), encoding="utf-8")
    if len(sys.argv) == 1:
        import settings_pages

        settings_pages.write()
