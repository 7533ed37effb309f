"""A run under a privacy plan, for tests of ledgers: its federation, plan, rounds and silos."""

from datetime import UTC, datetime
from pathlib import Path

from dp.plan import Adjacency, Mode, PrivacyPlan, Unit
from fl.pipeline import vector_spec
from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.privacy import as_settings
from secagg.parameters import RoundParameters
from secagg.testing import make_federation, make_parameters
from services.config import DataSetBudget
from services.ledger.parties import Party
from services.observe.logs import get_logger
from services.silo.ledger import SiloLedgers

NOW = "2026-11-30T12:00:00Z"


def now() -> datetime:
    """A clock that stands still, at NOW."""
    return datetime(2026, 11, 30, 12, tzinfo=UTC)


def budget(**changes: object) -> DataSetBudget:
    """A silo's budget: of the plan's rounds at z = 2 one costs 1.99, two 2.94."""
    fields: dict[str, object] = {
        "data_set": "cohort",
        "unit": "silo",
        "adjacency": "zero_out",
        "epsilon": 3.0,
        "delta": 1e-5,
        "persons": 40,
    }
    return DataSetBudget.model_validate(fields | changes)


class PrivateRun:
    """Silos whose whole contribution is hidden, z = 2, one coordinate."""

    def __init__(self, *, silos: int, seed: int, rounds: int) -> None:
        self.federation = make_federation(silos, seed=seed)
        self.roster = self.federation.roster
        self.plan = PrivacyPlan(
            unit=Unit.SILO,
            adjacency=Adjacency.ZERO_OUT,
            mode=Mode.SILO,
            clip=1.0,
            z=2.0,
            rounds=rounds,
            delta=1e-5,
            dimension=1,
            cohort_size=silos,
            denominator=float(silos),
            n_c=1,
            h_dp=2,
        )
        self.training = TrainingPlan(
            task=TaskPlan(name="tests:task"),
            local=LocalPlan(local_steps=1, learning_rate=0.1),
            rounds=rounds,
            max_silos=silos,
            metrics=False,
            max_refreshes=0,
            privacy=as_settings(self.plan),
        )

    def parameters(self, number: int = 1, attempt: int = 0) -> RoundParameters:
        """Of a round under the plan."""
        return make_parameters(
            self.roster,
            vector_spec(self.training, number, 1),
            round=number,
            attempt=attempt,
            n_max=self.plan.cohort_size,
            training_plan=self.training.digest(),
            dp=self.plan.to_bytes(),
            h_dp=self.plan.h_dp,
        )

    def silo(self, folder: Path, seat: int, settings: DataSetBudget) -> SiloLedgers:
        """A silo's ledgers; another call is another process on the same folder."""
        return SiloLedgers(
            budget_settings=settings,
            folder=folder,
            party=Party(self.roster.seat(seat).silo.name, self.federation.identities[seat]),
            roster=lambda: self.roster,
            now=now,
            log=get_logger("silo"),
            agreed=lambda _: (1, 2, 3),
        )
