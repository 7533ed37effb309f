"""`python -m bench NAME [--json]`: one benchmark, as a table or as one line of JSON, last.

A benchmark's module is imported when it is asked for: masking and protocol need no gRPC.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Final

Figures = Mapping[str, object]
_MODULES: Final = {
    "masking": "bench.masking",
    "round": "bench.roundtrip",
    "protocol": "bench.protocol",
    "noise": "bench.noise",
    "simulation": "bench.simulation",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the arguments name and print it."""
    sizes = vars(_parser().parse_args(arguments))
    name, as_json = sizes.pop("name"), sizes.pop("json")
    figures: Figures = import_module(_MODULES[name]).measure(**sizes)
    print(json.dumps(figures) if as_json else _table(name, figures))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    names = parser.add_subparsers(dest="name", required=True)
    for name, dim in (("masking", 10_000_000), ("round", 1_000_000)):
        one = names.add_parser(name)
        one.add_argument("--silos", type=int, default=10)
        one.add_argument("--dim", type=int, default=dim, help="parameters of the model")
    names.add_parser("protocol").add_argument(
        "--scale", type=float, default=1.0, help="below 1: fewer silos and shorter vectors"
    )
    names.add_parser("noise").add_argument(
        "--dim", type=int, default=2_000_000, help="samples of each draw"
    )
    names.add_parser("simulation").add_argument("--silos", type=int, default=100)
    for one in names.choices.values():
        one.add_argument("--json", action="store_true", help="one object on one line")
    return parser


def _table(name: str, figures: Figures) -> str:
    rows = [
        (key, f"{value:.4g}" if isinstance(value, float) else str(value))
        for key, value in _flat(figures)
    ]
    width = max(len(key) for key, _ in rows)
    return "\n".join([f"bench {name}", *(f"  {key:<{width}}  {value}" for key, value in rows)])


def _flat(figures: Figures, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Give nested figures under dotted names."""
    for key, value in figures.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


if __name__ == "__main__":
    main()
