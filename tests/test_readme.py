"""The README's program runs as it stands there."""

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parent.parent / "README.md"


def test_the_round_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """It prints the survivors and the exact sum, and is at most 20 lines long."""
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    assert len([line for line in program.splitlines() if line.strip()]) <= 20
    exec(compile(program, "README.md", "exec"), {})  # noqa: S102  # it is our own text
    total = [value * (10 + 10**3 - 4 - 5) for value in range(4)]
    numbers = " ".join(str(value) for value in total)
    printed = capsys.readouterr().out
    assert re.sub(r" +", " ", printed.splitlines()[0]).replace("[ ", "[") == (
        f"(1, 3, 4, 5) [{numbers}]"
    )
    assert printed.splitlines()[1].startswith("4 silos")


def test_the_readme_is_short() -> None:
    """A newcomer reads it in one sitting."""
    assert len(README.read_text("utf-8").splitlines()) < 150
