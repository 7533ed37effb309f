# ruff: noqa: INP001  # a script run by path, not a package
"""Coverage-guided fuzzing of every decoder with atheris; `make fuzz` runs it for a minute.

Usage: python fuzz/fuzz_decoders.py [libFuzzer options, such as -max_total_time=60]

The first byte chooses the decoder, the rest is what it reads; it starts from the valid encodings
of tests/secagg/encodings.py. A crash is any exception that the decoder's docstring does
not name, or bytes that are read but are not the one encoding of what they say. libFuzzer's own
limits on time (`-timeout`) and memory (`-rss_limit_mb`) apply to each input.
"""

import sys
from pathlib import Path

import atheris

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "build" / "fuzz" / "corpus"
sys.path.insert(0, str(ROOT))
with atheris.instrument_imports(include=["secagg"]):
    from tests.secagg.encodings import check, decoders, seeds

NAMES = sorted(decoders())


def one_input(data: bytes) -> None:
    """Read one input with the decoder that its first byte names."""
    if data:
        check(NAMES[data[0] % len(NAMES)], data[1:])


def main() -> None:
    """Start libFuzzer on the seeds and on what earlier runs have found."""
    CORPUS.mkdir(parents=True, exist_ok=True)
    for number, (name, data) in enumerate(seeds()):
        (CORPUS / f"seed-{number}").write_bytes(bytes([NAMES.index(name)]) + data)
    limits = ["-timeout=10", "-rss_limit_mb=2048", "-max_len=8192"]
    atheris.Setup(
        [*sys.argv, *limits, f"-artifact_prefix={CORPUS.parent}/", str(CORPUS)], one_input
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
