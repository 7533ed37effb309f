"""Settings files: TOML in, frozen models out, and errors that a person can act on.

An unknown key is an error with a suggestion, also when it stands in the wrong table. Values are
taken strictly: "3" is not 3. Relative paths count from the file's own folder, so that a command
means the same from everywhere. Nothing secret is ever in these files: keys lie in files of their
own, which the settings name.
"""

import difflib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeVar, get_args
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from secagg.errors import ParameterError
from secagg.policy import MAX_LEDGER_WINDOW, SiloPolicy
from services.errors import ConfigError

if TYPE_CHECKING:
    from dp.account import Account

_MAX_BYTES: Final = 1024 * 1024
_FACTORY: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):([0-9]{1,5})")

Model = TypeVar("Model", bound=BaseModel)


def _from_base(value: object, info: ValidationInfo) -> object:
    base = (info.context or {}).get("base")
    return Path(base) / value if isinstance(value, str) and isinstance(base, Path) else value


def _check_address(value: object) -> str:
    match = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if match is None or not 0 <= int(match[2]) <= 65535:
        raise ValueError('an address such as "127.0.0.1:8443" or "[::1]:8443"')
    return match[0]


def _check_task(value: object) -> str:
    if isinstance(value, str) and (value == "tabular" or _FACTORY.fullmatch(value)):
        return value
    raise ValueError('"tabular" or "package.module:factory"')


class _SecretValueError(ValueError):
    """The value is wrong, and not to be shown."""


def _check_database(value: str) -> str:
    if urlsplit(value).password is not None:
        raise _SecretValueError("no password in the URL: put it into ~/.pgpass or PGPASSWORD")
    return value


FilePath = Annotated[Path, Strict(strict=False), BeforeValidator(_from_base)]
Address = Annotated[str, BeforeValidator(_check_address)]
Database = Annotated[str, AfterValidator(_check_database)]
Seconds = Annotated[float, Field(gt=0, le=7 * 24 * 3600)]
TaskName = Annotated[str, BeforeValidator(_check_task)]
Table = dict[str, object]
T = TypeVar("T")
Many = Annotated[tuple[T, ...], Strict(strict=False)]


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Log(_Settings):
    """How a process logs; `auto` is for people on a terminal and JSON elsewhere."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "console", "json"] = "auto"


class Deadlines(_Settings):
    """How long each phase of a round may take, in seconds; `mask_s` includes local training.

    `registration_s` is how long a run waits for enough silos to be connected before it fails,
    `silent_s` how long a silo may say nothing before nothing more of it is awaited in a round. In
    a run whose sums are recomputed, `closed_s` is how long silos may take to ask, and then to look.
    """

    registration_s: Seconds = 300.0
    advertise_s: Seconds = 30.0
    share_s: Seconds = 30.0
    mask_s: Seconds = 600.0
    survivors_s: Seconds = 30.0
    unmask_s: Seconds = 30.0
    closed_s: Seconds = 60.0
    silent_s: Annotated[float, Field(ge=6, le=600)] = 6.0


class Limits(_Settings):
    """How much the coordinator takes, and how much it keeps.

    Attributes:
        state_bytes: of the largest model state.
        free_bytes: that a round leaves free on the disk; it does not begin otherwise.
        ended_runs: runs that have ended and are kept with their models; the oldest go first.
    """

    state_bytes: Annotated[int, Field(ge=1024)] = 4 * 1024**3
    free_bytes: Annotated[int, Field(ge=0)] = 64 * 1024**2
    ended_runs: Annotated[int, Field(ge=1)] = 1000


class CoordinatorConfig(_Settings):
    """coordinator.toml.

    Attributes:
        listen: the address to bind; port 0 lets the system choose.
        directory: keys, certificate, roster and trust file, as `secagg authority` gave them.
        storage: runs, models and vectors; made if it is not there.
        database: postgresql://USER@HOST/NAME instead of a file in `storage`; then a second
            coordinator with the same settings stands by, on a storage folder that both can reach.
        roster: another place for the roster file; default is roster.json in `directory`.
        metrics: where Prometheus and a supervisor may ask over plain HTTP; a loopback address.
    """

    listen: Address = "127.0.0.1:8443"
    directory: FilePath
    storage: FilePath
    database: Database = ""
    roster: FilePath | None = None
    metrics: Address | None = None
    deadlines: Deadlines = Deadlines()
    limits: Limits = Limits()
    log: Log = Log()

    @property
    def roster_file(self) -> Path:
        """Where the roster lies."""
        return self.roster or self.directory / "roster.json"


class Data(_Settings):
    """The silo's own table, a CSV file in UTF-8."""

    file: FilePath


