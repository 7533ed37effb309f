"""The plan of a statistics run: which query, what for, and what noise; and what it comes to.

A statistics query falls under SA1 spec 2.5 (v). Two exact sums over silos that differ by one show
that one's part wherever the queries overlap, and every query holds the number of rows, so all exact
sums are bound to one and the same state (`bound_to`), whatever they ask: silos that were in one
refuse any other over other silos, in this run and in every later one. What is asked stands in the
plan, whose digest each round names.

`describe` is one sum. `advise` is two: the totals, and how far each silo lies from them, which each
computes from totals that it has checked itself, and keeps.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

import numpy as np

from dp.plan import Adjacency
from fl import fields
from fl.advisor import divergence_spec
from fl.errors import PlanError, SpecMismatchError
from fl.plan import TrainingPlan
from fl.privacy import as_settings, privacy_of
from fl.private_queries import query_plan, query_spec, released
from fl.queries import StatisticsQuery, StatisticsResult
from fl.statistics import EXACT_SUMS, IntVector
from secagg.canonical import digest
from secagg.ids import RunId
from secagg.parameters import VectorSpec

_MAX_SILOS: Final = 200

Sums = Mapping[str, IntVector]


class QueryKind(StrEnum):
    """What is asked."""

    DESCRIBE = "describe"
    ADVISE = "advise"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryPlan:
    """What a statistics run sums.

    Attributes:
        kind: what for.
        query: the columns.
        max_silos: n_max; the ring is sized for so many silos.
        target: of an advice, the label: a categorical column of the query; else empty.
        privacy: the privacy plan's document, as `private` makes it; empty for exact sums.
    """

    kind: QueryKind
    query: StatisticsQuery
    max_silos: int
    target: str = ""
    privacy: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what does not go together, and noise that is not what the query needs."""
        if self.kind not in list(QueryKind):
            fields.refuse("kind", ", ".join(QueryKind), self.kind)
        object.__setattr__(self, "kind", QueryKind(self.kind))
        fields.whole("max_silos", self.max_silos, 3, _MAX_SILOS)
        object.__setattr__(self, "privacy", fields.json_copy("privacy", self.privacy))
        labels = {one.name for one in self.query.categorical}
        if self.kind is QueryKind.ADVISE and self.target not in labels:
            raise PlanError(
                f"the query has no categorical column {self.target!r}; add the target to it"
            )
        if self.kind is QueryKind.DESCRIBE and self.target:
            fields.refuse("target", "none for kind describe", self.target)
        if self.privacy:
            self._check_noise()

    def _check_noise(self) -> None:
        if self.kind is QueryKind.ADVISE:
            raise PlanError(
                "advise asks exact sums: its second one, a count a silo, would drown in noise. "
                "Describe with noise instead, and choose by the figures"
            )
        found = privacy_of(self)
        assert found is not None  # the section is there
        if found.cohort_size > self.max_silos:
            fields.refuse("max_silos", f"at least {found.cohort_size}", self.max_silos)
        due = query_plan(
            self.query,
            silos=found.cohort_size,
            z=found.z,
            delta=found.delta,
            most_rows=found.max_units_per_silo,
            adjacency=found.adjacency,
        )
        if due != found:
            raise PlanError("privacy plan: it is not the one that this query's records call for")

    @classmethod
    def private(
        cls,
        query: StatisticsQuery,
        *,
        max_silos: int,
        silos: int,
        z: float,
        delta: float,
        most_rows: int,
        adjacency: Adjacency,
    ) -> "QueryPlan":
        """Return the plan of a noised description; see `fl.private_queries.query_plan`.

        Raises:
            PlanError: privacy.md refuses it.
        """
        privacy = query_plan(
            query, silos=silos, z=z, delta=delta, most_rows=most_rows, adjacency=adjacency
        )
        return cls(
            kind=QueryKind.DESCRIBE,
            query=query,
            max_silos=max_silos,
            privacy=as_settings(privacy),
        )

    @property
    def algorithm(self) -> str:
        """Return what the run is listed as."""
        return self.kind.value

    @property
    def last_round(self) -> int:
        """Return how many sums there are."""
        return 2 if self.kind is QueryKind.ADVISE else 1

    def spec(self, number: int) -> VectorSpec:
        """Return the vector of sum `number`, from 1."""
        fields.whole("round number", number, 1, self.last_round)
        if number > 1:
            return divergence_spec()
        privacy = privacy_of(self)
        if privacy is not None:
            return query_spec(privacy, self.max_silos)
        return self.query.spec(self.max_silos)

    def document(self) -> bytes:
        """Return the plan as canonical JSON."""
        return fields.dump(asdict(self))

    def digest(self) -> bytes:
        """Return the 32 bytes that every round names."""
        return digest("plan", self.document())

    @classmethod
    def parse(cls, document: bytes) -> "QueryPlan":
        """Return the plan of a document that `document` wrote.

        Raises:
            PlanError: not such a document.
        """
        content = _object(document)
        try:
            values = {**content, "query": StatisticsQuery.parse(fields.dump(content["query"]))}
            plan = cls(**values)
        except (KeyError, TypeError) as error:
            raise PlanError(
                "statistics plan: expected kind, query, max_silos, target and privacy; both sides "
                "need the same version"
            ) from error
        if plan.document() != document:
            raise PlanError("statistics plan: the document is not in canonical form")
        return plan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QueryState:
    """What a query has come to: its columns, and their sums so far.

    Attributes:
        query: the columns.
        sums: released so far, in order.
    """

    query: StatisticsQuery
    sums: tuple[Sums, ...] = ()

    def encode(self) -> bytes:
        """Return the state's canonical bytes."""
        sums = [{name: total.tolist() for name, total in one.items()} for one in self.sums]
        return fields.dump({"query": asdict(self.query), "sums": sums})

    @classmethod
    def decode(cls, data: bytes, plan: QueryPlan) -> "QueryState":
        """Return the state that `encode` wrote, of this plan's run.

        Raises:
            SpecMismatchError: it is another query's, or its sums are not what the plan sums.
        """
        try:
            content = json.loads(data)
            sums = tuple(
                {str(name): _integers(total) for name, total in one.items()}
                for one in content["sums"]
            )
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            OverflowError,
            RecursionError,
        ) as error:
            raise SpecMismatchError("the state is not a statistics query's") from error
        state = cls(query=plan.query, sums=sums)
        if state.encode() != data:
            raise SpecMismatchError("the state is not this query's, or not in canonical form")
        if len(sums) > plan.last_round:
            raise SpecMismatchError(f"expected at most {plan.last_round} sums, got {len(sums)}")
        for number, one in enumerate(sums, start=1):
            lengths = {s.name: s.length for s in plan.spec(number).segments}
            if {name: len(total) for name, total in one.items()} != lengths:
                raise SpecMismatchError(f"sum {number} of the state is not one of this query")
        return state

    def with_sum(self, total: Sums) -> "QueryState":
        """Return the state after another sum."""
        return QueryState(query=self.query, sums=(*self.sums, dict(total)))


