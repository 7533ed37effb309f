"""The benchmarks at tiny sizes: they run, and what they print can be true. No time is judged."""

import json
from collections.abc import Mapping

import pytest

from bench.__main__ import main
from bench.crowd import Crowd
from bench.rehearsal import Stage


def _figures(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    main([*arguments, "--json"])
    last = capsys.readouterr().out.splitlines()[-1]
    figures = json.loads(last)
    assert isinstance(figures, dict)
    return figures


def _numbers(figures: Mapping[str, object]) -> list[float]:
    found: list[float] = []
    for value in figures.values():
        if isinstance(value, dict):
            found += _numbers(value)
        elif isinstance(value, int | float):
            found.append(value)
    return found


def test_masking_prints_the_agreed_keys(capsys: pytest.CaptureFixture[str]) -> None:
    """The ratios are those of the figures beside them."""
    figures = _figures(capsys, "masking", "--silos", "4", "--dim", "70000")
    masks, limit = figures["ns_per_coordinate_seed"], figures["aes_limit_ns"]
    path = figures["silo_ns_per_coordinate"]
    assert isinstance(masks, float)
    assert isinstance(limit, float)
    assert isinstance(path, float)
    assert min(_numbers(figures)) > 0
    assert figures["fraction_of_limit"] == pytest.approx(limit / masks)
    assert figures["silo_over_masks"] == pytest.approx(path / (4 * masks))


def test_protocol_prints_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    """Key sharing, unmasking with drops, the pool, the paper's setting, and the yardsticks."""
    figures = _figures(capsys, "protocol", "--scale", "0.01")
    assert set(figures) == {
        "aes_limit_ns",
        "primitives",
        "key_sharing",
        "unmasking",
        "thread_pool",
        "bonawitz_2017",
        "expansion",
    }
    assert all(number > 0 for number in _numbers({**figures, "key_sharing": {}}))
    sharing, paper = figures["key_sharing"], figures["bonawitz_2017"]
    assert isinstance(sharing, dict)
    assert isinstance(paper, dict)
    assert sharing["signature_checks"] == 2 * sharing["silos"]
    assert paper["ring_bits"] == 24
    for drops in (0, 10, 30):
        times = dict(paper[f"server_drops_{drops}_s"])
        assert times.pop("total") == pytest.approx(sum(times.values()))


def test_simulation_prints_the_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the two times beside it."""
    figures = _figures(capsys, "simulation", "--silos", "3")
    plain, secure = figures["plain_s"], figures["secure_s"]
    assert isinstance(plain, float)
    assert isinstance(secure, float)
    assert min(_numbers(figures)) > 0
    assert figures["secure_over_plain"] == pytest.approx(secure / plain)


@pytest.mark.parametrize(("drop_share", "seeds"), [(0.0, 7), (0.15, 12), (0.3, 15)])
def test_a_rehearsal_takes_off_as_many_masks_as_it_says(drop_share: float, seeds: int) -> None:
    """One self mask a survivor, and one pairwise mask for each dropout at each survivor.

    The rehearsal itself raises if the sum is not the survivors'.
    """
    found = Stage(Crowd(silos=7, dim=50, value_bits=16), drop_share=drop_share).play()
    assert found.seeds == seeds
    assert set(found.silo_s) == {"advertise", "share", "mask", "survivors", "unmask", "result"}
    assert set(found.server_s) == {"advertise", "share", "mask", "survivors", "unmask", "open"}


def test_people_get_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """One figure a line."""
    main(["masking", "--silos", "3", "--dim", "100"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "bench masking"
    assert any(line.split() == ["silos", "3"] for line in lines)


@pytest.mark.e2e
def test_a_round_on_loopback_counts_its_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    """Four silos: 16 value bits travel as 18, and tags and counts come on top."""
    figures = _figures(capsys, "round", "--silos", "4", "--dim", "64000")
    per_parameter, control = figures["bytes_per_parameter"], figures["control_bytes"]
    assert isinstance(per_parameter, float)
    assert isinstance(control, int)
    assert 18 / 8 < per_parameter < 18 / 8 + 0.01
    assert 0 < control < 64000
    phases = figures["phase_seconds"]
    assert isinstance(phases, dict)
    assert set(phases) >= {"advertise", "share", "mask", "survivors", "unmask"}
