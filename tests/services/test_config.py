"""Settings files: what is accepted, and that every mistake is named with its key."""

from dataclasses import fields
from pathlib import Path

import pytest

from secagg.errors import ParameterError
from secagg.policy import SiloPolicy
from services.config import CoordinatorConfig, OperatorConfig, Policy, SiloConfig
from services.errors import ConfigError
from services.run_config import RunConfig
from services.settings import load_config, parse_config

RUN = """
[run]
name = "first"
rounds = 10
[local]
steps = 5
learning_rate = 0.1
[task]
features = [{ name = "age" }, { name = "sex", kind = "categorical", categories = ["f", "m"] }]
target = { name = "ill", classes = ["no", "yes"] }
"""
SILO = """
coordinator = "localhost:8443"
directory = "keys"
storage = "store"
data = { file = "rows.csv" }
"""


def parse_run(text: str) -> RunConfig:
    """Read a run's settings."""
    return parse_config(text.encode(), RunConfig, source="run.toml", base=Path("/base"))


def parse_silo(text: str) -> SiloConfig:
    """Read a silo's settings."""
    return parse_config(text.encode(), SiloConfig, source="silo.toml", base=Path("/base"))


def test_a_file_is_read_and_its_paths_count_from_its_folder(tmp_path: Path) -> None:
    """Relative paths are the file's, absolute ones stay."""
    folder = tmp_path / "Hôpital Zürich"
    folder.mkdir()
    file = folder / "coordinator.toml"
    file.write_text('directory = "keys"\nstorage = "/var/store"\n', encoding="utf-8")
    config = load_config(file, CoordinatorConfig)
    assert config.directory == folder / "keys"
    assert config.storage == Path("/var/store")
    assert config.roster_file == folder / "keys" / "roster.json"
    assert config.listen == "127.0.0.1:8443"


def test_a_whole_run_is_read() -> None:
    """Defaults fill what is not said; the schema stays a mapping for the learning package."""
    config = parse_run(RUN)
    assert (config.algorithm.name, config.weights.kind, config.encoding.value_bits) == (
        "fedavg",
        "uniform",
        16,
    )
    assert config.task.features[1] == {
        "name": "sex",
        "kind": "categorical",
        "categories": ["f", "m"],
    }


@pytest.mark.parametrize(
    ("change", "key", "words"),
    [
        (("rounds", "ronds"), "run.ronds", "did you mean run.rounds?"),
        (('name = "first"', 'name = "first"\nlearning_rate = 1.0'), "run.learning_rate", "local."),
        (("rounds = 10", 'rounds = "10"'), "run.rounds", "a valid integer, got '10'"),
        (("rounds = 10", "rounds = 0"), "run.rounds", "greater than or equal to 1, got 0"),
        (("steps = 5\n", ""), "local.steps", "expected a value, got none"),
        (("[local]", "[algorithm]\nname = 3\n[local]"), "algorithm.name", "a valid string"),
        (("[local]", "[algorithm]\noption = 'I'\n[local]"), "algorithm.option", "scaffold"),
        (("[local]", "[weights]\nkind = 'hidden'\n[local]"), "weights", "n_cap exactly if"),
        (("[local]", "[weights]\nkind = 'declared'\n[local]"), "weights", "[weights.declared]"),
        (("target =", "model = 'mlp'\ntarget ="), "task", "hidden = [width"),
        (("target =", "name = 'os.system'\ntarget ="), "task.name", "package.module:factory"),
        (("[task]", "[task]\nsettings = {a = 1}"), "task", "no [task.settings]"),
    ],
)
def test_each_mistake_is_named(change: tuple[str, str], key: str, words: str) -> None:
    """The error has the file, the dotted key, and what was expected."""
    with pytest.raises(ConfigError) as caught:
        parse_run(RUN.replace(*change, 1))
    assert key in caught.value.keys
    assert "run.toml" in str(caught.value)
    assert words in str(caught.value)


def test_all_mistakes_are_reported_at_once() -> None:
    """Nobody fixes a file one error at a time."""
    with pytest.raises(ConfigError) as caught:
        parse_run(RUN.replace("steps", "step").replace("rounds", "round"))
    assert set(caught.value.keys) == {"run.round", "local.step"}


