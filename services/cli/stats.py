"""`secagg stats`: what silos' tables look like together, and which algorithm to start with."""

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.options import AsJson, show
from services.cli.run import OPERATOR_FILE, Operator, Resume, Run, exit_code

if TYPE_CHECKING:
    from fl.advisor import Advice, Circumstances
    from fl.queries import Columns, NumericResult, StatisticsQuery, StatisticsResult
    from fl.query_plan import QueryPlan
    from services.query_config import Advise
    from services.wire.calls import RunStatus

app = typer.Typer(
    no_args_is_help=True,
    help="Secure statistics over silos' tables: a run of its own, with an operator's certificate.",
)

Query = Annotated[
    Path,
    typer.Option(
        "--query", "-q", help="The columns, TOML: [[numeric]] and [[categorical]] tables."
    ),
]
Data = Annotated[
    list[Path] | None,
    typer.Option(
        "--data",
        help="To try it out in this process instead: one CSV file a silo, three at least.",
    ),
]
Called = Annotated[str, typer.Option("--name", help="Of the run, for people.")]
MinSilos = Annotated[
    int | None,
    typer.Option(
        "--min-silos",
        min=3,
        help="Connected silos to wait for; default is all of the roster. Silos refuse the same "
        "query over other silos later on.",
    ),
]
Redundancy = Annotated[
    int, typer.Option("--redundancy", min=0, help="Silos that recompute each part of the sum.")
]
_QUARTILES = (0.25, 0.5, 0.75)


@app.command(epilog="Example: secagg stats describe -q columns.toml --operator operator.toml")
def describe(
    query: Query,
    data: Data = None,
    operator: Operator = OPERATOR_FILE,
    *,
    name: Called = "describe",
    min_silos: MinSilos = None,
    z: Annotated[
        float | None, typer.Option("--z", help="Noise multiplier: one charged, noised release.")
    ] = None,
    delta: Annotated[float, typer.Option("--delta", help="With --z.")] = 1e-6,
    adjacency: Annotated[
        str, typer.Option("--adjacency", help="With --z: add_remove, zero_out or replace_one.")
    ] = "",
    most_rows: Annotated[
        int,
        typer.Option(
            "--most-rows", min=1, help="With --z: the most rows of a silo, by what it declares."
        ),
    ] = 10_000,
    budget: Annotated[
        float | None,
        typer.Option("--budget", help="With --z: epsilon of the run's own ledger, for retries."),
    ] = None,
    redundancy: Redundancy = 0,
    resume: Resume = None,
    as_json: AsJson = False,
) -> None:
    """Print counts, means, variances, histograms and quartiles over all silos, from one sum.

    A [[numeric]] table has name, low, high and bins; a [[categorical]] one name and categories;
    docs/algorithms.md has an example. With --z the sum carries noise, and every silo's data set is
    charged for it; a data set with a budget answers nothing else. Exit codes are those of
    `secagg run watch`.
    """
    from services.errors import ConfigError

    if z is None and (adjacency or budget is not None):
        raise ConfigError("--adjacency and --budget go with --z")
    if z is not None and not adjacency:
        raise ConfigError("--z goes with --adjacency: add_remove, zero_out or replace_one")
    if data is not None:
        if z is not None or resume is not None:
            raise ConfigError("--z and --resume go with a federation, not with --data")
        from fl.survey import ask

        asked = _query(query)
        result = ask(asked, _tables(asked, data))
        show(_facts(result), _text(result), as_json=as_json)
        return
    noise: dict[str, object] = {}
    if z is not None:
        noise = {"z": z, "delta": delta, "adjacency": adjacency, "most_rows": most_rows}
        noise |= {} if budget is None else {"budget": budget}
    parts = {**_run_part(name, min_silos, redundancy), "noise": noise}
    _answer(_document(query, parts), operator, resume, as_json=as_json)