Digests = Many[Annotated[str, Field(pattern="^[0-9a-f]{64}$")]]


class Policy(_Settings):
    """What this silo insists on, whatever a coordinator asks; it can only tighten.

    The keys are those of `secagg.policy.SiloPolicy`, which says what each is for.

    Attributes:
        n_c: colluding seats to be safe against; unset means a third of the roster.
        training_plans: digests of the only training plans to take part in, 64 hexadecimal digits
            each; unset means any plan whose task this silo serves.
        privacy_plans, first_states: likewise, of privacy plans and of states to start from.
    """

    n_c: Annotated[int, Field(ge=0)] | None = None
    h_min: Annotated[int, Field(ge=2)] = 2
    h_dp: Annotated[int, Field(ge=0)] = 0
    n_min: Annotated[int, Field(ge=2)] = 3
    n_orgs: Annotated[int, Field(ge=1)] = 3
    suites: Many[int] = (1,)
    modes: Many[Literal["malicious", "semi-honest"]] = ("malicious",)
    min_value_bits: Annotated[int, Field(ge=4, le=48)] = 4
    max_value_bits: Annotated[int, Field(ge=4, le=48)] = 32
    max_ring_bits: Annotated[int, Field(ge=5, le=48)] = 48
    training_plans: Digests | None = None
    privacy_plans: Digests | None = None
    first_states: Digests | None = None
    max_state_bytes: Annotated[int, Field(ge=1024)] = 4 * 1024**3 - 1024
    public_coefficients: bool = False
    ledger_window: Annotated[int, Field(ge=0, le=MAX_LEDGER_WINDOW)] = 0
    ledger_min_change: Annotated[int, Field(ge=0)] = 0
    max_redundancy: Annotated[int, Field(ge=0)] = 0
    min_redundancy: Annotated[int, Field(ge=0)] = 0
    own_chunks: Annotated[int, Field(ge=0)] | None = None

    def silo_policy(self) -> SiloPolicy:
        """Return the policy in the protocol's own terms.

        Raises:
            ConfigError: the protocol knows a rule that these settings break.
        """
        try:
            return SiloPolicy(
                n_c=self.n_c,
                h_min=self.h_min,
                h_dp=self.h_dp,
                n_min=self.n_min,
                n_orgs=self.n_orgs,
                suites=frozenset(self.suites),
                modes=frozenset(self.modes),
                min_value_bits=self.min_value_bits,
                max_value_bits=self.max_value_bits,
                max_ring_bits=self.max_ring_bits,
                training_plans=_digests(self.training_plans),
                privacy_plans=_digests(self.privacy_plans),
                first_states=_digests(self.first_states),
                max_state_bytes=self.max_state_bytes,
                public_coefficients=self.public_coefficients,
                ledger_window=self.ledger_window,
                ledger_min_change=self.ledger_min_change,
                max_redundancy=self.max_redundancy,
                min_redundancy=self.min_redundancy,
                own_chunks=self.own_chunks,
            )
        except ParameterError as error:
            raise ConfigError(f"[policy]: {error}", keys=("policy",)) from error


def _digests(pinned: tuple[str, ...] | None) -> frozenset[bytes] | None:
    return None if pinned is None else frozenset(map(bytes.fromhex, pinned))


