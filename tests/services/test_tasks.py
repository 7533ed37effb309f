"""Which task a silo serves, and under which unit."""

from pathlib import Path

import pytest

from fl.errors import PlanError
from services.config import SiloConfig
from services.plans import build_plan
from services.run_config import RunConfig
from services.settings import parse_config
from services.silo.tasks import build_task

RUN = """
[run]
name = "r"
rounds = 2
min_silos = 3
[local]
steps = 1
learning_rate = 0.1
[task]
name = "tabular"
model = "logistic"
[task.target]
name = "sick"
classes = ["no", "yes"]
[[task.features]]
name = "a"
kind = "numeric"
[privacy]
mode = "{mode}"
adjacency = "zero_out"
clip = 1.0
z = 2.0
delta = 1e-5
max_units_per_silo = 50
"""
SILO = """
coordinator = "127.0.0.1:1"
directory = "keys"
storage = "storage"
[data]
file = "rows.csv"
[privacy]
data_set = "cohort"
unit = "patient"
adjacency = "zero_out"
epsilon = 4.0
delta = 1e-5
persons = 20
most_units = 20
records_per_unit = {rows}
"""


@pytest.mark.parametrize(
    ("mode", "rows", "is_fine"), [("patient", 1, True), ("patient", 3, False), ("isrl", 3, True)]
)
def test_a_row_is_no_patient_where_patients_have_several(
    tmp_path: Path, mode: str, rows: int, is_fine: bool
) -> None:
    """Booked as one unit, three rows of one patient would spend three times what is charged."""
    table = ["a,sick", *(f"{row % 7},{'yes' if row % 2 else 'no'}" for row in range(40))]
    (tmp_path / "rows.csv").write_text("\n".join(table) + "\n", encoding="utf-8")
    run = parse_config(RUN.format(mode=mode).encode(), RunConfig, source="r", base=tmp_path)
    silo = parse_config(SILO.format(rows=rows).encode(), SiloConfig, source="s", base=tmp_path)
    plan = build_plan(run, max_silos=3)
    if is_fine:
        assert build_task(plan, silo).n_examples == 40
        return
    with pytest.raises(PlanError, match="up to 3 rows"):
        build_task(plan, silo)
