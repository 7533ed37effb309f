"""`secagg stats`: what silos' tables look like together, and which algorithm to start with."""

import hashlib
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from services.cli.options import AsJson, show

if TYPE_CHECKING:
    from fl.queries import Columns, StatisticsQuery, StatisticsResult

app = typer.Typer(
    no_args_is_help=True,
    help="Secure statistics over silos' tables, in this process as `secagg simulate` does it.",
)

Query = Annotated[
    Path,
    typer.Option(
        "--query", "-q", help="The columns, TOML: [[numeric]] and [[categorical]] tables."
    ),
]
Data = Annotated[list[Path], typer.Option("--data", help="One CSV file a silo, three at least.")]
DataOrSilos = Annotated[
    list[Path] | None, typer.Option("--data", help="One CSV file a silo, three at least.")
]
_QUARTILES = (0.25, 0.5, 0.75)


@app.command(
    epilog="Example: secagg stats describe -q columns.toml --data a.csv --data b.csv --data c.csv"
)
def describe(
    query: Query,
    data: DataOrSilos = None,
    *,
    silo: Annotated[
        list[Path] | None,
        typer.Option("--silo", help="Instead of --data: a silo's settings, silo.toml, each."),
    ] = None,
    z: Annotated[
        float | None, typer.Option("--z", help="Noise multiplier: one charged, noised release.")
    ] = None,
    delta: Annotated[float, typer.Option("--delta", help="With --z.")] = 1e-6,
    adjacency: Annotated[
        str, typer.Option("--adjacency", help="With --z: add_remove, zero_out or replace_one.")
    ] = "",
    most_rows: Annotated[
        int, typer.Option("--most-rows", min=1, help="With --z: the most rows of a silo, public.")
    ] = 10_000,
    as_json: AsJson = False,
) -> None:
    """Print counts, means, variances, histograms and quartiles over all silos, from one sum.

    A [[numeric]] table has name, low, high and bins; a [[categorical]] one name and categories;
    docs/algorithms.md has an example.
    With --silo and --z the sum carries noise and every silo's data set is charged for it.
    """
    from services.errors import ConfigError

    asked = _query(query)
    if (data is None) == (silo is None) or (z is not None and silo is None):
        raise ConfigError("expected --data or --silo, one of them; --z goes with --silo")
    if data is not None:
        from fl.survey import ask

        result = ask(asked, _tables(asked, data))
        show(_facts(result), _text(result), as_json=as_json)
        return
    assert silo is not None  # one of the two, see above
    wanted = None if z is None else _Noise(z, delta, adjacency, most_rows)
    result, facts = _ask_silos(asked, silo, wanted)
    words = [f"{name.replace('_', ' ')} {value:.4g}" for name, value in facts.items()]
    show(_facts(result) | facts, "\n".join([*words, _text(result)]), as_json=as_json)


class _Noise(NamedTuple):
    """What a private query says of its noise."""

    z: float
    delta: float
    adjacency: str
    most_rows: int


def _ask_silos(
    query: "StatisticsQuery", settings: list[Path], noise: _Noise | None
) -> "tuple[StatisticsResult, dict[str, float]]":
    """The answer of silos with settings of their own, and what it cost."""
    from dp.plan import Adjacency
    from dp.trust import plan_epsilon
    from fl.private_queries import count_noise, query_plan
    from fl.survey import ask, ask_privately
    from secagg.ids import RunId
    from secagg.rng import SystemRng
    from services.config import SiloConfig
    from services.errors import ConfigError
    from services.settings import load_config
    from services.silo.statistics import (
        AskedQuery,
        asked_silo,
        charge_query,
        require_no_budget,
    )

    silos = [asked_silo(load_config(path, SiloConfig), query) for path in settings]
    tables = {one.name: one.table for one in silos}
    if noise is None:
        require_no_budget(silos)
        return ask(query, tables), {}
    if noise.adjacency not in set(Adjacency):
        raise ConfigError(f"--adjacency: expected one of {', '.join(Adjacency)}")
    plan = query_plan(
        query,
        silos=len(tables),
        z=noise.z,
        delta=noise.delta,
        most_rows=noise.most_rows,
        adjacency=Adjacency(noise.adjacency),
    )
    digest = hashlib.sha256(query.document()).hexdigest()
    charge_query(silos, plan, AskedQuery(query_id=RunId(SystemRng().bytes(16)), digest=digest))
    facts = {"epsilon": plan_epsilon(plan).eps, "std_of_a_count": count_noise(query, plan)}
    return ask_privately(query, tables, plan), facts