class DataSetBudget(_Settings):
    """What the data set behind this silo's task may spend, over all runs and federations.

    Attributes:
        data_set: its name; data sets that share persons share a name.
        unit, adjacency: whose participation is hidden, and what makes neighbors; never changed.
        epsilon, delta: the limit on the enforced line.
        filter, order: how what was spent is read: "gdp" where every unit takes part in every
            round, "rdp" at one whole order otherwise.
        local_epsilon, run_epsilon, year_epsilon: further limits: if secure aggregation fails, for
            each run, for each calendar year.
        records_per_unit: the most records one patient has; converts plans of the unit record.
        persons: N behind the data; delta must be below 1/N. It never leaves the silo.
        ledgers: folder of the data set's ledger, the same for every process on this data set.
        disjoint_from: names of this silo's other data sets that share no person with this one. A
            new name beside an old one is refused without it, and the declaration is signed.
    """

    data_set: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    unit: Literal["record", "patient", "silo"]
    adjacency: Literal["add_remove", "zero_out", "replace_one"]
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    delta: Annotated[float, Field(gt=0, lt=1)]
    persons: Annotated[int, Field(ge=1)]
    filter: Literal["gdp", "rdp"] = "gdp"
    order: Annotated[int, Field(ge=2)] | None = None
    local_epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    run_epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    year_epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    records_per_unit: Annotated[int, Field(ge=1)] = 1
    ledgers: FilePath | None = None
    disjoint_from: Many[str] = ()

    def account(self) -> "Account":
        """Return the budget in the ledger's own terms.

        Raises:
            ConfigError: the ledger knows a rule that these settings break.
        """
        from dp.account import Account
        from dp.errors import PrivacyError
        from dp.filters import Filter, FilterKind
        from dp.plan import Adjacency, Unit

        try:
            rule = Filter(kind=FilterKind(self.filter), delta=self.delta, order=self.order)
            return Account(
                data_set=self.data_set,
                unit=Unit(self.unit),
                adjacency=Adjacency(self.adjacency),
                filter=rule,
                epsilon=self.epsilon,
                local_epsilon=self.local_epsilon,
                run_epsilon=self.run_epsilon,
                year_epsilon=self.year_epsilon,
                records_per_unit=self.records_per_unit,
            )
        except PrivacyError as error:
            raise ConfigError(f"[privacy]: {error}", keys=("privacy",)) from error


class SiloConfig(_Settings):
    """silo.toml.

    Attributes:
        coordinator: its address; the host must be one of the names in its certificate.
        directory: keys, certificate, roster and trust file, as `secagg authority` gave them.
        storage: journal and memory of this silo; made if it is not there.
        task: what this silo trains: "tabular" with [data], or an own "package.module:factory".
        settings: passed to an own factory as they are.
        privacy: the budget of the data set; without it, runs with a privacy plan are refused.
        proxy: whether to obey http_proxy and https_proxy of the environment.
        metrics: where Prometheus and a supervisor may ask over plain HTTP; a loopback address.
        linger_s: how long to stay in a round that goes on when told to stop.
        free_bytes: that a round leaves free on the disk; this silo sits it out otherwise.
    """

    coordinator: Address
    directory: FilePath
    storage: FilePath
    task: TaskName = "tabular"
    data: Data | None = None
    settings: Table = Field(default_factory=dict)
    policy: Policy = Policy()
    privacy: DataSetBudget | None = None
    proxy: bool = False
    metrics: Address | None = None
    linger_s: Annotated[float, Field(ge=0, le=3600)] = 20.0
    free_bytes: Annotated[int, Field(ge=0)] = 64 * 1024**2
    log: Log = Log()

    @model_validator(mode="after")
    def _check_data(self) -> "SiloConfig":
        if (self.task == "tabular") != (self.data is not None):
            raise ValueError(
                '[data] file = "…" exactly if task = "tabular"; an own task reads its data itself'
            )
        return self


