"""Without torch there is nothing to test in this folder."""

from importlib.util import find_spec

collect_ignore_glob = ["test_*.py"] if find_spec("torch") is None else []