@app.command(
    epilog="Example: secagg stats advise -q columns.toml --target outcome --parameters 14 "
    "--data a.csv --data b.csv --data c.csv"
)
def advise(
    query: Query,
    data: Data,
    *,
    target: Annotated[str, typer.Option("--target", help="The label, a categorical column.")],
    parameters: Annotated[int, typer.Option("--parameters", min=1, help="Of the model.")],
    participation: Annotated[
        float, typer.Option("--participation", help="Share of the silos that a round will have.")
    ] = 1.0,
    uplink: Annotated[float, typer.Option("--uplink", help="Of the slowest silo, Mbit/s.")] = 100.0,
    unequal_work: Annotated[
        bool, typer.Option("--unequal-work", help="Silos cannot take equally many local steps.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say which algorithm to start with, and why."""
    from dataclasses import asdict

    from fl.advisor import Circumstances
    from fl.survey import advice

    asked = _query(query)
    known = Circumstances(
        parameters=parameters,
        participation=participation,
        uplink_bits_per_s=uplink * 1e6,
        silos=len(data),
        equal_work=not unequal_work,
    )
    found = advice(asked, _tables(asked, data), known, target=target)
    method = f"{found.algorithm}, μ = {found.proximal}" if found.proximal else found.algorithm
    lines = [f"Start with {method}.", *(f"  {reason}" for reason in found.reasons)]
    show(asdict(found), "\n".join(lines), as_json=as_json)


def _query(path: Path) -> "StatisticsQuery":
    from fl.queries import CategoricalColumn, NumericColumn, StatisticsQuery
    from services.errors import ConfigError

    try:
        content = tomllib.loads(path.read_text("utf-8"))
        unknown = sorted(content.keys() - {"numeric", "categorical"})
        if unknown:
            raise ConfigError(f"{path}: unknown table {unknown[0]!r}; known: numeric, categorical")
        return StatisticsQuery(
            numeric=tuple(NumericColumn(**one) for one in content.get("numeric", [])),
            categorical=tuple(CategoricalColumn(**one) for one in content.get("categorical", [])),
        )
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path}: expected [[numeric]] and [[categorical]]: {error}") from error


def _tables(query: "StatisticsQuery", data: list[Path]) -> "dict[str, Columns]":
    from fl.survey import read_table

    return {f"silo-{place:03}": read_table(query, path) for place, path in enumerate(data, start=1)}


def _facts(result: "StatisticsResult") -> dict[str, object]:
    numeric = {
        name: {
            "count": one.moments.count if one.moments else 0,
            "mean": one.moments.mean if one.moments else None,
            "variance": one.moments.variance if one.moments else None,
            "missing": one.missing,
            "edges": one.edges.tolist(),
            "below": int(one.counts[0]),
            "histogram": one.counts[1:-1].tolist(),
            "above": int(one.counts[-1]),
            "quartiles": [one.quantile(share) for share in _QUARTILES],
            "quantile_error": one.quantile_error,
        }
        for name, one in result.numeric.items()
    }
    categorical = {
        name: {"counts": dict(one.counts), "other": one.other, "missing": one.missing}
        for name, one in result.categorical.items()
    }
    return {"rows": result.rows, "numeric": numeric, "categorical": categorical}


def _text(result: "StatisticsResult") -> str:
    lines = [f"{result.rows} rows"]
    for name, numbers in result.numeric.items():
        lines.append(f"{name}: {numbers.missing} missing")
        if numbers.moments is None:
            continue
        deviation = numbers.moments.variance**0.5
        lines[-1] += f", mean {numbers.moments.mean:.6g}, sd {deviation:.6g}"
        shown = (numbers.quantile(share) for share in _QUARTILES)
        quartiles = ", ".join("beyond the bins" if one is None else f"{one:.4g}" for one in shown)
        lines.append(f"  quartiles {quartiles} (± {numbers.quantile_error:.3g})")
        lines.append(f"  bins {' '.join(map(str, numbers.counts[1:-1]))}")
        lines.append(f"  below {numbers.counts[0]}, above {numbers.counts[-1]}")
    for name, texts in result.categorical.items():
        counts = ", ".join(f"{category} {count}" for category, count in texts.counts.items())
        lines.append(f"{name}: {counts}, other {texts.other}, missing {texts.missing}")
    return "\n".join(lines)
