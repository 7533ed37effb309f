"""The model that a run of processes must have ended with: the same silos, no network, no crash."""

from collections.abc import Callable, Sequence

import numpy as np

from fl.participant import RunParticipant
from fl.plan import TrainingPlan
from fl.ports import LocalTask
from fl.rounds import RoundReport as TrainingReport
from fl.rounds import RoundRequest
from fl.run import TrainingRun
from fl.testing import DictMemory
from secagg.effects import Aggregate
from secagg.ids import RunId
from secagg.parameters import RoundParameters
from secagg.rng import SystemRng
from secagg.testing import make_federation, make_parameters
from services.demo.federation import LocalFederation
from services.plans import build_plan
from services.released import released_bytes
from services.run_config import RunConfig
from services.settings import parse_config
from services.silo.memory import StoredMemory
from services.storage.silo import SiloStore
from services.wire.calls import RoundReport


def replayed_model(
    federation: LocalFederation,
    *,
    run: RunId,
    config: str,
    reports: Sequence[RoundReport],
    make_task: Callable[[int], LocalTask],
) -> bytes:
    """The model file of a run without noise: integers, summed over the recorded survivors.

    Args:
        federation: whose processes have ended; its silos keep the secrets of their rounding.
        run: its id, which the rounding coins depend on.
        config: run.toml's text.
        reports: of its rounds, say who is in each sum.
        make_task: what silo number 1, 2, … trains.
    """
    names = dict(enumerate(federation.silos, start=1))
    settings = parse_config(config.encode(), RunConfig, source="run.toml", base=federation.home)
    plan = build_plan(settings, max_silos=len(names))
    tasks = {seat: make_task(seat) for seat in names}
    training = TrainingRun(plan, model=tasks[1].initial_model(plan.seed), names=names)
    silos = {
        seat: RunParticipant(
            plan,
            run=run,
            seat=seat,
            names=names,
            task=tasks[seat],
            memory=_memory(federation, name, run),
            rng=SystemRng(),
        )
        for seat, name in names.items()
    }
    for report in reports:
        request = training.next()
        assert isinstance(request, RoundRequest)
        parameters = _parameters(request, run, plan, len(names))
        parts = [silos[seat].contribute(parameters, request.state) for seat in report.survivors]
        sums = {
            segment.name: np.sum([part[segment.name] for part in parts], axis=0)
            for segment in request.spec.segments
        }
        aggregate = Aggregate(
            values=sums,
            survivors=report.survivors,
            cohort=tuple(names),
            parameters=parameters,
            state_hash=request.state_hash,
        )
        made = training.receive(aggregate)
        assert isinstance(made, TrainingReport), made
        for seat in report.survivors:
            silos[seat].settle(aggregate, request.state)
    return released_bytes(plan, training.state)


def _memory(federation: LocalFederation, name: str, run: RunId) -> DictMemory:
    """A new memory with nothing but the secret that the silo's rounding coins come from."""
    store = SiloStore(federation.storage(name))
    key = f"{run.hex}/secret"
    secret = StoredMemory(store).read(key)
    store.close()
    assert secret is not None  # it has taken part
    memory = DictMemory()
    memory.write({key: secret})
    return memory


def _parameters(
    request: RoundRequest, run: RunId, plan: TrainingPlan, silos: int
) -> RoundParameters:
    """Of the round, as far as training reads them."""
    return make_parameters(
        make_federation(silos).roster,
        request.spec,
        run=run,
        round=request.number,
        kind=request.kind.value,
        training_plan=plan.digest(),
        n_max=plan.max_silos,
    )
