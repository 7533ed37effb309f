"""A random adversary on the level of sets: who is in which sum, and what do two sums give away.

The server and the colluding silos lie about everything: they show split views (U1, U2, survivors,
states), choose who goes late, who is asked to unmask or to abandon, and open two rounds of two
attempts on one state, perhaps in a new run. The honest silos follow the rules: thresholds and
floors are `RoundParameters`', what may be opened and submitted is asked of a real `SiloHistory`.
Cryptography is taken to be ideal. What the adversary learns is computed from shares, not from
what the rules intend: a mask is known once t shares of its secret are opened or colluding, and a
sum is released once all its masks are known.

No single honest input may lie in the row space of all released sums (SA1 spec 2.5, 6). Each rule
left out is a negative control: there the same search finds a break.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np
import pytest
from hypothesis import settings

from secagg.errors import ReplayError
from secagg.ids import AttemptId, FederationId, RunId
from secagg.journal import JournalEvent, JournalRecord, SiloHistory, Submission
from secagg.messages import Abandon
from secagg.parameters import RoundParameters, VectorSpec, meta
from secagg.secretbytes import Secret

FEDERATION = FederationId("search")
RUNS = (RunId(b"first-run-of-two"), RunId(b"other-run-of-two"))
# One state, and the same changed in its last bit: other hashes, as good as the same inputs.
STATE, NUDGED = b"s" * 32, b"n" * 32
SPEC = VectorSpec(segments=(meta("x", 1, bound=1),))

Seats = tuple[int, ...]
Prior = tuple[Seats | None, ...]


@dataclass(frozen=True, kw_only=True)
class Size:
    """A roster, how many of it collude, and the n_c that the silos' policies name."""

    silos: int
    colluding: int
    n_c: int


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules of the honest silos; each flag leaves one out.

    Attributes:
        n_c_of_u1: n_c = ⌊(|U1|−1)/3⌋ instead of a number of the roster.
        outsiders_abandon: statements of silos outside U1 count.
        repeats_allowed: rule 2.5 (v) is missing.
        priors_unnamed: each silo knows its own earlier survivors and tells nobody.
        anybody_lifted: earlier survivors may lack whoever is accused, not only who is proven.
    """

    n_c_of_u1: bool = False
    outsiders_abandon: bool = False
    repeats_allowed: bool = False
    priors_unnamed: bool = False
    anybody_lifted: bool = False

    def view_of(self, parameters: RoundParameters, u1: int) -> RoundParameters:
        """The parameters as a silo applies them to this cohort."""
        return replace(parameters, n_c=max(u1 - 1, 0) // 3) if self.n_c_of_u1 else parameters

    def dead(
        self, history: SiloHistory, run: RunId, statements: Iterable[Abandon]
    ) -> tuple[AttemptId, ...]:
        """Open submissions that the statements prove dead."""
        if not self.outsiders_abandon:
            return history.newly_dead(run, statements)
        dead = []
        for attempt in history.open_submissions(run):
            submission = history.submission(attempt)
            assert submission is not None
            spoken = {item.seat for item in statements if item.attempt_id == attempt}
            if len(spoken) >= submission.threshold:
                dead.append(attempt)
        return tuple(dead)

    def prior(self, history: SiloHistory, model: bytes, run: RunId) -> Prior:
        """Survivors that a new submission would repeat."""
        return () if self.repeats_allowed else history.prior("training", model, run)


@dataclass(kw_only=True)
class Setup:
    """One U1 as the silos in `shown` see it; shares are dealt for it.

    Attributes:
        selves, keys: by dealer, how many honest silos have opened a share of b or of a.
    """

    u1: Seats
    shown: Seats
    parameters: RoundParameters
    selves: dict[int, int] = field(default_factory=dict)
    keys: dict[int, int] = field(default_factory=dict)

    @property
    def threshold(self) -> int:
        """T of this cohort."""
        return self.parameters.threshold(len(self.u1))

    def knows(self, opened: dict[int, int], dealer: int, colluders: set[int]) -> bool:
        """Whether t shares of the dealer's secret are opened or colluding."""
        return opened.get(dealer, 0) + len(colluders & set(self.u1)) >= self.threshold


@dataclass(kw_only=True)
class Binding:
    """One view of an attempt: U2 and a state, shown to `members`.

    Attributes:
        uploads: the honest silos whose vector is masked for this view, with the prior they name.
    """

    setup: Setup
    u2: Seats
    model: bytes
    members: Seats
    uploads: dict[int, Seats] = field(default_factory=dict)


