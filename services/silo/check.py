"""What `secagg silo check` looks at before a silo joins: each finding in one line."""

import asyncio
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dp.errors import PrivacyError
from fl.csvfile import CsvFile
from fl.errors import LearningError, LedgerRefusedError, SchemaError
from fl.privacy import document_of, privacy_of
from fl.training.tabular import TabularTask
from secagg.errors import PolicyRefusedError, SecAggError
from secagg.ids import SiloId
from secagg.roster import Roster
from services.clock import utc_now
from services.config import DataSetBudget, SiloConfig
from services.enrollment.roster_file import ROSTER, TRUST, load_roster, load_trust
from services.errors import CredentialError, ServiceError
from services.evidence import FOLDER, SUFFIX
from services.files import make_private_dir
from services.plans import build_plan
from services.release import software_version
from services.released import MODEL_FILE, STATISTICS_FILE
from services.run_config import RunConfig
from services.security.credentials import (
    Credentials,
    load_credentials,
    load_identity,
    open_channel,
)
from services.security.identity import Role
from services.security.probe import probe
from services.settings import load_config
from services.silo.declared import require_declared, require_rows
from services.silo.learner import NAME, UNVERIFIED
from services.silo.ledger import require_fit
from services.silo.statistics import check_moments
from services.silo.tasks import build_task
from services.wire.calls import PROTOCOL_VERSION, Hello
from services.wire.clients import AggregationClient

if TYPE_CHECKING:
    from services.report.facts import Facts

_PROXIES: Final = ("https_proxy", "http_proxy", "HTTPS_PROXY", "HTTP_PROXY")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    what: str
    finding: str
    is_fine: bool
    exit_code: int = 0


def check_silo(config: SiloConfig, run: Path | None) -> list[Finding]:
    """Look at everything; a failed check does not hide the next one."""
    looks: list[tuple[str, Callable[[], str]]] = [
        ("certificate", lambda: _certificate(config)),
        ("roster", lambda: _roster(config)),
        ("policy", lambda: _policy(config)),
        ("disk", lambda: _disk(config)),
        ("connection", lambda: _connection(config)),
    ]
    if run is not None:
        looks.append(("run", lambda: _run(config, run)))
        looks.append(("data", lambda: _data(config, run)))
    elif config.data is not None:
        file = config.data.file
        looks.append(("data", lambda: _file(file, config)))
    return [_look(what, look) for what, look in looks]


def read_table(file: Path) -> CsvFile:
    """Read a silo's file, whatever its columns mean.

    Raises:
        DataError, SchemaError: see CsvFile.read; or its form is not a table's.
    """
    table = CsvFile.read(file)
    if table.problems:
        listed = "\n".join(f"  - {problem}" for problem in table.problems)
        raise SchemaError(f"{file} is no table:\n{listed}")
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptModel:
    """The file of a run that has ended: its model, or the sums of a statistics run.

    Attributes:
        name: what the operator called the run, as the coordinator says; "" if it is not known.
        ended: when this silo wrote the file, ISO 8601 in UTC.
        is_verified: whether this silo has computed it itself, from sums that it checked; it
            cannot have if it was away in the last round.
    """

    run: str
    name: str
    ended: str
    file: str
    is_verified: bool

    def __str__(self) -> str:
        """In one line, whatever the name holds."""
        called = "".join(one if one.isprintable() else "?" for one in self.name)
        called = f" ({called})" if called else ""
        doubt = "" if self.is_verified else " (from the coordinator, not verified by this silo)"
        return f"{self.ended}  run {self.run}{called}: {self.file}{doubt}"


def released_models(storage: Path) -> list[KeptModel]:
    """The files of runs that have ended, the newest first."""
    files = [
        (path.stat().st_mtime, path)
        for path in (storage / "runs").glob("*/*")
        if path.name in {MODEL_FILE, STATISTICS_FILE}
    ]
    return [
        KeptModel(
            run=path.parent.name,
            name=_name_beside(path),
            ended=datetime.fromtimestamp(written, UTC).isoformat(timespec="seconds"),
            file=str(path),
            is_verified=not path.with_name(UNVERIFIED).exists(),
        )
        for written, path in sorted(files, reverse=True)
    ]


def _name_beside(path: Path) -> str:
    try:
        return path.with_name(NAME).read_text("utf-8", errors="replace")
    except FileNotFoundError:
        return ""  # kept by an older version


