"""`python -m dp.verify LEDGER --keys KEYS`: is this ledger whole, and are its epsilons right?

For an auditor with the ledger, the public keys and nothing else: no torch, no service, no network.
The reader (`dp.offline`) and the formulas (`dp.recount`) are written a second time, and what is
composed is recomputed here with dp-accounting. Exit code 0: everything holds. 1: something does
not; each finding names its entry. 2: nothing could be verified: a file or a key cannot be read, the
file holds no entry of a ledger, or dp-accounting is missing.
"""

import argparse
import json
import logging
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from dp.inspection import Inspection, VerifyReport
from dp.offline import Findings, Keys, check_heads, check_signatures, is_entry, read_entries
from dp.recount import Recount

_RDP_SLACK: Final = 1.001
_PLD_SLACK: Final = 0.02


class DpAccounting:
    """The second accountant, imported when it is needed."""

    def __init__(self) -> None:
        """Load dp-accounting.

        Raises:
            ImportError: it is not installed; the extra `verify` brings it.
        """
        import dp_accounting  # noqa: PLC0415 # a second to import, and an extra

        # It logs a line for every order that does not converge.
        logging.getLogger("absl").setLevel(logging.ERROR)
        self._library = dp_accounting

    def gaussian_epsilon(self, mu: float, delta: float) -> float:
        """ε(δ) of a Gaussian mechanism with sensitivity over std mu."""
        return float(self._library.get_epsilon_gaussian(1.0 / mu, delta))

    def poisson_rdp(self, q: float, z: float, order: int) -> float:
        """One Poisson-sampled release at one whole order.

        The accountant tells epsilon only, so its conversion is undone; at so small a delta none of
        its shortcuts applies.
        """
        delta = 1e-30
        accountant = self._library.rdp.RdpAccountant(orders=[float(order)])
        accountant.compose(self._event(q, z))
        epsilon = float(accountant.get_epsilon(delta))
        return epsilon + math.log(delta * order) / (order - 1) - math.log1p(-1.0 / order)

    def poisson_bounds(self, q: float, z: float, count: int, delta: float) -> tuple[float, float]:
        """What a right epsilon lies between: a little below PLD, a little above RDP.

        RDP's fractional orders are over-estimated here, so no symmetric band would do.
        """
        event = self._event(q, z)
        upper = self._library.rdp.RdpAccountant().compose(event, count).get_epsilon(delta)
        interval = max(1e-4, 1e-5 * upper)
        pld = self._library.pld.PLDAccountant(value_discretization_interval=interval)
        lower = pld.compose(event, count).get_epsilon(delta)
        return float(lower) - _PLD_SLACK, float(upper) * _RDP_SLACK

    def _event(self, q: float, z: float) -> object:
        gaussian = self._library.GaussianDpEvent(z)
        return self._library.PoissonSampledDpEvent(q, gaussian)


def verify_ledger(lines: Iterable[bytes], keys: Keys, heads: Iterable[bytes] = ()) -> VerifyReport:
    """Check a ledger.

    Args:
        lines: its lines, without line feeds.
        keys: raw Ed25519 public keys by name, one or several, from signed rosters.
        heads: heads that peers have signed, one canonical JSON object each.

    Raises:
        ImportError: dp-accounting is not installed.
    """
    found = Findings()
    entries = read_entries(lines, found)
    ring = check_signatures(entries, keys, found)
    compared = check_heads(entries, heads, ring, found)
    report = VerifyReport(entries=len(entries), findings=found)
    if entries:
        report.figures.append(f"entries: {len(entries)}, head {entries[-1]['entry_hash']}")
        report.figures.append(f"heads of peers compared: {compared}")
        Inspection(entries, ring, Recount(DpAccounting()), report).run()
    return report


def ledger_lines(path: Path) -> list[bytes]:
    """Read a ledger's lines; that one of them is broken is for the findings, all of them is not.

    Raises:
        OSError: it cannot be read.
        ValueError: the file is no ledger, not even a damaged one.
    """
    lines = _lines(path)
    if not any(is_entry(line) for line in lines):
        raise ValueError(f"{path} is not a ledger: expected a JSON entry on each line, found none")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m dp.verify", description=__doc__)
    parser.add_argument("ledger", type=Path, help="the ledger: one JSON entry a line")
    parser.add_argument(
        "--keys",
        type=Path,
        required=True,
        help='a JSON object {"name": "public key in hex"}, or lists of keys, oldest first',
    )
    parser.add_argument("--heads", type=Path, help="heads that peers have signed, one a line")
    options = parser.parse_args(arguments)
    try:
        lines = ledger_lines(options.ledger)
        keys = read_keys(options.keys)
        heads = _lines(options.heads) if options.heads else []
        report = verify_ledger(lines, keys, heads)
    except (OSError, ValueError) as error:
        return _say(2, f"not verified: {error}")
    except ImportError:
        return _say(2, "not verified: dp-accounting is missing; install secagg[verify]")
    except Exception as error:  # noqa: BLE001 # 1 would say that something was found
        return _say(2, f"not verified: {type(error).__name__}: {error}")
    for figure in report.figures:
        _say(0, figure)
    for finding in report.findings.items:
        _say(1, f"FAIL entry {finding.seq}: {finding.text}")
    return _say(0 if report.ok else 1, "verified" if report.ok else "NOT verified")


def _lines(path: Path) -> list[bytes]:
    """The lines of a file; a last one without a line feed was cut while it was written."""
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        data += b"\n"
    return data.split(b"\n")[:-1]


def read_keys(path: Path) -> dict[str, list[bytes]]:
    """Public keys by name: in hex, one or a list of all that signed rosters listed, oldest first.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds something else.
    """
    try:
        data = json.loads(path.read_bytes())
    except RecursionError as error:
        raise ValueError("keys: nested too deeply") from error
    found: dict[str, list[bytes]] = {}
    for name, given in data.items() if isinstance(data, dict) else [("", None)]:
        for text in given if isinstance(given, list) else [given]:
            if not isinstance(text, str) or len(text) != 64:
                raise ValueError("keys: expected a JSON object of names and 32-byte keys in hex")
            found.setdefault(name, []).append(bytes.fromhex(text))
    return found


def _say(code: int, text: str) -> int:
    # A ledger's own words end no line here and need no terminal that can show them.
    sys.stdout.write("".join(one if " " <= one <= "~" else ascii(one)[1:-1] for one in text) + "\n")
    return code


if __name__ == "__main__":  # pragma: no cover # a test runs it, in a process of its own
    sys.exit(main())
