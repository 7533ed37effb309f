"""The databases that the stores' tests run on."""

from collections.abc import Iterator

import pytest

from tests.postgres import NoPostgresError, Server, postgres


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """A PostgreSQL for this session; what needs it is skipped where there is none."""
    context = postgres()
    try:
        server = context.__enter__()
    except NoPostgresError as error:
        pytest.skip(str(error))
    yield server
    context.__exit__(None, None, None)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database of each kind; empty for the file in the store's folder."""
    if request.param == "sqlite":
        return ""
    server: Server = request.getfixturevalue("postgres_server")
    return server.make_database()