def bound_to(plan: QueryPlan, run: RunId) -> bytes:
    """Return the state that every sum of a run is bound to: what SA1 spec 2.5 (v) compares.

    Exact sums have one for all queries and runs, the moments of training runs included. A noised
    query is charged wherever it is answered, so its plan waives the rule by name between runs: its
    state is its run's own.
    """
    if plan.privacy:
        return fields.dump({"run": run.hex, "statistics": "noised"})
    return EXACT_SUMS


def result_of(plan: QueryPlan, state: QueryState) -> StatisticsResult:
    """Return what the first sum says.

    Raises:
        SpecMismatchError: there is none yet.
    """
    if not state.sums:
        raise SpecMismatchError("the run has released no sum yet")
    privacy = privacy_of(plan)
    if privacy is None:
        return plan.query.result(state.sums[0])
    return released(plan.query, state.sums[0], privacy)


def encode_result(plan: QueryPlan, state: bytes) -> bytes:
    """Return the file that operators and silos keep of a statistics run: plan and state, JSON."""
    return fields.dump({"plan": json.loads(plan.document()), "state": json.loads(state)})


def decode_result(data: bytes) -> tuple[QueryPlan, QueryState]:
    """Return the plan and the last state of a statistics run's file.

    Raises:
        PlanError, SpecMismatchError: not such a file.
    """
    content = _object(data)
    plan = QueryPlan.parse(fields.dump(content.get("plan")))
    return plan, QueryState.decode(fields.dump(content.get("state")), plan)


def parse_plan(document: bytes) -> TrainingPlan | QueryPlan:
    """Return the plan of a run of either kind.

    Raises:
        PlanError: not a plan's document.
    """
    if document.startswith(b'{"kind":'):  # canonical JSON: the keys are sorted
        return QueryPlan.parse(document)
    return TrainingPlan.parse(document)


def _object(document: bytes) -> dict[str, Any]:
    try:
        content = json.loads(document)
    except (ValueError, RecursionError) as error:
        raise PlanError("statistics plan: expected JSON in UTF-8, got other bytes") from error
    if not isinstance(content, dict):
        raise PlanError("statistics plan: expected an object")
    return content


def _integers(values: object) -> IntVector:
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise SpecMismatchError("the state's sums are not whole numbers")
    return np.array(values, dtype=np.int64)
