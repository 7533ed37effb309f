"""The demo's last screen: what was learned, what it cost, and what the coordinator saw."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.table import Table

from secagg.ids import RunId
from secagg.intake import masked_name
from services.demo.comparison import POOLED, Score
from services.demo.data import HOSPITALS
from services.demo.federation import COORDINATOR, LocalFederation
from services.storage.blobs import FileVectorStore
from services.wire.calls import Phase, RoundReport

_SHOWN_BYTES: Final = 16
_PHASES: Final = (
    Phase.ADVERTISE,
    Phase.SHARE,
    Phase.MASK,
    Phase.SURVIVORS,
    Phase.UNMASK,
    Phase.CLOSED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedSample:
    """The beginning of one hospital's masked vector, as the coordinator stored it."""

    silo: str
    nbytes: int
    beginning: str


def masked_samples(
    federation: LocalFederation, run: RunId, last: RoundReport
) -> list[MaskedSample]:
    """Look at what the last round left in the coordinator's own folder."""
    folder = federation.storage(COORDINATOR) / "runs" / run.hex / "attempts"
    store = FileVectorStore(folder / f"{last.round}-{last.attempts - 1}")
    samples = []
    for seat in last.survivors:
        chunks = range(store.chunks(masked_name(seat)))
        data = b"".join(store.read(masked_name(seat), chunk) for chunk in chunks)
        sample = MaskedSample(
            silo=HOSPITALS[seat - 1], nbytes=len(data), beginning=data[:_SHOWN_BYTES].hex(" ", 2)
        )
        samples.append(sample)
    store.close()
    return samples


def print_all(
    console: Console,
    *,
    scores: Sequence[Score],
    reports: Mapping[str, Sequence[RoundReport]],
    samples: Sequence[MaskedSample],
) -> None:
    """Print the three tables."""
    console.print(_scores(scores))
    console.print(_costs(reports))
    console.print(_seen(samples, list(reports.values())[-1][-1]))


def _scores(scores: Sequence[Score]) -> Table:
    table = Table(title="Test part: patients of no hospital. Loss: on all hospitals' rows together")
    table.add_column("training")
    for name in ("rounds", "test AUC", "test accuracy", "training loss", "gap to pooled"):
        table.add_column(name, justify="right")
    pooled = next(one.training_loss for one in scores if one.name == POOLED)
    for one in scores:
        gap = one.training_loss - pooled
        table.add_row(
            one.name,
            str(one.rounds),
            f"{one.auc:.4f}",
            f"{one.accuracy:.4f}",
            f"{one.training_loss:.5f}",
            "" if one.name == POOLED else f"{gap:+.5f}",
        )
    return table


def _costs(reports: Mapping[str, Sequence[RoundReport]]) -> Table:
    table = Table(title="Mean cost of a round at the coordinator, all silos together")
    table.add_column("phase")
    for algorithm in reports:
        table.add_column(f"{algorithm}: s", justify="right")
        table.add_column("KiB in", justify="right")
        table.add_column("KiB out", justify="right")
    for phase in _PHASES:
        row = ["open the sum" if phase is Phase.CLOSED else phase.value]
        for entries in reports.values():
            costs = [cost for entry in entries for cost in entry.costs if cost.phase is phase]
            count = max(len(entries), 1)
            row += [
                f"{sum(cost.duration_s for cost in costs) / count:.3f}",
                f"{sum(cost.received_bytes for cost in costs) / count / 1024:.1f}",
                f"{sum(cost.sent_bytes for cost in costs) / count / 1024:.1f}",
            ]
        table.add_row(*row)
    return table


def _seen(samples: Sequence[MaskedSample], last: RoundReport) -> Table:
    figures = ", ".join(
        f"{name} {last.metrics[name]:.5g}"
        for name in ("examples", "loss", "accuracy")
        if name in last.metrics
    )
    table = Table(
        title="What the coordinator saw in the last round",
        caption=f"and, opened together by the silos, one sum over {len(last.survivors)} of them: "
        f"{figures}, and the update's sum",
    )
    table.add_column("from")
    table.add_column("bytes", justify="right")
    table.add_column("masked vector, uniform to whoever lacks the masks")
    for sample in samples:
        table.add_row(sample.silo, str(sample.nbytes), f"{sample.beginning} …")
    return table
