"""A whole round's view where silos are the liars: theirs, and all that reached the server."""

from collections.abc import Mapping

from secagg.intake import masked_name
from secagg.messages import MaskedInput, Message, ShareKind, Unmask
from secagg.ring import IntVector
from secagg.testing import RoundHarness
from tests.adversary.view import View


class Watch:
    """Looks over the shoulders of the server and of some silos from now on.

    Args:
        harness: of a round that has not begun.
        liars: silos that share their secrets with the server.
    """

    def __init__(self, harness: RoundHarness, *liars: int) -> None:
        self.view = View(spec=harness.server.parameters.wire_spec, corrupted=set(liars))
        self._harness = harness
        self._tamper = harness._to_server
        harness._to_server = self._see

    def _see(self, seat: int, message: Message) -> Message | None:
        setup = self._harness.server._intake.setup
        if seat in self.view.corrupted and setup:  # as long as the secrets are there
            own = self._harness.silos[seat]._own
            for kind, secret in ((ShareKind.KEY, own.a), (ShareKind.SELF, own.b)):
                if secret:
                    self.view.see_secret(setup, seat, kind, secret.reveal())
            for dealer, payload in own.held.items():
                self.view.see_share(setup, dealer, ShareKind.KEY, seat, payload.share_a)
                self.view.see_share(setup, dealer, ShareKind.SELF, seat, payload.share_b)
        return message if self._tamper is None else self._tamper(seat, message)

    def assert_hidden(self, inputs: Mapping[int, Mapping[str, IntVector]]) -> None:
        """Nothing of what they hold leads to an honest input; the round is over."""
        assert self.leaks(inputs) == []

    def leaks(self, inputs: Mapping[int, Mapping[str, IntVector]]) -> list[str]:
        """The ways in which an honest input follows from what they hold."""
        intake, outcome = self._harness.server._intake, self._harness.outcome
        setup = intake.setup
        if not setup:
            return []
        self.view.see_keys(setup, intake.advertises, intake.graph.threshold)
        for seat, message in outcome.received:
            if isinstance(message, MaskedInput) and seat in intake.masked:
                store, name = outcome.server_store, masked_name(seat)
                self.view.see_upload(setup, message.binding, seat, store, name)
            elif isinstance(message, Unmask):
                self.view.see_openings(setup, message)
        if outcome.aggregate is not None:
            self.view.see_sum(setup, "the sum", outcome.aggregate.values)
        return self.view.search({(setup, seat): values for seat, values in inputs.items()})