@app.command(
    epilog="Example: secagg stats advise -q columns.toml --target outcome --parameters 14 "
    "--operator operator.toml"
)
def advise(
    query: Query,
    data: Data = None,
    operator: Operator = OPERATOR_FILE,
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
    name: Called = "advise",
    min_silos: MinSilos = None,
    redundancy: Redundancy = 0,
    resume: Resume = None,
    as_json: AsJson = False,
) -> None:
    """Say which algorithm to start with, and why, from two exact sums."""
    advise_part = {
        "target": target,
        "parameters": parameters,
        "participation": float(participation),
        "uplink": float(uplink),
        "equal_work": not unequal_work,
    }
    if data is not None:
        from fl.survey import advice
        from services.query_config import Advise

        asked = _query(query)
        known = _circumstances(Advise.model_validate(advise_part), silos=len(data))
        _show_advice(advice(asked, _tables(asked, data), known, target=target), as_json=as_json)
        return
    parts = {**_run_part(name, min_silos, redundancy), "advise": advise_part}
    _answer(_document(query, parts), operator, resume, as_json=as_json)


@app.command("show", epilog="Example: secagg stats show 0f3a… --operator operator.toml")
def show_result(run: Run, operator: Operator = OPERATOR_FILE, as_json: AsJson = False) -> None:
    """Print what a statistics run has found, once more."""
    document, status, data = asyncio.run(_fetch(operator, run))
    _show(document, status, data, as_json=as_json)


def _answer(document: bytes, operator: Path, resume: str | None, *, as_json: bool) -> None:
    """Start a statistics run, follow it to its end, and print what it has found."""
    status, data = asyncio.run(_ask(document, operator, resume))
    if data is None:
        raise typer.Exit(exit_code(status.summary.state))
    _show(document, status, data, as_json=as_json)


async def _ask(
    document: bytes, operator: Path, resume: str | None
) -> "tuple[RunStatus, bytes | None]":
    from rich.console import Console

    from services.cli.display import RunDisplay, state_line
    from services.cli.operator import fetch_released, follow, run_client, run_to_start
    from services.wire.calls import RunState, StartCall

    status = None
    async with run_client(operator) as client:
        run = await run_to_start(client, resume)
        await client.start_run(StartCall(run=run, config=document))
        typer.echo(f"run {run.hex}", err=True)
        with RunDisplay(Console(stderr=True)) as display:
            async for status in follow(client, run, display.tell):
                display.update(status)
        assert status is not None  # `follow` gives at least the final status
        typer.echo(state_line(status.summary), err=True)
        if status.summary.state is not RunState.FINISHED:
            return status, None
        return (await client.show_run(run)).status, await fetch_released(client, run)


async def _fetch(operator: Path, run: str) -> "tuple[bytes, RunStatus, bytes]":
    from services.cli.operator import fetch_released, find_run, run_client
    from services.errors import ConfigError
    from services.wire.calls import RunState

    async with run_client(operator) as client:
        found = await find_run(client, run)
        reply = await client.show_run(found)
        if reply.status.summary.state is not RunState.FINISHED:
            raise ConfigError(f"run {found} has found nothing: {reply.status.summary.state}")
        return reply.config, reply.status, await fetch_released(client, found)


def _show(document: bytes, status: "RunStatus", data: bytes, *, as_json: bool) -> None:
    """Print a finished run's result: the advice where one was asked for."""
    from fl.advisor import advise as judged
    from fl.query_plan import decode_result, result_of
    from services.errors import ConfigError
    from services.plans import read_run
    from services.query_config import QueryConfig

    config = read_run(document, source=f"run {status.summary.run}")
    if not isinstance(config, QueryConfig):
        raise ConfigError(
            f"run {status.summary.run} has trained a model", hint="see `secagg run show`"
        )
    plan, state = decode_result(data)
    if config.advise is not None:
        last = status.rounds[-1]
        known = _circumstances(config.advise, silos=len(last.survivors))
        _show_advice(judged(state.sums[-1], known), as_json=as_json)
        return
    metrics = status.rounds[-1].metrics
    facts: dict[str, object] = {
        "run": status.summary.run.hex,
        "silos": len(status.rounds[-1].survivors),
    }
    facts |= {key: metrics[key] for key in ("std_of_a_count",) if key in metrics}
    words = [f"{key.replace('_', ' ')} {_figure(value)}" for key, value in facts.items()]
    promised, told = _promise(plan)
    result = result_of(plan, state)
    lines = [*words, *told, _text(result)]
    show(_facts(result) | facts | promised, "\n".join(lines), as_json=as_json)


