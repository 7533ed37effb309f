"""A run's newest state as the model file that operators and silos keep."""

from pathlib import Path

from fl.modelfile import ModelFile, encode_model, save_model
from fl.plan import TrainingPlan
from fl.state import MODEL, PREPROCESS, State


def write_released(path: Path, plan: TrainingPlan, state: State) -> None:
    """Write the state's model with all that is needed to use it; the same bytes everywhere."""
    save_model(path, _model_of(plan, state))


def released_bytes(plan: TrainingPlan, state: State) -> bytes:
    """What `write_released` writes."""
    return encode_model(_model_of(plan, state))


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
