"""Plots as inline SVG: no script, no font, nothing to load; they print as they show."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Final

_WIDTH: Final = 640
_HEIGHT: Final = 280
_LEFT: Final = 60
_RIGHT: Final = 20
_TOP: Final = 16
_BOTTOM: Final = 44
_TICKS: Final = 5

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One curve with its axes.

    Attributes:
        title: read out by screen readers.
        points: in order of x.
        x_label, y_label: of the axes.
        limit: a horizontal line, None for none.
        is_step: whether y jumps at each x, as what was spent does.
    """

    title: str
    points: Points
    x_label: str
    y_label: str
    limit: float | None = None
    is_step: bool = False

    def svg(self) -> str:
        """The plot."""
        if not self.points:
            return "<p>Nothing to show yet.</p>"
        xs, ys = zip(*self.points, strict=True)
        top = max(*ys, self.limit or 0.0, 1e-12) * 1.08
        left, right = min(xs), max(xs)
        width = (right - left) or 1.0

        def place(x: float, y: float) -> str:
            across = _LEFT + (x - left) / width * (_WIDTH - _LEFT - _RIGHT)
            down = _HEIGHT - _BOTTOM - y / top * (_HEIGHT - _TOP - _BOTTOM)
            return f"{across:.1f},{down:.1f}"

        curve = list(self.points)
        if self.is_step:
            steps = [((x, before), (x, y)) for (_, before), (x, y) in pairwise(curve)]
            curve = [curve[0], *(point for pair in steps for point in pair)]
        parts = [
            f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(self.title)}">'
        ]
        shown: set[float] = set()
        for tick in range(_TICKS + 1):
            y = top / 1.08 * tick / _TICKS
            x = left + width * tick / _TICKS
            if self.is_step:  # releases are counted
                x = float(min(round(x), right))
            start, end = place(left, y), place(right, y)
            parts.append(_line(start, end, "grid"))
            across, down = start.split(",")
            parts.append(_text(float(across) - 6, float(down) + 4, f"{y:.3g}", "end"))
            if x in shown:
                continue
            shown.add(x)
            across, down = place(x, 0.0).split(",")
            parts.append(_text(float(across), float(down) + 16, f"{x:.4g}", "middle"))
        if self.limit is not None:
            parts.append(_line(place(left, self.limit), place(right, self.limit), "limit"))
            across, down = place(right, self.limit).split(",")
            parts.append(_text(float(across), float(down) - 5, "limit", "end"))
        path = " ".join(place(x, y) for x, y in curve)
        parts.append(f'<polyline class="curve" points="{path}"/>')
        if len(self.points) == 1:
            across, down = place(*self.points[0]).split(",")
            parts.append(f'<circle class="dot" cx="{across}" cy="{down}" r="4"/>')
        middle = (_LEFT + _WIDTH - _RIGHT) / 2
        parts.append(_text(middle, _HEIGHT - 6, self.x_label, "middle"))
        parts.append(_text(14, _TOP - 4, self.y_label, "start"))
        return "".join([*parts, "</svg>"])


def bars(title: str, rows: Sequence[tuple[str, float, float]]) -> str:
    """Horizontal bars: (name, value, limit) each."""
    height = 34 * len(rows) + 10
    parts = [f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">']
    for place, (name, value, limit) in enumerate(rows):
        down = 34 * place + 8
        share = min(value / limit, 1.0) if limit > 0 else 0.0
        parts.append(f'<rect class="room" x="200" y="{down}" width="330" height="18"/>')
        parts.append(
            f'<rect class="bar" x="200" y="{down}" width="{330 * share:.1f}" height="18"/>'
        )
        parts.append(_text(194, down + 13, name, "end"))
        parts.append(_text(536, down + 13, f"{value:.3g} / {limit:.3g}", "start"))
    return "".join([*parts, "</svg>"])


def _line(start: str, end: str, name: str) -> str:
    (x1, y1), (x2, y2) = start.split(","), end.split(",")
    return f'<line class="{name}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
