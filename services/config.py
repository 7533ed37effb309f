"""silo.toml, coordinator.toml and operator.toml: how this site's processes are set up."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from secagg.errors import ParameterError
from secagg.policy import MAX_LEDGER_WINDOW, SiloPolicy
from services.errors import ConfigError
from services.settings import FilePath, Many, SecretValueError, Settings, Table, TaskName

if TYPE_CHECKING:
    from dp.account import Account

_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):([0-9]{1,5})")


def _check_address(value: object) -> str:
    match = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if match is None or not 0 <= int(match[2]) <= 65535:
        raise ValueError('an address such as "127.0.0.1:8443" or "[::1]:8443"')
    return match[0]


def _check_database(value: str) -> str:
    if urlsplit(value).password is not None:
        raise SecretValueError("no password in the URL: put it into ~/.pgpass or PGPASSWORD")
    return value


Address = Annotated[str, BeforeValidator(_check_address)]
Database = Annotated[str, AfterValidator(_check_database)]
Seconds = Annotated[float, Field(gt=0, le=7 * 24 * 3600)]


class Log(Settings):
    """How a process logs; `auto` is for people on a terminal and JSON elsewhere."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "console", "json"] = "auto"


class Deadlines(Settings):
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


class Limits(Settings):
    """How much the coordinator takes, and how much it keeps.

    Attributes:
        state_bytes: of the largest model state.
        free_bytes: that a round leaves free on the disk; it does not begin otherwise.
        ended_runs: runs that have ended and are kept with their models; the oldest go first.
    """

    state_bytes: Annotated[int, Field(ge=1024)] = 4 * 1024**3
    free_bytes: Annotated[int, Field(ge=0)] = 64 * 1024**2
    ended_runs: Annotated[int, Field(ge=1)] = 1000


class CoordinatorConfig(Settings):
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

    file_name: ClassVar = "coordinator.toml"
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


class Data(Settings):
    """The silo's own table, a CSV file in UTF-8."""

    file: FilePath


Digests = Many[Annotated[str, Field(pattern="^[0-9a-f]{64}$")]]


class Policy(Settings):
    """What this silo insists on, whatever a coordinator asks; it can only tighten.

    The keys are those of `secagg.policy.SiloPolicy`, which says what each is for, and what
    begins with `statistics`.

    Attributes:
        n_c: colluding seats to be safe against; unset means a third of the roster.
        training_plans: digests of the only training plans to take part in, 64 hexadecimal digits
            each; unset means any plan whose task this silo serves.
        privacy_plans, first_states: likewise, of privacy plans and of states to start from.
        statistics: which queries of `secagg stats` this silo answers: none, those with noise, or
            exact ones, too, and with them the moments that training runs standardize with. A data
            set with a budget is never summed without noise.
        least_change: share of this silo's own last counted update by which the model must have
            moved since, or it trains no further; 0 asks nothing, as does a privacy plan.
        statistics_columns: the only columns that queries may name; unset means none of an exact
            one and, as its noise is charged, any of a noised one.
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
    least_change: Annotated[float, Field(ge=0, le=1)] = 0.0
    statistics: Literal["refuse", "noised", "exact"] = "noised"
    statistics_columns: Many[Annotated[str, Field(min_length=1)]] | None = None

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


class DataSetBudget(Settings):
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
        most_units: the most units that the data set will ever have: a public number, which plans
            are held against instead of the data. Needed unless the unit is the silo. Under the
            unit patient it counts patients, each with up to records_per_unit records.
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
    most_units: Annotated[int, Field(ge=1)] | None = None
    filter: Literal["gdp", "rdp"] = "gdp"
    order: Annotated[int, Field(ge=2)] | None = None
    local_epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    run_epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    year_epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    records_per_unit: Annotated[int, Field(ge=1)] = 1
    ledgers: FilePath | None = None
    disjoint_from: Many[str] = ()

    @model_validator(mode="after")
    def _check_size(self) -> "DataSetBudget":
        if (self.unit == "silo") != (self.most_units is None):
            raise ValueError(
                "most_units = N exactly if the unit is record or patient: the most units that the "
                "data set will ever have, rounded up generously, for it is public; no plan is held "
                "against the data themselves"
            )
        return self

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


class SiloConfig(Settings):
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

    file_name: ClassVar = "silo.toml"
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


class OperatorConfig(Settings):
    """operator.toml: how `secagg run` reaches the coordinator."""

    file_name: ClassVar = "operator.toml"
    coordinator: Address
    directory: FilePath
    proxy: bool = False