def _promise(plan: "QueryPlan") -> tuple[dict[str, object], list[str]]:
    """Return what a noised query promises, for programs and for people; nothing of exact sums.

    An epsilon is always shown with whose participation it hides, between which neighbors, at which
    delta and against whom (privacy.md 5).
    """
    from dp.trust import trust_lines
    from fl.privacy import privacy_of

    privacy = privacy_of(plan)
    if privacy is None:
        return {}, []
    lines = trust_lines(privacy)
    trust = {
        "nobody_colludes": lines.nobody_colludes.eps,
        "coordinator_colludes": lines.coordinator_colludes.eps,
        "aggregation_fails": lines.aggregation_fails.eps,
    }
    facts: dict[str, object] = {
        "unit": lines.unit.value,
        "adjacency": lines.adjacency.value,
        "delta": lines.delta,
        "epsilon": lines.enforced.eps,
        "trust": trust,
    }
    return facts, [
        f"privacy of one {lines.unit}, adjacency {lines.adjacency}, delta {lines.delta:g}:",
        f"  epsilon {trust['nobody_colludes']:.4g} against everybody who sees the sum",
        f"  epsilon {trust['coordinator_colludes']:.4g} against the coordinator with "
        f"{privacy.n_c} colluding silos (enforced, charged)",
        f"  epsilon {trust['aggregation_fails']:.4g} if secure aggregation failed wholly",
    ]


def _figure(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _show_advice(found: "Advice", *, as_json: bool) -> None:
    from dataclasses import asdict

    method = f"{found.algorithm}, μ = {found.proximal}" if found.proximal else found.algorithm
    lines = [f"Start with {method}.", *(f"  {reason}" for reason in found.reasons)]
    show(asdict(found), "\n".join(lines), as_json=as_json)


def _circumstances(settings: "Advise", *, silos: int) -> "Circumstances":
    from fl.advisor import Circumstances

    return Circumstances(
        parameters=settings.parameters,
        participation=settings.participation,
        uplink_bits_per_s=settings.uplink * 1e6,
        silos=silos,
        equal_work=settings.equal_work,
    )


def _run_part(name: str, min_silos: int | None, redundancy: int) -> dict[str, dict[str, object]]:
    run: dict[str, object] = {"name": name}
    run |= {} if min_silos is None else {"min_silos": min_silos}
    return {"run": run, "recompute": {"redundancy": redundancy} if redundancy else {}}


def _document(query: Path, parts: dict[str, dict[str, object]]) -> bytes:
    """Return the run's settings: columns.toml, and what the options say as tables behind it.

    Raises:
        ConfigError: they cannot be used; found here, not where the run would begin.
    """
    from services.plans import plan_of, read_run

    _query(query)
    lines = [query.read_text("utf-8"), "# from the options of `secagg stats`"]
    for table, values in parts.items():
        if values:
            lines.append(f"[{table}]")
            lines += [
                f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()
            ]
    document = ("\n".join(lines) + "\n").encode()
    config = read_run(document, source=str(query))
    plan_of(config, max_silos=max(config.run.min_silos or 0, 3))
    return document


def _query(path: Path) -> "StatisticsQuery":
    from services.plans import build_query
    from services.query_config import Columns
    from services.settings import load_config

    return build_query(load_config(path, Columns))


def _tables(query: "StatisticsQuery", data: list[Path]) -> "dict[str, Columns]":
    from fl.queries import read_table

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
        lines.append(f"  bins {_bins(numbers)}")
        lines.append(f"  below {numbers.counts[0]}, above {numbers.counts[-1]}")
    for name, texts in result.categorical.items():
        counts = ", ".join(f"{category} {count}" for category, count in texts.counts.items())
        lines.append(f"{name}: {counts}, other {texts.other}, missing {texts.missing}")
    return "\n".join(lines)


def _bins(numbers: "NumericResult") -> str:
    """Each bin with its edges; the last one holds its upper edge, too."""
    edges = [f"{edge:.6g}" for edge in numbers.edges]
    ends = [")"] * (len(edges) - 2) + ["]"]
    return ", ".join(
        f"[{low}, {high}{end} {count}"
        for low, high, end, count in zip(
            edges[:-1], edges[1:], ends, numbers.counts[1:-1], strict=True
        )
    )