def test_a_noised_sum_is_not_recomputed() -> None:
    """Whoever recomputes would see it without its noise; other plans may have it."""
    table = "[recompute]\nredundancy = 2\n"
    private = "[privacy]\nmode = '{}'\nadjacency = 'zero_out'\nclip = 1.0\ndelta = 1e-6\nz = 1.0\n"
    assert parse_run(RUN + table).recompute.redundancy == 2
    assert parse_run(RUN + table + private.format("silo")).recompute.redundancy == 2
    with pytest.raises(ConfigError, match=r"recompute.redundancy = 0 with privacy.mode"):
        parse_run(RUN + table + private.format("central"))


def test_a_silo_needs_data_exactly_for_the_built_in_task() -> None:
    """An own factory reads its own data."""
    assert parse_silo(SILO).task == "tabular"
    own = 'task = "hospital.task:make"\n' + SILO.replace('data = { file = "rows.csv" }', "")
    assert parse_silo(own).data is None
    with pytest.raises(ConfigError, match=r"\[data\]"):
        parse_silo(SILO.replace('data = { file = "rows.csv" }', ""))
    with pytest.raises(ConfigError, match="own task reads"):
        parse_silo('task = "hospital.task:make"\n' + SILO)


@pytest.mark.parametrize("address", ["localhost", "host:99999", "::1:80", "a b:1", ":8443"])
def test_an_address_needs_host_and_port(address: str) -> None:
    """A port alone or an IPv6 address without brackets is ambiguous."""
    with pytest.raises(ConfigError, match=r"coordinator: expected an address such as"):
        parse_silo(SILO.replace("localhost:8443", address))


def test_a_databases_password_is_refused_and_not_shown() -> None:
    """Settings hold no secrets, and neither do messages about them."""
    text = b'directory = "d"\nstorage = "s"\ndatabase = "postgresql://me:hunter2@host/name"'
    with pytest.raises(ConfigError, match="database: expected no password") as caught:
        parse_config(text, CoordinatorConfig, source="test", base=Path())
    assert "hunter2" not in str(caught.value)
    fine = parse_config(
        text.replace(b":hunter2", b""), CoordinatorConfig, source="test", base=Path()
    )
    assert fine.database == "postgresql://me@host/name"


def test_an_ipv6_address_has_brackets() -> None:
    """[::1]:8443 is the usual way to write it."""
    assert parse_silo(SILO.replace("localhost:8443", "[::1]:8443")).coordinator == "[::1]:8443"


def test_the_policy_reaches_the_protocol() -> None:
    """The silo's file becomes the protocol's policy, pinned plans as bytes."""
    plan = "ab" * 32
    config = parse_silo(SILO + f'[policy]\nn_c = 1\nn_min = 4\ntraining_plans = ["{plan}"]\n')
    policy = config.policy.silo_policy()
    assert (policy.n_c, policy.n_min, policy.training_plans) == (
        1,
        4,
        frozenset({bytes.fromhex(plan)}),
    )
    with pytest.raises(ConfigError, match=r"policy.training_plans\[0\]"):
        parse_silo(SILO + '[policy]\ntraining_plans = ["abc"]\n')


def test_every_rule_of_the_protocols_policy_has_its_key() -> None:
    """The same names and the same defaults."""
    # What a silo answers, and to which models, is no affair of the protocol.
    own = {"statistics", "statistics_columns", "least_change"}
    assert set(Policy.model_fields) == {item.name for item in fields(SiloPolicy)} | own
    assert Policy().silo_policy() == SiloPolicy()


def test_each_rule_reaches_the_protocol() -> None:
    """A value beside the default in every key arrives."""
    digest = "cd" * 32
    text = f"""
    [policy]
    n_c = 1
    h_min = 3
    h_dp = 4
    n_min = 5
    n_orgs = 6
    suites = [3, 4]
    modes = ["malicious", "semi-honest"]
    min_value_bits = 8
    max_value_bits = 20
    max_ring_bits = 24
    training_plans = ["{digest}"]
    privacy_plans = ["{digest}"]
    first_states = ["{digest}"]
    max_state_bytes = 4096
    public_coefficients = true
    ledger_window = 9
    ledger_min_change = 2
    max_redundancy = 3
    min_redundancy = 2
    own_chunks = 4
    """
    policy = parse_silo(SILO + text).policy.silo_policy()
    default = SiloPolicy()
    for item in fields(SiloPolicy):
        assert getattr(policy, item.name) != getattr(default, item.name), item.name
    assert policy.first_states == frozenset({bytes.fromhex(digest)})


