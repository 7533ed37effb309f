"""The reproductions' parts: losses, batches, splits, results on disk, reports."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fl.errors import DataError, PlanError
from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.reproduce.arraytask import ArrayTask
from fl.reproduce.datasets import Split, heart, standardized
from fl.reproduce.objectives import Cox, Dense, Logistic, Objective
from fl.reproduce.report import Claim, Curve, Line, Plot, Report, Spread, Table, agrees
from fl.reproduce.runs import Mode, followed, rounds_to
from fl.reproduce.session import Figures, Session, number, series

DRAWS = np.random.default_rng(0)
INPUTS = DRAWS.normal(size=(7, 5))
EVENTS = np.column_stack([DRAWS.integers(0, 2, 7).astype(float), DRAWS.random(7)])


@pytest.mark.parametrize(
    ("objective", "targets"),
    [
        (Logistic(inputs=5), DRAWS.integers(0, 2, 7).astype(float)),
        (Cox(inputs=5), EVENTS),
        (Dense(sizes=(5, 3)), DRAWS.integers(0, 3, 7).astype(float)),
        (Dense(sizes=(5, 4, 3)), DRAWS.integers(0, 3, 7).astype(float)),
    ],
)
def test_gradients_are_those_of_the_losses(objective: Objective, targets: np.ndarray) -> None:
    """Against differences, at a random point."""
    size = sum(int(np.prod(shape)) for shape in objective.shapes.values())
    point = np.random.default_rng(1).normal(size=size)
    assert list(objective.shapes) == sorted(objective.shapes)

    def loss(at: np.ndarray) -> float:
        return objective.loss_sum(at, INPUTS, targets) / len(INPUTS)

    differences = [(loss(point + h) - loss(point - h)) / 2e-6 for h in 1e-6 * np.eye(size)]
    assert objective.gradient(point, INPUTS, targets) == pytest.approx(differences, abs=1e-7)


def test_coxs_loss_is_the_papers_sum() -> None:
    """Row by row: log of the risk set's sum, less the own score, for rows with an event."""
    flat = np.random.default_rng(2).normal(size=6)
    scores = INPUTS @ flat[1:] + flat[0]
    expected = sum(
        np.log(np.exp(scores[EVENTS[:, 1] >= time]).sum()) - score
        for (event, time), score in zip(EVENTS, scores, strict=True)
        if event
    )
    assert Cox(inputs=5).loss_sum(flat, INPUTS, EVENTS) == pytest.approx(expected)


def task(rows: int = 10) -> ArrayTask:
    """A small logistic silo whose first feature tells the rows apart."""
    inputs = np.random.default_rng(3).normal(size=(rows, 3))
    return ArrayTask(Logistic(inputs=3), inputs, (inputs[:, 0] > 0).astype(float))


class Recorder(Logistic):
    """Notes the batches it is asked about."""

    seen: list[list[float]] = []  # noqa: RUF012 (the dataclass has slots; one list will do)

    def gradient(self, flat: np.ndarray, _: np.ndarray, targets: np.ndarray, /) -> np.ndarray:
        self.seen.append(targets.tolist())
        return np.zeros_like(flat)


def test_the_loader_goes_on_between_rounds() -> None:
    """Two rounds of two steps are a pass of 4 + 4 + 2 rows and a new pass's first batch."""
    recorder = Recorder(inputs=1)
    own = ArrayTask(recorder, np.zeros((10, 1)), np.arange(10.0))
    local = LocalPlan(local_steps=2, batch_size=4, learning_rate=0.1)
    model = own.initial_model(0)
    for round_number in (1, 2, 2):
        own.train(model, None, local, 5, round_number)
    first, second, third, fourth, *again = recorder.seen
    assert sorted(first + second + third) == list(range(10))
    assert len(third) == 2
    assert len(fourth) == 4
    assert again == [third, fourth]  # a round trained twice is the same


def test_only_plain_steps_are_taken() -> None:
    """A plan with momentum is refused, not trained as something else."""
    local = LocalPlan(
        local_steps=1, learning_rate=0.1, optimizer="momentum", optimizer_settings={"momentum": 0.9}
    )
    with pytest.raises(PlanError, match="'sgd'"):
        task().train(task().initial_model(0), None, local, 0, 1)


def plan(rounds: int) -> TrainingPlan:
    """FedAvg over three silos."""
    return TrainingPlan(
        task=TaskPlan(name="test"),
        local=LocalPlan(local_steps=2, batch_size=4, learning_rate=0.5),
        rounds=rounds,
        max_silos=3,
    )


def test_runs_are_followed_to_their_target() -> None:
    """Measured every second round, ended by the target; secure and plain alike, bytes counted."""
    silos = {f"silo-{place}": task() for place in range(3)}
    whole = followed(plan(4), silos, Mode.PLAIN, task(50).accuracy_of, every=2)
    assert len(whole.values) == 2
    assert whole.uplink_bytes == 0
    short = followed(
        plan(4), silos, Mode.PLAIN, task(50).accuracy_of, until=lambda value: value > 0
    )
    assert len(short.values) == 1
    secure = followed(plan(4), silos, Mode.SECURE, task(50).accuracy_of, every=2)
    assert secure.uplink_bytes > 0
    assert secure.model["weight"].astype(float) == pytest.approx(
        whole.model["weight"].astype(float), abs=1e-3
    )