class OperatorConfig(_Settings):
    """operator.toml: how `secagg run` reaches the coordinator."""

    coordinator: Address
    directory: FilePath
    proxy: bool = False


class Run(_Settings):
    """What a run is called and how long it goes on.

    Attributes:
        min_silos: connected silos to wait for before the first round.
        seed: of the initial model and of every local shuffling.
        metrics: whether loss and accuracy ride in the sum: the silos' means, or over all rows with
            hidden weights.
        auc_bins: with metrics: score bins for an AUC in every round, which count rows; 0 for none.
        concordance: with metrics: whether the task's pairs for a C-index are counted.
        max_refreshes: rounds that may be inserted to renew lost control variates.
        patience, least_gain: end the run after so many rounds whose loss gains no more than that.
    """

    name: Annotated[str, Field(min_length=1, max_length=128)]
    rounds: Annotated[int, Field(ge=1, le=100_000)]
    min_silos: Annotated[int, Field(ge=3)] = 3
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    metrics: bool = True
    auc_bins: Annotated[int, Field(ge=0, le=10_000)] = 0
    concordance: bool = False
    max_refreshes: Annotated[int, Field(ge=0, le=100_000)] = 8
    patience: Annotated[int, Field(ge=0, le=100_000)] = 0
    least_gain: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


class Schedule(_Settings):
    """A factor on a step size from round to round; see fl.schedules."""

    curve: Literal["constant", "exponential", "steps", "cosine"] = "constant"
    factor: Annotated[float, Field(gt=0, le=1)] = 1.0
    at: Many[Annotated[int, Field(ge=1)]] = ()


