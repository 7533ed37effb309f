"""How long a run rests between attempts of one round."""

from fl.rounds import MAX_ATTEMPTS
from secagg.testing import SeededRng
from services.coordinator.run import rest_s


def test_the_first_retry_is_free_and_the_others_come_ever_later() -> None:
    """Each rest is between half of its bound and the bound, which doubles; all fit in a minute."""
    rests = [
        [rest_s(failures, SeededRng(str(seed))) for seed in range(50)]
        for failures in range(1, MAX_ATTEMPTS)
    ]
    assert set(rests[0]) == {0.0}
    for bound, found in zip((5.0, 10.0, 20.0), rests[1:], strict=True):
        assert bound / 2 <= min(found) < 0.6 * bound
        assert 0.9 * bound < max(found) <= bound