class Search:
    """One trial: two rounds of two attempts by one random adversary."""

    def __init__(self, rng: Random, size: Size, rules: Rules) -> None:
        self.rng = rng
        self.rules = rules
        self.size = size
        honest = size.silos - size.colluding
        self.honest = tuple(range(1, honest + 1))
        self.colluders = set(range(honest + 1, size.silos + 1))
        self.histories = {seat: SiloHistory() for seat in self.honest}
        self.statements: list[Abandon] = []
        self.rows: set[Seats] = set()
        # After a result a silo of this run insists on a state: the one it was shown, as a forged
        # result leaves it (a change by a forged result is a limit of the rule, not of the code).
        self.required: dict[tuple[int, RunId], bytes] = {}
        self.split = rng.random() < 0.3
        # A nudged state counts as a repeat within a run; between runs the hash decides.
        self.second_run = RUNS[rng.random() < 0.3]
        self.states = (STATE, STATE, NUDGED) if self.second_run == RUNS[0] else (STATE,)

    def run(self) -> bool:
        """Play; True if a single honest input is isolated."""
        for run, number in ((RUNS[0], 1), (self.second_run, 2)):
            for attempt in (0, 1):
                self._attempt(run, number, attempt)
        return self._isolates()

    def _isolates(self) -> bool:
        if not self.rows:
            return False
        matrix = np.array([[seat in row for seat in self.honest] for row in self.rows], float)
        onto = np.linalg.pinv(matrix) @ matrix
        # e_v is in the row space exactly if its projection onto it is e_v.
        return bool(np.diag(onto).max() > 1 - 1e-9)

    def _some(self, seats: Iterable[int]) -> Seats:
        """The seats without those that the adversary leaves out now: often none, seldom many."""
        spite = self.rng.choice((0.0, 0.0, 0.15, 0.3, 0.6))
        return tuple(s for s in seats if self.rng.random() >= spite)

    def _record(
        self,
        seat: int,
        event: JournalEvent,
        attempt: AttemptId,
        *,
        message: bytes = b"",
        survivors: Seats = (),
        submission: Submission | None = None,
    ) -> None:
        self.histories[seat].apply(
            JournalRecord(
                event=event,
                attempt=attempt,
                message=message,
                survivors=survivors,
                submission=submission,
            )
        )

    def _attempt(self, run: RunId, number: int, attempt: int) -> None:
        parameters = RoundParameters(
            federation=FEDERATION,
            run=run,
            roster_digest=bytes(32),
            kind="training",
            round=number,
            attempt=attempt,
            n_c=self.size.n_c,
            n_orgs=1,
            n_max=self.size.silos,
            spec=SPEC,
            training_plan=bytes(32),
        )
        openers = tuple(s for s in self._some(self.honest) if self._opens(s, parameters))
        bindings = []
        for setup in self._setups(openers, parameters):
            bindings += self._bindings(setup)
        for binding in bindings:
            self._upload(binding, parameters)
            self._close(binding, parameters.attempt_id)
        for seat in openers:  # those that nobody has asked before
            if self.rng.random() < 0.5:
                self._abandon(seat, parameters.attempt_id)
        for binding in bindings:
            self._release(binding)
            self._announce(binding, parameters.attempt_id)

    def _opens(self, seat: int, parameters: RoundParameters) -> bool:
        """A2, with all statements there are."""
        history = self.histories[seat]
        for attempt in self.rules.dead(history, parameters.run, self.statements):
            self._record(seat, JournalEvent.DEAD, attempt)
        try:
            history.check_open(parameters)
        except ReplayError:
            return False
        self._record(seat, JournalEvent.OPENED, parameters.attempt_id)
        return True

    def _setups(self, openers: Seats, parameters: RoundParameters) -> list[Setup]:
        """One U1, or two that are shown to different silos (A3)."""
        second = {s for s in openers if self.split and self.rng.random() < 0.5}
        setups = []
        for shown in ({*openers} - second, second):
            others = {s for s in openers if s not in shown and self.rng.random() < 0.5}
            honest = set(self._some(shown | others))
            u1 = tuple(sorted(honest | set(self._some(self.colluders))))
            seen = self.rules.view_of(parameters, len(u1))
            if shown & honest and len(u1) >= seen.floor(len(u1)):
                setups.append(Setup(u1=u1, shown=tuple(sorted(shown & honest)), parameters=seen))
        return setups

    def _bindings(self, setup: Setup) -> list[Binding]:
        """One U2 and state, or two over the same shares (A4)."""
        second = {s for s in setup.shown if self.split and self.rng.random() < 0.5}
        bindings = []
        for members in ({*setup.shown} - second, second):
            others = {s for s in setup.shown if s not in members and self.rng.random() < 0.5}
            dishonest = self._some(self.colluders & set(setup.u1))
            honest = set(self._some(members | others))
            u2 = tuple(sorted(honest | set(dishonest)))
            if members & honest and len(u2) >= setup.parameters.floor(len(setup.u1)):
                bindings.append(
                    Binding(
                        setup=setup,
                        u2=u2,
                        model=self.rng.choice(self.states),
                        members=tuple(sorted(members & honest)),
                    )
                )
        return bindings

    def _upload(self, binding: Binding, parameters: RoundParameters) -> None:
        """Who may submit and is not made late (2.5 i, v)."""
        attempt = parameters.attempt_id
        in_time = self._some(binding.members)
        for seat in binding.members:
            history = self.histories[seat]
            if self.required.get((seat, parameters.run), binding.model) != binding.model:
                continue  # A5
            prior = self.rules.prior(history, binding.model, parameters.run)
            if (
                history.unmasked_in(parameters.run, parameters.round) is not None
                or None in prior
                or len(prior) > 1
                or seat not in in_time
            ):
                self._record(seat, JournalEvent.LATE, attempt)
                continue
            submission = Submission(
                parameters=binding.setup.parameters,
                model_hash=binding.model,
                binding=bytes(32),
                u1=binding.setup.u1,
                signers=binding.u2,
                threshold=binding.setup.threshold,
                key=Secret(bytes(32)),
            )
            self._record(seat, JournalEvent.SUBMITTED, attempt, submission=submission)
            binding.uploads[seat] = prior[0] if prior and prior[0] is not None else ()

    def _close(self, binding: Binding, attempt: AttemptId) -> None:
        """Show one set of survivors, or two to different members; ask to unmask or to abandon."""
        second = {s for s in binding.members if self.split and self.rng.random() < 0.5}
        for members in ({*binding.members} - second, second):
            survivors = tuple(
                sorted(
                    set(self._some(binding.uploads))
                    | set(self._some(self.colluders & set(binding.u2)))
                )
            )
            signers = [s for s in members if self._signs(s, binding, survivors)]
            for seat in signers:
                self._lift(seat, binding, survivors, attempt)
                self._record(seat, JournalEvent.SIGNED, attempt, survivors=survivors)
            dishonest = self.colluders & set(binding.u2)
            certified = len(signers) + len(dishonest) >= binding.setup.threshold
            # Those that are asked to abandon first open nothing afterwards.
            asked = self._some(members)
            for seat in members:
                if seat not in asked:
                    self._abandon(seat, attempt)
            for seat in set(asked) & set(signers) if certified else ():
                self._unmask(seat, binding, survivors, attempt)

    def _signs(self, seat: int, binding: Binding, survivors: Seats) -> bool:
        """A6."""
        if len(survivors) < binding.setup.parameters.floor(len(binding.setup.u1)):
            return False
        priors = {seat: prior for seat, prior in binding.uploads.items() if seat in survivors}
        if self.rules.priors_unnamed:
            priors = {seat: binding.uploads.get(seat, ())}
        lacking = {one for prior in priors.values() for one in prior} - set(survivors)
        # Of colluders the adversary has every proof it wants, of honest silos none.
        if not (self.rules.anybody_lifted or lacking <= self.colluders):
            return False
        return all(not prior or set(survivors) <= set(prior) for prior in priors.values())

    def _lift(self, seat: int, binding: Binding, survivors: Seats, attempt: AttemptId) -> None:
        """What a silo that signs has been shown, and remembers."""
        uploads = [binding.uploads[one] for one in survivors if one in binding.uploads]
        lacking = {one for prior in uploads for one in prior} - set(survivors)
        if lacking:
            liars = tuple(sorted(lacking))
            self._record(seat, JournalEvent.LIFTED, attempt, message=binding.model, survivors=liars)

    def _unmask(self, seat: int, binding: Binding, survivors: Seats, attempt: AttemptId) -> None:
        """A8, then one share of each dealer."""
        history = self.histories[seat]
        if history.unmasked_in(attempt.run, attempt.round) is not None:
            return
        if seat in binding.uploads and seat not in survivors:
            self._record(seat, JournalEvent.LEFT_OUT, attempt)
        self._record(seat, JournalEvent.UNMASKED, attempt, survivors=survivors)
        for dealer in binding.u2:
            pool = binding.setup.selves if dealer in survivors else binding.setup.keys
            pool[dealer] = pool.get(dealer, 0) + 1

    def _abandon(self, seat: int, attempt: AttemptId) -> None:
        history = self.histories[seat]
        if history.unmasked_in(attempt.run, attempt.round) is not None:
            return
        self._record(seat, JournalEvent.ABANDONED, attempt)
        for speaker in (seat, *self.colluders):  # colluders say it of every attempt
            self.statements.append(
                Abandon(
                    federation=FEDERATION,
                    run=attempt.run,
                    round=attempt.round,
                    attempt=attempt.attempt,
                    seat=speaker,
                )
            )

    def _release(self, binding: Binding) -> None:
        """Which sums of honest inputs the masks that are known lay open."""
        setup = binding.setup
        exposed = {s for s in binding.u2 if setup.knows(setup.keys, s, self.colluders)}
        honest = set(binding.u2) - self.colluders
        readable = {s for s in binding.uploads if setup.knows(setup.selves, s, self.colluders)}
        for seat in readable & exposed:
            self.rows.add((seat,))  # both secrets of one silo
        hidden = honest - exposed
        # Masks between hidden silos cancel in the sum of all of them and nowhere else.
        if hidden and hidden <= readable:
            self.rows.add(tuple(sorted(hidden)))

    def _announce(self, binding: Binding, attempt: AttemptId) -> None:
        """Results reach some of those that have unmasked, true or forged by a colluder."""
        if self.rng.random() < 0.8:
            return
        for seat in binding.members:
            if self.histories[seat].has(attempt, JournalEvent.UNMASKED):
                self._record(seat, JournalEvent.CLOSED, attempt)
                self.required[seat, attempt.run] = binding.model