def test_crossings_are_interpolated_on_the_monotone_curve() -> None:
    """A dip does not count, and a target never reached is None."""
    assert rounds_to([0.2, 0.6, 0.4, 0.8], 0.7) == pytest.approx(3.5)
    assert rounds_to([0.2, 0.6], 0.4, every=10) == pytest.approx(15)
    assert rounds_to([0.9], 0.7) == 1
    assert rounds_to([0.1, 0.2], 0.7) is None


def session(folder: Path, told: Callable[[str], None] = print) -> Session:
    """A session whose clock stands still."""
    return Session(folder, data=folder, tell=told, clock=lambda: 0.0, seeds=2)


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    """Not after a restart either; other settings and a file cut short are worked out again."""
    done: list[int] = []

    def work() -> Figures:
        done.append(1)
        return {"one": 1.5, "many": [1.0, 2.0]}

    session(tmp_path).figures("key", b"a", work)
    found = session(tmp_path).figures("key", b"a", work)
    assert number(found, "one") == 1.5
    assert series(found, "many") == [1.0, 2.0]
    assert len(done) == 1
    session(tmp_path).figures("key", b"b", work)
    assert len(done) == 2
    (tmp_path / "results" / "key.json").write_text('{"of": "62", "fig')
    session(tmp_path).figures("key", b"b", work)
    assert len(done) == 3
    assert session(tmp_path).kept == 1
    assert list(session(tmp_path).seeds(20, 3)) == [0, 1]
    for read, name in ((number, "many"), (series, "one")):
        with pytest.raises(DataError, match="delete the folder"):
            read(found, name)


def test_nothing_is_kept_of_an_interrupted_result(tmp_path: Path) -> None:
    """The next start works it out."""

    def stopped() -> Figures:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        session(tmp_path).figures("key", b"", stopped)
    assert session(tmp_path).kept == 0


def report(curves: tuple[Curve, ...] = ()) -> Report:
    """A small one."""
    line = Line(
        label="FedAvg",
        published=Spread(mean=0.7, sd=0.01, count=5),
        plain=Spread.of([0.71, 0.72]),
        note="step 0.1",
    )
    return Report(
        name="test",
        setting="a setting",
        tables=(Table(title="Accuracy", lines=(line, Line(label="none"))),),
        claims=(Claim(text="close", holds=True), Claim(text="equal", holds=False)),
        plot=Plot(title="title", x_label="x", y_label="y", curves=curves, level=0.7),
    )


def test_a_report_shows_theirs_beside_ours() -> None:
    """As text and as CSV; one claim that fails is enough."""
    found = report()
    assert not found.holds
    assert "FedAvg  0.7000 ± 0.0100 (5)  0.7150 ± 0.0071 (2)  –" in found.text()
    assert "NO   equal" in found.text()
    header, line, _ = found.csv().splitlines()
    assert header.split(",")[2:5] == ["published_mean", "published_sd", "published_seeds"]
    assert line.split(",")[:5] == ["Accuracy", "FedAvg", "0.7", "0.01", "5"]


def test_agreement_is_twice_the_larger_deviation() -> None:
    """Ours or theirs."""
    theirs = Spread(mean=0.70, sd=0.005)
    assert agrees(theirs, Spread(mean=0.72, sd=0.011))
    assert not agrees(theirs, Spread(mean=0.72, sd=0.009))
    assert not agrees(theirs, Spread(mean=float("nan"), sd=1.0))


def test_plots_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    """Curves with a band, and bars where there are none."""
    pytest.importorskip("matplotlib")
    from fl.reproduce.plots import draw

    curves = (Curve.over_seeds("a", [1, 2], [[0.1, 0.2], [0.3, 0.4]]),)
    assert curves[0].y == pytest.approx([0.2, 0.3])
    for found in (report(curves), report()):
        first = [path.read_bytes() for path in draw(found, tmp_path)]
        assert [path.read_bytes() for path in draw(found, tmp_path)] == first
        assert first[0].startswith(b"\x89PNG")
        assert b"<svg" in first[1]


def test_scales_are_the_training_rows() -> None:
    """Sample deviation; a constant column stays finite."""
    rows = np.array([[1.0, 5.0], [3.0, 5.0]])
    found = standardized(
        Split(inputs=rows, targets=rows, test_inputs=rows[:1], test_targets=rows[:1])
    )
    assert found.inputs[:, 0] == pytest.approx([-(0.5**0.5), 0.5**0.5])
    assert found.test_inputs.tolist() == [[pytest.approx(-(0.5**0.5)), 0.0]]


def test_data_that_are_not_there_are_named(tmp_path: Path) -> None:
    """With the option that says where they are."""
    with pytest.raises(DataError, match="--data-dir must name the folder that holds fed_heart"):
        heart(tmp_path)
