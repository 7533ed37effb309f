"""A report's plot as PNG and SVG, by matplotlib (extra `demo`); nothing else imports it."""

from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.figure import Figure

from fl.reproduce.report import Report, Spread

_SIZE: Final = (7.2, 4.2)  # inches
_DPI: Final = 150


def draw(report: Report, folder: Path) -> tuple[Path, ...]:
    """Write `<name>.png` and `<name>.svg` and return their paths.

    The same report gives the same bytes: SVG ids are salted by the name, and no date is written.
    """
    plot = report.plot
    mpl.rcParams["svg.hashsalt"] = report.name
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.add_subplot()
    if plot.curves:
        for curve in plot.curves:
            (line,) = axes.plot(curve.x, curve.y, label=curve.label, linewidth=1.6)
            if curve.low:
                axes.fill_between(
                    curve.x, curve.low, curve.high, color=line.get_color(), alpha=0.2, linewidth=0
                )
        axes.legend(frameon=False)
    else:
        _bars(report, axes)
    if plot.level is not None:
        axes.axhline(plot.level, color="gray", linewidth=0.8, linestyle="--")
    if plot.log_y:
        axes.set_yscale("log")
    axes.set_title(plot.title)
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y_label)
    axes.grid(alpha=0.25)
    paths = (folder / f"{report.name}.png", folder / f"{report.name}.svg")
    for path in paths:
        metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        figure.savefig(path, dpi=_DPI, metadata=metadata)
    return paths


def _bars(report: Report, axes: "mpl.axes.Axes") -> None:
    """Draw the first table's figures side by side, with their deviations."""
    lines = report.tables[0].lines
    groups: dict[str, list[Spread | None]] = {
        "published": [line.published for line in lines],
        "ours, plain": [line.plain for line in lines],
        "ours, secure": [line.secure for line in lines],
    }
    shown = {name: spreads for name, spreads in groups.items() if any(spreads)}
    width = 0.8 / len(shown)
    lows = []
    for group, (name, spreads) in enumerate(shown.items()):
        there = [(place, one) for place, one in enumerate(spreads) if one is not None]
        axes.bar(
            [place + (group - (len(shown) - 1) / 2) * width for place, _ in there],
            [one.mean for _, one in there],
            width,
            yerr=[one.sd or 0.0 for _, one in there],
            label=name,
            error_kw={"elinewidth": 0.8},
        )
        lows += [one.mean - (one.sd or 0.0) for _, one in there]
    axes.set_xticks(range(len(lines)), [line.label for line in lines], rotation=30, ha="right")
    axes.set_ylim(bottom=max(0.0, min(lows) - 0.05))
    axes.legend(frameon=False, ncols=len(shown), loc="upper right")
