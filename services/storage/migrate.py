"""From the schema that a database has to the newest one, in the caller's transaction.

The revisions of a schema stand in `migrations/SCHEMA`, one file each, numbered in order. A released
one is never changed. There is no way back: a backup is.
"""

from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Connection

_FOLDER: Final = Path(__file__).parent / "migrations"


def migrate(connection: Connection, schema: str, *, is_unversioned: bool) -> None:
    """Bring a schema up to date; a kill in between leaves the old one.

    Args:
        connection: in a transaction.
        schema: "coordinator" or "silo".
        is_unversioned: whether the database keeps no revision yet. If it has tables
            nevertheless, they are those of the first release.
    """
    config = _config(schema)
    config.attributes["connection"] = connection
    if is_unversioned and connection.dialect.has_table(connection, "schema"):
        command.stamp(config, "1")
    command.upgrade(config, "head")


def revisions(schema: str) -> list[int]:
    """All revisions of a schema, the oldest first."""
    script = ScriptDirectory.from_config(_config(schema))
    return sorted(int(item.revision) for item in script.walk_revisions())


def _config(schema: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    config.set_main_option("version_locations", str(_FOLDER / schema).replace("%", "%%"))
    return config
