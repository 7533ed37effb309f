"""Settings of a statistics run: columns.toml, and what the options of `secagg stats` add to it."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from services.run_config import Recompute
from services.settings import Many, Settings, Table


class Columns(Settings):
    """What a statistics query asks: columns.toml, as a data scientist writes it.

    Attributes:
        numeric, categorical: see `fl.queries`.
    """

    file_name: ClassVar[str] = "columns.toml"

    numeric: Many[Table] = ()
    categorical: Many[Table] = ()


class QueryRun(Settings):
    """What a statistics run is called and whom it waits for.

    Attributes:
        min_silos: connected silos to wait for; unset means all of the roster. The same query over
            other silos is refused later on.
    """

    name: Annotated[str, Field(min_length=1, max_length=128)]
    min_silos: Annotated[int, Field(ge=3)] | None = None


class Noise(Settings):
    """The noise of a charged query.

    Attributes:
        z: noise multiplier.
        delta, adjacency: of the promise; never guessed.
        most_rows: the most rows of one silo, a public number.
        budget: epsilon that the run's own ledger allows; default is the promise, which leaves no
            room for a failed attempt whose charge does not come back.
    """

    z: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    delta: Annotated[float, Field(gt=0, lt=1)]
    adjacency: Literal["add_remove", "zero_out", "replace_one"]
    most_rows: Annotated[int, Field(ge=1)]
    budget: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class Advise(Settings):
    """What the advisor has to know beside the sums; see `fl.advisor.Circumstances`.

    Attributes:
        target: the label, a categorical column.
        uplink: of the slowest silo, in Mbit/s.
    """

    target: Annotated[str, Field(min_length=1)]
    parameters: Annotated[int, Field(ge=1)]
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0
    uplink: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 100.0
    equal_work: bool = True


class QueryConfig(Columns):
    """A statistics run, as `secagg stats` makes it of columns.toml and its options."""

    file_name: ClassVar[str] = "run.toml"  # by its [run], whatever else is wrong with it

    run: QueryRun
    recompute: Recompute = Recompute()
    advise: Advise | None = None
    noise: Noise | None = None

    @model_validator(mode="after")
    def _check_noise(self) -> "QueryConfig":
        if self.advise is not None and self.noise is not None:
            raise ValueError("[advise] or [noise], not both: advise asks exact sums")
        return self