SIZES = (
    Size(silos=3, colluding=0, n_c=0),
    Size(silos=4, colluding=1, n_c=1),
    Size(silos=5, colluding=1, n_c=1),
    Size(silos=6, colluding=1, n_c=1),
    Size(silos=7, colluding=1, n_c=1),
    Size(silos=7, colluding=2, n_c=2),
)


def first_break(rules: Rules, sizes: tuple[Size, ...], trials: int, *, seed: int) -> int | None:
    """The number of the first trial that isolates an honest input."""
    rng = Random(seed)  # noqa: S311  # a search is repeatable
    for trial in range(trials):
        if Search(rng, sizes[trial % len(sizes)], rules).run():
            return trial
    return None


def released(sizes: tuple[Size, ...], trials: int, *, seed: int) -> list[int]:
    """How many different sums each trial releases under all rules."""
    rng = Random(seed)  # noqa: S311  # a search is repeatable
    counts = []
    for trial in range(trials):
        search = Search(rng, sizes[trial % len(sizes)], Rules())
        search.run()
        counts.append(len(search.rows))
    return counts


def test_the_rules_leave_no_single_honest_input() -> None:
    """With all rules the search finds nothing; sums are released all the same."""
    profile = settings.default
    assert profile is not None
    trials = 300 * profile.max_examples
    assert first_break(Rules(), SIZES, trials, seed=1) is None
    assert sum(count > 0 for count in released(SIZES, 500, seed=1)) > 100


def test_a_silo_may_be_in_two_sums() -> None:
    """The search does reach second releases: the same survivors once more, or other silos."""
    assert max(released(SIZES, 2_000, seed=1)) > 1


@pytest.mark.parametrize(
    "rules",
    [
        Rules(n_c_of_u1=True),
        Rules(outsiders_abandon=True),
        Rules(repeats_allowed=True),
        Rules(priors_unnamed=True),
        Rules(anybody_lifted=True),
    ],
    ids=["n-c-of-u1", "outsiders-abandon", "no-rule-v", "priors-unnamed", "anybody-lifted"],
)
def test_without_a_rule_the_search_finds_a_break(rules: Rules) -> None:
    """Each rule is needed, and the search is able to find what it prevents."""
    assert first_break(rules, SIZES, 60_000, seed=1) is not None