class Algorithm(_Settings):
    """Which algorithm: one of fl.algorithms, or an installed aggregation rule.

    Attributes:
        option: SCAFFOLD's way to renew its control variate.
        settings: the algorithm's other ones, such as q, beta1, tau, weight_rate or variate_every.
        personal: patterns of parameter names that stay at the silos, such as "*bn*".
    """

    name: Annotated[str, Field(min_length=1, max_length=128)] = "fedavg"
    option: Literal["I", "II"] | None = None
    server_learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    schedule: Schedule = Schedule()
    settings: Table = Field(default_factory=dict)
    personal: Many[Annotated[str, Field(min_length=1)]] = ()

    @field_validator("option")
    @classmethod
    def _check_option(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("name") != "scaffold":
            raise ValueError('no option, except with name = "scaffold"')
        return value


class Local(_Settings):
    """Local training; batch_size 0 means all rows.

    Attributes:
        steps: at every silo, or the most where `work` says otherwise.
        optimizer: "sgd", "momentum", or an installed one, with its settings.
        proximal: μ of fedprox, and of fednova with a proximal term.
        work: who sets a silo's steps: "fixed", "declared" (by silo, in `silo_steps`), "drawn" (from
            `least_steps` on, by the seed), "own" (each silo for itself).
    """

    steps: Annotated[int, Field(ge=1, le=1_000_000)]
    batch_size: Annotated[int, Field(ge=0)] = 32
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    schedule: Schedule = Schedule()
    optimizer: Annotated[str, Field(min_length=1)] = "sgd"
    optimizer_settings: Table = Field(default_factory=dict)
    proximal: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    work: Literal["fixed", "declared", "drawn", "own"] = "fixed"
    least_steps: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    silo_steps: dict[str, Annotated[int, Field(ge=1, le=1_000_000)]] = Field(default_factory=dict)


class Participation(_Settings):
    """Which silos a round invites: "all", "uniform", "fixed" cohorts, or an installed sampler."""

    sampler: Annotated[str, Field(min_length=1)] = "all"
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    minimum: Annotated[int, Field(ge=3, le=200)] = 3
    settings: Table = Field(default_factory=dict)


class Weights(_Settings):
    """How silos count: alike, by public classes in (0, 1], or by row counts hidden in the sum.

    Hidden means within one round: two sums whose survivors differ by one silo show its count.

    Attributes:
        n_cap: with "hidden": row counts above it count as it.
        declared: with "declared": each silo's class by its name.
    """

    kind: Literal["uniform", "declared", "hidden"] = "uniform"
    n_cap: Annotated[int, Field(ge=1, lt=2**32)] | None = None
    declared: dict[str, Annotated[float, Field(gt=0, le=1)]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_kind(self) -> "Weights":
        if (self.kind == "hidden") != (self.n_cap is not None):
            raise ValueError('n_cap exactly if kind = "hidden"')
        if (self.kind == "declared") != bool(self.declared):
            raise ValueError('a [weights.declared] table exactly if kind = "declared"')
        return self


class Task(_Settings):
    """What is learned; for "tabular" also the feature schema that every silo's file must fit.

    Attributes:
        features, target: see the feature schema; both are parts of the training plan.
        standardize: whether a first round sums means and variances of numeric features; unset
            means yes for "tabular" and no for an own task.
        settings: for an own "package.module:factory", passed to it as they are.
    """

    name: TaskName = "tabular"
    model: Literal["logistic", "mlp"] = "logistic"
    hidden: Many[Annotated[int, Field(ge=1, le=65536)]] = ()
    standardize: bool | None = None
    features: Many[Table] = ()
    target: Table = Field(default_factory=dict)
    settings: Table = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_parts(self) -> "Task":
        if self.name == "tabular":
            if not self.features or not self.target:
                raise ValueError('[[task.features]] and [task.target] with name = "tabular"')
            if self.settings:
                raise ValueError('no [task.settings] with name = "tabular"')
            if (self.model == "mlp") != bool(self.hidden):
                raise ValueError('hidden = [width, …] exactly if model = "mlp"')
        elif self.features or self.target or self.hidden:
            raise ValueError("only [task.settings] with an own task")
        return self


class Encoding(_Settings):
    """Bits a coordinate before summing; in the first round the range is a guess and takes more.

    Attributes:
        rotate, block, kept, feedback: see fl.compression.
    """

    value_bits: Annotated[int, Field(ge=4, le=32)] = 16
    first_value_bits: Annotated[int, Field(ge=4, le=32)] = 24
    rotate: bool = False
    block: Annotated[int, Field(ge=0, le=2**24)] = 0
    kept: Annotated[float, Field(gt=0, le=1)] = 1.0
    feedback: bool = True


class AdaptiveClipping(_Settings):
    """A clip norm that follows a quantile of the units' norms, released with noise."""

    count_noise_std: Annotated[float, Field(gt=0)]
    clip_min: Annotated[float, Field(gt=0)]
    clip_max: Annotated[float, Field(gt=0)]
    learning_rate: Annotated[float, Field(gt=0)] = 0.2
    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.5


class NoisedMetrics(_Settings):
    """Loss and accuracy of every round with noise, drawn on the same budget (docs/privacy.md).

    Attributes:
        loss_cap: a unit's loss counts from 0 to this, a public constant.
        z: noise multiplier of the metrics alone; none in isrl, which takes one more noised step.
    """

    loss_cap: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    z: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class Privacy(_Settings):
    """What a run promises (docs/privacy.md); give epsilon, or z itself.

    Attributes:
        mode: who clips what, and where the noise is.
        unit: whose participation is hidden; follows from the mode where it leaves no choice.
        adjacency: what makes two data sets neighbors; never guessed.
        clip: C, the clip norm.
        epsilon, delta: the promise over all rounds.
        z: noise multiplier, instead of epsilon.
        q: sampling rate of records or patients within a silo.
        cohort: silos planned for a round; default is run.min_silos.
        units: records or patients in all silos together, as declared.
        max_units_per_silo: the most that one silo has.
        max_silos_per_unit: in how many silos one patient may be.
        denominator: what a noised sum is divided by; default follows from the above.
        n_c, h_dp: colluding silos, and honest shares that the noise is divided by.
        dimension: trained parameters; needed with an own task.
        metrics: release each round's loss and accuracy, noised; off by default.
        budget: epsilon that the run's own ledger allows; default is the promise, which leaves no
            room for a failed attempt whose charge does not come back.
    """

    mode: Literal["central", "silo", "fedsgd", "patient", "isrl"]
    adjacency: Literal["add_remove", "zero_out", "replace_one"]
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    delta: Annotated[float, Field(gt=0, lt=1)]
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    z: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    unit: Literal["record", "patient", "silo"] | None = None
    q: Annotated[float, Field(gt=0, le=1)] = 1.0
    cohort: Annotated[int, Field(ge=2)] | None = None
    units: Annotated[int, Field(ge=1)] | None = None
    max_units_per_silo: Annotated[int, Field(ge=1)] = 1
    max_silos_per_unit: Annotated[int, Field(ge=1)] = 1
    denominator: Annotated[float, Field(gt=0)] | None = None
    n_c: Annotated[int, Field(ge=0)] | None = None
    h_dp: Annotated[int, Field(ge=0)] | None = None
    dimension: Annotated[int, Field(ge=1)] | None = None
    adaptive: AdaptiveClipping | None = None
    metrics: NoisedMetrics | None = None
    grid_bound: Annotated[float, Field(gt=0)] | None = None
    noise: Literal["gaussian", "skellam"] = "gaussian"
    strict: bool = False
    allow_low_utility: bool = False
    budget: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None

    @model_validator(mode="after")
    def _check_target(self) -> "Privacy":
        if (self.epsilon is None) == (self.z is None):
            raise ValueError("epsilon or z, one of them")
        return self


class Recompute(_Settings):
    """Whether silos compute parts of every sum again, to prove a wrong one to others.

    Attributes:
        redundancy: silos a chunk; 0 for none. Whoever recomputes sees what the coordinator sees,
            so it counts toward n_c, and each silo's policy has to allow it (`max_redundancy`).
    """

    redundancy: Annotated[int, Field(ge=0, le=200)] = 0


class Simulation(_Settings):
    """How `secagg simulate` deals one table to silos; real runs have no use for it.

    Attributes:
        silos, partition, similarity, shards, alpha, least: see fl.partition.
        column: with "column": of the table; each of its values is a silo.
        colluding: silos that the policies assume to collude; a third by default.
    """

    silos: Annotated[int, Field(ge=3, le=1000)] = 10
    partition: Literal["iid", "similarity", "shards", "dirichlet", "quantity", "column"] = "iid"
    similarity: Annotated[float, Field(ge=0, le=1)] = 0.0
    shards: Annotated[int, Field(ge=1, le=1000)] = 2
    alpha: Annotated[float, Field(gt=0)] = 0.5
    least: Annotated[int, Field(ge=0)] = 1
    column: Annotated[str, Field(min_length=1)] | None = None
    colluding: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _check_column(self) -> "Simulation":
        if (self.partition == "column") != (self.column is not None):
            raise ValueError('column exactly if partition = "column"')
        return self


class RunConfig(_Settings):
    """run.toml: one run, as a data scientist writes it."""

    run: Run
    algorithm: Algorithm = Algorithm()
    local: Local
    participation: Participation = Participation()
    weights: Weights = Weights()
    task: Task
    encoding: Encoding = Encoding()
    recompute: Recompute = Recompute()
    privacy: Privacy | None = None
    simulation: Simulation | None = None

    @model_validator(mode="after")
    def _check_recompute(self) -> "RunConfig":
        is_noised = self.privacy is not None and self.privacy.mode == "central"
        if self.recompute.redundancy and is_noised:
            raise ValueError(
                'recompute.redundancy = 0 with privacy.mode = "central": who recomputes would see '
                "the sum without its noise"
            )
        return self


# By which top-level keys a file is known; the first that fits counts.
_MARKS: Final[tuple[tuple[set[str], type[BaseModel], str], ...]] = (
    ({"run"}, RunConfig, "run.toml"),
    ({"storage", "coordinator"}, SiloConfig, "silo.toml"),
    ({"storage"}, CoordinatorConfig, "coordinator.toml"),
    ({"coordinator"}, OperatorConfig, "operator.toml"),
)


def load_config(path: Path, model: type[Model]) -> Model:
    """Read a settings file.

    Raises:
        ConfigError: the file cannot be read, is no TOML, or does not fit; names file, key, what was
            expected and what came.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}", hint="check the path and its permissions"
        ) from error
    return parse_config(text, model, source=str(path), base=path.absolute().parent)


def parse_config(text: bytes, model: type[Model], *, source: str, base: Path) -> Model:
    """Read settings from a TOML document; relative paths count from `base`.

    Raises:
        ConfigError: see load_config; `source` stands for the file.
    """
    if len(text) > _MAX_BYTES:
        raise ConfigError(f"{source}: expected at most {_MAX_BYTES} bytes, got {len(text)}")
    try:
        table = tomllib.loads(text.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{source}: expected UTF-8, got another encoding at byte {error.start}"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: expected TOML: {error}") from error
    try:
        return model.model_validate(table, context={"base": base})
    except ValidationError as error:
        problems = error.errors(include_url=False)
        lines = "\n".join(f"  {_explain(problem, model)}" for problem in problems)
        keys = tuple(_dotted(problem["loc"]) for problem in problems)
        lines += _looks_like(table, model)
        raise ConfigError(f"{source}: {len(keys)} problem(s)\n{lines}", keys=keys) from error


def _explain(problem: ErrorDetails, model: type[BaseModel]) -> str:
    """Say in one line what is wrong with one key."""
    key = _dotted(problem["loc"])
    match problem["type"]:
        case "extra_forbidden":
            return f"{key}: unknown key{_suggest(key, model)}"
        case "missing":
            return f"{key}: expected a value, got none"
        case "value_error":
            wanted = str(problem["ctx"]["error"])
        case "model_type" | "dict_type":
            wanted = "a table of keys"
        case _:
            wanted = problem["msg"].removeprefix("Input should be ")
    is_secret = isinstance(problem.get("ctx", {}).get("error"), _SecretValueError)
    is_hidden = is_secret or isinstance(problem["input"], dict)
    got = "" if is_hidden else f", got {problem['input']!r:.120}"
    return f"{key or 'the file'}: expected {wanted}{got}"


def _looks_like(table: dict[str, object], model: type[BaseModel]) -> str:
    """Say which kind of file this is instead, if it has the marks of another one."""
    for mark, other, name in _MARKS:
        if mark <= table.keys() and not issubclass(model, other):
            return f"\n  it looks like a {name}; expected a {_name_of(model)}"
    return ""


def _name_of(model: type[BaseModel]) -> str:
    return next((name for _, kind, name in _MARKS if issubclass(model, kind)), "settings file")


def _dotted(location: tuple[int | str, ...]) -> str:
    """Write a location as TOML people do: task.features[0].kind."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.removeprefix(".")


def _suggest(key: str, model: type[BaseModel]) -> str:
    """Find the known key that was probably meant: in the same table first, else anywhere."""
    table, name = _table(key), key.rpartition(".")[2]
    known = list(_keys(model))
    beside = {
        other.rpartition(".")[2]: other for other in known if other.rpartition(".")[0] == table
    }
    anywhere = {other.rpartition(".")[2]: other for other in reversed(known)}
    for names, cutoff in ((beside, 0.6), (anywhere, 0.75)):
        if close := difflib.get_close_matches(name, names, n=1, cutoff=cutoff):
            return f"; did you mean {names[close[0]]}?"
    return f"; known here: {', '.join(sorted(beside))}" if beside else ""


def _table(key: str) -> str:
    return key.rpartition(".")[0]


def _keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Give all dotted keys of a model and of the models in it."""
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from _keys(part, f"{prefix}{name}.")
