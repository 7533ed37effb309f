"""`python -m bench noise` at a tiny size: the agreed keys, figures above 0. No time is judged."""

import json

import pytest

from bench.__main__ import main


def test_noise_prints_the_agreed_keys(capsys: pytest.CaptureFixture[str]) -> None:
    """Samples a second for three sigmas, and the machine's AES beside them."""
    main(["noise", "--dim", "1000", "--json"])
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(figures["samples_per_second"]) == ["64", "1024", "20724"]
    assert min(figures["samples_per_second"].values()) > 0
    assert min(figures["table_build_s"].values()) > 0
    assert figures["skellam_samples_per_second"]["64"] > 0
    assert figures["aes_bytes_per_second"] > 0
