"""run.toml: one run, as a data scientist writes it and an operator starts it."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from services.settings import Many, Settings, Table, TaskName


class Run(Settings):
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


class Schedule(Settings):
    """A factor on a step size from round to round; see fl.schedules."""

    curve: Literal["constant", "exponential", "steps", "cosine"] = "constant"
    factor: Annotated[float, Field(gt=0, le=1)] = 1.0
    at: Many[Annotated[int, Field(ge=1)]] = ()


class Algorithm(Settings):
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


class Local(Settings):
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


class Participation(Settings):
    """Which silos a round invites: "all", "uniform", "fixed" cohorts, or an installed sampler."""

    sampler: Annotated[str, Field(min_length=1)] = "all"
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    minimum: Annotated[int, Field(ge=3, le=200)] = 3
    settings: Table = Field(default_factory=dict)


class Weights(Settings):
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


class Task(Settings):
    """What is learned; for "tabular" also the feature schema that every silo's file must fit.

    Attributes:
        features, target: see the feature schema; both are parts of the training plan.
        standardize: whether a first round sums means and variances of numeric features; unset
            means yes for "tabular" and no for an own task. Every silo has to allow exact
            statistics of these features.
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


class Encoding(Settings):
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


class AdaptiveClipping(Settings):
    """A clip norm that follows a quantile of the units' norms, released with noise."""

    count_noise_std: Annotated[float, Field(gt=0)]
    clip_min: Annotated[float, Field(gt=0)]
    clip_max: Annotated[float, Field(gt=0)]
    learning_rate: Annotated[float, Field(gt=0)] = 0.2
    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.5


class NoisedMetrics(Settings):
    """Loss and accuracy of every round with noise, drawn on the same budget (docs/privacy.md).

    Attributes:
        loss_cap: a unit's loss counts from 0 to this, a public constant.
        z: noise multiplier of the metrics alone; none in isrl, which takes one more noised step.
    """

    loss_cap: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    z: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class Privacy(Settings):
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


class Recompute(Settings):
    """Whether silos compute parts of every sum again, to prove a wrong one to others.

    Attributes:
        redundancy: silos a chunk; 0 for none. Whoever recomputes sees what the coordinator sees,
            so it counts toward n_c, and each silo's policy has to allow it (`max_redundancy`).
    """

    redundancy: Annotated[int, Field(ge=0, le=200)] = 0


class Simulation(Settings):
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


class RunConfig(Settings):
    """run.toml: one run, as a data scientist writes it."""

    file_name: ClassVar = "run.toml"
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