def test_a_rule_that_only_the_protocol_knows_is_a_config_error() -> None:
    """The chain shows what the protocol said."""
    with pytest.raises(ConfigError) as caught:
        Policy.model_construct(h_min=1).silo_policy()
    assert isinstance(caught.value.__cause__, ParameterError)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a = \xff", "expected UTF-8"),
        (b"a = ", "expected TOML"),
        (b"\x80\x04\x95pickle", "expected UTF-8"),
        (b"#" * (1024 * 1024 + 1), "at most"),
    ],
)
def test_what_is_no_toml_is_refused(content: bytes, words: str) -> None:
    """Nothing else is even tried, a pickle least of all."""
    with pytest.raises(ConfigError, match=words):
        parse_config(content, OperatorConfig, source="operator.toml", base=Path())


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The path and the system's reason are in the message."""
    with pytest.raises(ConfigError, match=r"nowhere.toml: cannot be read: No such file"):
        load_config(tmp_path / "nowhere.toml", RunConfig)


def test_a_key_that_resembles_nothing_lists_what_is_known() -> None:
    """Better than a wild guess."""
    with pytest.raises(ConfigError, match=r"local.zzz: unknown key; known here: batch_size, learn"):
        parse_run(RUN.replace("steps = 5", "steps = 5\nzzz = 1"))


def test_an_own_task_has_no_model_of_ours() -> None:
    """Each kind of task has its own keys, and the built-in one needs its schema."""
    head = RUN.split("features", maxsplit=1)[0]
    own = head + 'name = "own.task:make"\n'
    assert parse_run(own + "settings = { width = 3 }\n").task.settings == {"width": 3}
    with pytest.raises(ConfigError, match=r"task: expected .*only \[task.settings\]"):
        parse_run(own + "hidden = [8]\n")
    with pytest.raises(ConfigError, match=r"task: expected .*\[\[task.features\]\]"):
        parse_run(head)


def test_another_kind_of_file_is_recognized() -> None:
    """In plain words, whichever way round they were mixed up."""
    with pytest.raises(ConfigError, match=r"looks like a run\.toml; expected a silo\.toml"):
        parse_silo(RUN)
    silo = 'coordinator = "a:1"\ndirectory = "a"\nstorage = "b"\ntask = "tabular"\n'
    with pytest.raises(
        ConfigError, match=r"looks like a silo\.toml; expected a run\.toml"
    ) as caught:
        parse_run(silo)
    assert "task: expected a table of keys" in str(caught.value)
    assert "instance of" not in str(caught.value)
    with pytest.raises(ConfigError, match="coordinator: expected an address"):
        parse_silo(silo.replace('"a:1"', "1"))


def test_a_mistyped_key_is_no_reason_to_take_a_file_for_another_kind() -> None:
    """Only marks of another kind are."""
    with pytest.raises(ConfigError, match="did you mean storage") as caught:
        parse_silo(SILO.replace("storage =", "storages ="))
    assert "looks like" in str(caught.value)  # without storage it is an operator's
    with pytest.raises(ConfigError, match="unknown key; did you mean linger_s") as caught:
        parse_silo(SILO + "lingers = 3")
    assert "looks like" not in str(caught.value)


def test_a_mistyped_key_is_corrected_and_its_neighbors_are_listed() -> None:
    """What was probably meant, and what else may stand there."""
    with pytest.raises(ConfigError) as caught:
        parse_run(RUN.replace("steps = 5", "stepz = 5"))
    assert "local.stepz: unknown key; did you mean local.steps? Known here: batch" in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("right", "wrong", "meant"),
    [
        ("steps = 5", "step = 5", "local.steps"),
        ("learning_rate", "learning_rates", "local.learning_rate"),
        ("[local]", "[locals]", "local"),
        ("rounds = 10", "round = 10", "run.rounds"),
    ],
)
def test_a_misspelled_key_is_one_problem(right: str, wrong: str, meant: str) -> None:
    """That the right one is missing follows from it, and is not said."""
    with pytest.raises(ConfigError) as caught:
        parse_run(RUN.replace(right, wrong))
    text = str(caught.value)
    assert text.startswith("run.toml: 1 problem(s)\n")
    assert f"did you mean {meant}?" in text
    assert "got none" not in text


def test_a_missing_key_is_told_beside_a_misspelled_one() -> None:
    """Only the key that was meant is left out."""
    with pytest.raises(ConfigError) as caught:
        parse_run(RUN.replace("steps = 5", "step = 5").replace("learning_rate = 0.1", ""))
    text = str(caught.value)
    assert text.startswith("run.toml: 2 problem(s)\n")
    assert "local.learning_rate: expected a value, got none" in text
