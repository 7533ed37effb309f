"""What a reproduction found: published figures beside ours, claims that hold or not, and a plot."""

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Self

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A figure over seeds.

    Attributes:
        mean: of them.
        sd: the sample's standard deviation; None for one seed, or where a paper gives none.
        count: seeds; 0 where a paper does not say.
    """

    mean: float
    sd: float | None = None
    count: int = 0

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """Return the spread of values."""
        found = list(values)
        sd = float(np.std(found, ddof=1)) if len(found) > 1 else None
        return cls(mean=float(np.mean(found)), sd=sd, count=len(found))

    def shown(self, digits: int) -> str:
        """Return mean ± sd (seeds)."""
        text = f"{self.mean:.{digits}f}"
        if self.sd is not None:
            text += f" ± {self.sd:.{digits}f}"
        return text + (f" ({self.count})" if self.count else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One row of a table.

    Attributes:
        label: what is compared.
        published: from the paper, None where it has none.
        plain, secure: ours, None where it was not run.
        note: in words.
    """

    label: str
    published: Spread | None = None
    plain: Spread | None = None
    secure: Spread | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A metric of several methods.

    Attributes:
        title: what the figures are.
        lines: the rows.
        digits: after the point.
    """

    title: str
    lines: tuple[Line, ...]
    digits: int = 4

    def text(self) -> str:
        """Return the table for people."""
        header = ("", "published", "ours, plain", "ours, secure", "")
        rows = [header]
        for line in self.lines:
            spreads = (line.published, line.plain, line.secure)
            shown = ("–" if one is None else one.shown(self.digits) for one in spreads)
            rows.append((line.label, *shown, line.note))  # type: ignore[arg-type]  # five cells
        widths = [max(len(row[place]) for row in rows) for place in range(len(header))]
        cells = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        return "\n".join([self.title, *(f"  {row}" for row in cells)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Something that the reproduction is to show.

    Attributes:
        text: the claim, with the figures found.
        holds: whether they bear it out.
    """

    text: str
    holds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One curve of a plot.

    Attributes:
        label: in the legend.
        x, y: its points.
        low, high: a band around it, empty for none.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()

    @classmethod
    def over_seeds(cls, label: str, x: Sequence[float], runs: Sequence[Sequence[float]]) -> Self:
        """Return the mean of several runs' curves with a band of one standard deviation."""
        values = np.array(runs, dtype=np.float64)
        mean = values.mean(axis=0)
        if len(runs) == 1:
            return cls(label=label, x=x, y=mean.tolist())
        sd = values.std(axis=0, ddof=1)
        low, high = (mean - sd).tolist(), (mean + sd).tolist()
        return cls(label=label, x=x, y=mean.tolist(), low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Curves, or bars of a table's figures where there are none.

    Attributes:
        title, x_label, y_label: of the axes.
        curves: what is drawn.
        level: a horizontal line, None for none.
        log_y: whether the vertical axis is logarithmic.
    """

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...] = ()
    level: float | None = None
    log_y: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All of it.

    Attributes:
        name: of the reproduction.
        setting: what was run, in one sentence or two.
        tables: published beside ours.
        claims: what is to be shown.
        plot: of the headline.
    """

    name: str
    setting: str
    tables: tuple[Table, ...]
    claims: tuple[Claim, ...]
    plot: Plot

    @property
    def holds(self) -> bool:
        """Whether every claim holds."""
        return all(claim.holds for claim in self.claims)

    def text(self) -> str:
        """Return the report for people."""
        claims = [f"  {'yes' if one.holds else 'NO '}  {one.text}" for one in self.claims]
        tables = [f"{table.text()}\n" for table in self.tables]
        return "\n".join([f"{self.name}: {self.setting}\n", *tables, "To be shown:", *claims])

    def csv(self) -> str:
        """Return every figure as CSV, unrounded."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        columns = [f"{who}_{what}" for who in ("published", "plain", "secure") for what in _PARTS]
        writer.writerow(["table", "label", *columns, "note"])
        for table in self.tables:
            for line in table.lines:
                found = [_parts(one) for one in (line.published, line.plain, line.secure)]
                writer.writerow([table.title, line.label, *chain(*found), line.note])
        return out.getvalue()


_PARTS = ("mean", "sd", "seeds")


def _parts(spread: Spread | None) -> list[object]:
    if spread is None:
        return ["", "", ""]
    return [spread.mean, "" if spread.sd is None else spread.sd, spread.count or ""]


def agrees(published: Spread, ours: Spread) -> bool:
    """Return whether two means differ by at most twice the larger of their deviations."""
    widest = max(published.sd or 0.0, ours.sd or 0.0)
    return math.isfinite(ours.mean) and abs(published.mean - ours.mean) <= 2 * widest
