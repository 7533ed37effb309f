"""What a run has released: the file that the operator and every silo keep, the same bytes."""

from typing import Final

from fl.modelfile import ModelFile, encode_model
from fl.plan import TrainingPlan
from fl.query_plan import QueryPlan, encode_result
from fl.rounds import RunPlan
from fl.state import MODEL, PREPROCESS, State, decode_state
from secagg.messages import MAX_STATE_BYTES

MODEL_FILE: Final = "model.safetensors"
STATISTICS_FILE: Final = "statistics.json"


def released_name(plan: RunPlan) -> str:
    """What the file is called."""
    return STATISTICS_FILE if isinstance(plan, QueryPlan) else MODEL_FILE


def released_bytes(plan: RunPlan, state: bytes) -> bytes:
    """The file of a run's newest state: its model, or the sums of a statistics run."""
    if isinstance(plan, QueryPlan):
        return encode_result(plan, state)
    assert isinstance(plan, TrainingPlan)  # there are two kinds
    return encode_model(_model_of(plan, decode_state(state, MAX_STATE_BYTES)))


def _model_of(plan: TrainingPlan, state: State) -> ModelFile:
    return ModelFile(
        tensors=_below(state, MODEL),
        task=plan.task.name,
        settings=plan.task.settings,
        preprocess={
            name: values.astype("float64") for name, values in _below(state, PREPROCESS).items()
        },
        plan_digest=plan.digest(),
    )


def _below(state: State, prefix: str) -> State:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in state.items()
        if name.startswith(prefix)
    }