def evidence_files(storage: Path) -> list[Path]:
    """Cases that this silo holds against others."""
    return sorted((storage / FOLDER).glob(f"*{SUFFIX}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetStatus:
    """What a data set has spent and has left."""

    data_set: str
    unit: str
    delta: float
    spent: float
    limit: float
    releases: int
    unsettled: int

    def __str__(self) -> str:
        """In one line."""
        left = max(self.limit - self.spent, 0.0)
        return (
            f"data set {self.data_set}: epsilon {self.spent:.4f} of {self.limit:.4f} spent, "
            f"{left:.4f} left, at delta {self.delta:g}, unit {self.unit}; {self.releases} "
            f"releases, {self.unsettled} of them not settled"
        )


def budget_status(config: SiloConfig) -> BudgetStatus | None:
    """What the data set has spent and has left; None for a silo without a budget."""
    settings = config.privacy
    if settings is None:
        return None
    facts = _facts(config, settings)
    charges = facts.live if facts else ()
    return BudgetStatus(
        data_set=settings.data_set,
        unit=settings.unit,
        delta=settings.delta,
        spent=facts.spent if facts else 0.0,
        limit=settings.epsilon,
        releases=len(charges),
        unsettled=sum(one.state.value == "open" for one in charges),
    )


def charged_runs(config: SiloConfig) -> frozenset[str]:
    """Runs, in hex, for which something stayed charged to the data set."""
    facts = None if config.privacy is None else _facts(config, config.privacy)
    return frozenset(one.run_id for one in facts.live) if facts else frozenset()


def _facts(config: SiloConfig, settings: DataSetBudget) -> "Facts | None":
    from services.report.facts import read_facts
    from services.silo.data_set import data_set_path
    from services.silo.ledger import LEDGERS
    from services.storage.ledger import FileLedgerStore

    folder = settings.ledgers or config.storage / LEDGERS
    lines = FileLedgerStore(data_set_path(folder, settings.data_set)).read(0)
    return read_facts(lines) if lines else None


def _look(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(what=what, finding=look(), is_fine=True)
    except (ServiceError, SecAggError, LearningError) as error:
        code = error.exit_code if isinstance(error, ServiceError) else 1
        return Finding(what=what, finding=str(error), is_fine=False, exit_code=code)


def _credentials(config: SiloConfig) -> Credentials:
    return load_credentials(config.directory, role=Role.SILO, now=utc_now())


def _certificate(config: SiloConfig) -> str:
    credentials = _credentials(config)
    return f"{credentials.identity.uri}, {credentials.days_left(utc_now())} days left"


def _roster(config: SiloConfig) -> str:
    roster = load_roster(config.directory / ROSTER, load_trust(config.directory / TRUST))
    seat = roster.seat_of(SiloId(_credentials(config).identity.name))
    if seat.identity_key != load_identity(config.directory).public:
        raise CredentialError(
            f"the roster names another identity key for silo {seat.silo.name}",
            hint="put back the identity.key that this folder's request was made with",
        )
    return f"version {roster.version}, seat {seat.index} of {len(roster.seats)}"


def _policy(config: SiloConfig) -> str:
    policy = config.policy.silo_policy()
    roster = load_roster(config.directory / ROSTER, load_trust(config.directory / TRUST))
    colluding = policy.colluding(roster)
    return (
        f"safe with {colluding} colluding silo{'' if colluding == 1 else 's'}; at least "
        f"{policy.n_min} survivors of {policy.n_orgs} organizations"
    )


def _disk(config: SiloConfig) -> str:
    free = shutil.disk_usage(make_private_dir(config.storage)).free
    return f"{free // 2**20} MiB free at {config.storage}"


def _connection(config: SiloConfig) -> str:
    credentials = _credentials(config)
    report = probe(config.coordinator, credentials, now=utc_now())
    names = [name for name in _PROXIES if os.environ.get(name)]
    proxy = f", by way of {names[0]}" if config.proxy and names else ""
    own = load_roster(config.directory / ROSTER, load_trust(config.directory / TRUST))
    hello = asyncio.run(_ask(config, credentials, own))
    newer = f", newer than version {own.version} here; it comes with the first call"
    return (
        f"{config.coordinator} answers as {', '.join(report.hosts)}{proxy}; its roster is version "
        f"{hello.roster_version}{newer if hello.roster_version > own.version else ''}"
    )


async def _ask(config: SiloConfig, credentials: Credentials, roster: Roster) -> Hello:
    """Let the coordinator compare versions and rosters, without joining.

    Raises:
        RemoteError: it refuses this silo, and says why.
    """
    channel = open_channel(config.coordinator, credentials, proxy=config.proxy)
    try:
        return await AggregationClient(channel, target=config.coordinator).hello(
            Hello(
                protocol_version=PROTOCOL_VERSION,
                software_version=software_version(),
                roster_version=roster.version,
                roster_digest=roster.digest(),
                incarnation=b"",
            )
        )
    finally:
        await channel.close()


def _run(config: SiloConfig, run: Path) -> str:
    """Hold the run's settings against the policy, as far as they tell what rounds will ask.

    Raises:
        PolicyRefusedError, LedgerRefusedError: every round would be refused by this rule.
    """
    policy, settings = config.policy.silo_policy(), load_config(run, RunConfig)
    plan = build_plan(settings, max_silos=200)
    policy.check_redundancy(settings.recompute.redundancy)
    policy.check_privacy_plan(document_of(plan))
    check_moments(plan, config)
    privacy = privacy_of(plan)
    if (h_dp := privacy.h_dp if privacy else 0) < policy.h_dp:
        raise PolicyRefusedError(f"policy rule h_dp: expected at least {policy.h_dp}, got {h_dp}")
    require_fit(privacy, has_budget=config.privacy is not None)
    if privacy is not None and config.privacy is not None:
        try:
            require_declared(privacy, config.privacy)
        except PrivacyError as error:
            raise LedgerRefusedError(str(error)) from error
    return "its settings break no rule of the policy that can be told before a round"


def _file(file: Path, config: SiloConfig) -> str:
    table = read_table(file)
    require_rows(len(table), config.privacy)
    fits = f"a table with columns {', '.join(table.header)}; --run holds it against a run's schema"
    return "\n  ".join([fits, *table.blanks()])


def _data(config: SiloConfig, run: Path) -> str:
    plan = build_plan(load_config(run, RunConfig), max_silos=200)
    task = build_task(plan, config)
    if isinstance(task, TabularTask):
        require_rows(task.n_examples, config.privacy)
    notes = task.notes if isinstance(task, TabularTask) else ()
    return "\n  ".join([f"fits the plan's task {plan.task.name}", *notes])
