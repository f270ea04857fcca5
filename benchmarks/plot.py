"""A plot of groups of bars as SVG, by hand: no library, the same bytes for the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

COLOURS = ("#1f5fa8", "#6aa5dd", "#d9822b", "#8a8f98", "#5a9e6f", "#a0568f")
WIDTH, LEFT, RIGHT, TOP = 860, 250, 150, 78
BAR, GAP, GROUP_GAP = 15, 3, 16
LETTERS = 34  # of a model's name that fit
TEXT = 'font-family="Helvetica, Arial, sans-serif"'


@dataclass(frozen=True)
class Bar:
    """An engine's tokens a second, and their share of the machine's limit."""

    name: str
    rate: float
    share: float


@dataclass(frozen=True)
class Group:
    """The engines of one test of a model."""

    model: str
    test: str
    bars: Sequence[Bar]


def svg(groups: Sequence[Group], title: str, note: str) -> str:
    """Bars from left to right: 1 is the limit; tokens a second stand at their ends."""
    names = list(dict.fromkeys(b.name for g in groups for b in g.bars))
    colour = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    top = max(1.0, *(b.share for g in groups for b in g.bars)) if groups else 1.0
    scale = (WIDTH - LEFT - RIGHT) / top
    out: list[str] = []
    y = float(TOP)
    for g in groups:
        height = len(g.bars) * (BAR + GAP)
        model = g.model if len(g.model) <= LETTERS else g.model[: LETTERS - 1] + "…"
        out.append(_text(LEFT - 10, y + height / 2 - 3, model, 12, "end"))
        out.append(_text(LEFT - 10, y + height / 2 + 12, g.test, 12, "end"))
        for b in g.bars:
            width = max(1.0, b.share * scale)
            out.append(
                f'<rect x="{LEFT}" y="{y:.1f}" width="{width:.1f}" height="{BAR}" '
                f'fill="{colour[b.name]}"/>'
            )
            told = f"{b.rate:.1f} tok/s"
            out.append(_text(LEFT + width + 5, y + BAR - 3.5, told, 11, "start"))
            y += BAR + GAP
        y += GROUP_GAP
    grid = [_line(LEFT + scale * k / 4, TOP - 6, y - GROUP_GAP + 4, k == 4) for k in range(5)]
    marks = [
        _text(LEFT + scale * k / 4, y + 4, "limit" if k == 4 else f"{k / 4:g}", 11, "middle")
        for k in range(5)
    ]
    head = [
        _text(20, 24, title, 15, "start", bold=True),
        _text(20, 42, note, 11, "start"),
        *_legend(colour),
    ]
    whole = y + 20
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{whole:.0f}" '
        f'viewBox="0 0 {WIDTH} {whole:.0f}">',
        f'<rect width="{WIDTH}" height="{whole:.0f}" fill="#ffffff"/>',
        *grid, *head, *out, *marks, "</svg>", "",
    ])  # fmt: skip


def _legend(colour: dict[str, str]) -> list[str]:
    out: list[str] = []
    x = 20.0
    for name, fill in colour.items():
        out.append(f'<rect x="{x:.0f}" y="52" width="11" height="11" fill="{fill}"/>')
        out.append(_text(x + 16, 62, name, 11, "start"))
        x += 34 + 6.2 * len(name)
    return out


def _text(x: float, y: float, text: str, size: int, anchor: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" {TEXT} font-size="{size}" fill="#222222" '
        f'text-anchor="{anchor}"{weight}>{escape(text)}</text>'
    )


def _line(x: float, y0: float, y1: float, strong: bool) -> str:
    stroke = '#444444" stroke-dasharray="5 3' if strong else "#dddddd"
    return f'<line x1="{x:.1f}" y1="{y0:.1f}" x2="{x:.1f}" y2="{y1:.1f}" stroke="{stroke}"/>'
