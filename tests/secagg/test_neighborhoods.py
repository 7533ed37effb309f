"""Who counts for whom in a sparse graph: a ring of six, too few for the rule and quick to check."""

import pytest

from secagg.agreement import check_sharers
from secagg.errors import CohortRefusedError
from secagg.graph import Graph
from secagg.intake import Intake
from secagg.messages import Boxes, DistantRoot, Share
from secagg.testing import MemoryStore
from tests.adversary.stage import Stage

RING = Graph(ring=(1, 2, 3, 4, 5, 6), reach=1, threshold=2)
# Of silo 1's neighbors, 6 has dealt nothing; 4 has, and is none of them.
DEALERS = (1, 2, 4)


@pytest.fixture(scope="module")
def stage() -> Stage:
    """Six silos that have dealt their shares."""
    stage = Stage(6)
    stage.deliver()
    return stage


@pytest.fixture
def intake(stage: Stage) -> Intake:
    """The server's, after shares of these dealers."""
    intake = Intake(stage.parameters, roster=stage.roster, cohort=stage.cohort, store=MemoryStore())
    intake.shares = {seat: stage.last(seat, Share) for seat in DEALERS}
    intake._graph = RING
    return intake


def test_near_are_neighbors_that_dealt(stage: Stage, intake: Intake) -> None:
    """At both ends the same."""
    view = stage.silos[1]._view
    roots, graph = view.share_roots, view._graph
    view.share_roots, view._graph = {seat: roots[seat] for seat in DEALERS}, RING
    assert view.near == intake.near(1) == (1, 2)
    view.share_roots, view._graph = roots, graph


def test_each_neighborhood_must_have_answered(intake: Intake) -> None:
    """T answers in all are not enough, nor are t neighbors that are silent."""
    assert not intake.is_enough({2, 6})
    assert not intake.is_enough({1, 2, 6})
    assert not intake.is_enough({1, 4, 5, 6})
    assert intake.is_enough({1, 2, 4, 5})


def test_boxes_come_from_neighbors_alone(stage: Stage) -> None:
    """The others of U2 are named by their share root."""
    u2 = (1, 2, 3, 4, 6)
    near = tuple(stage.delivery(dealer, 1) for dealer in (1, 2, 6))
    far = tuple(DistantRoot(dealer=seat, root=stage.last(seat, Share).root) for seat in (3, 4))
    own = stage.last(1, Share).root

    def check(message: Boxes) -> dict[int, bytes]:
        return check_sharers(
            message,
            own,
            seat=1,
            holders=RING.holders(1),
            u1=stage.cohort,
            parameters=stage.parameters,
            roster=stage.roster,
        )

    roots = check(Boxes(deliveries=near, distant=far))
    assert roots == {seat: stage.last(seat, Share).root for seat in u2}
    (first, *rest), third = far, stage.delivery(3, 1)
    for message in (
        Boxes(deliveries=(near[0], near[1], third, near[2]), distant=tuple(rest)),
        Boxes(
            deliveries=near[:2],
            distant=(first, *rest, DistantRoot(dealer=6, root=stage.last(6, Share).root)),
        ),
    ):
        with pytest.raises(CohortRefusedError, match="boxes come from the neighbors"):
            check(message)
