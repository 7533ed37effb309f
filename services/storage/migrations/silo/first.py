"""Revision 1: journal and memory, as the first release made them."""

import sqlalchemy as sa
from alembic import op

revision = "1"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    schema = op.create_table("schema", sa.Column("version", sa.Integer, primary_key=True))
    op.bulk_insert(schema, [{"version": 1}])
    op.create_table(
        "journal",
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("record", sa.LargeBinary, nullable=False),
        sa.Column("chain", sa.LargeBinary(32), nullable=False),
    )
    op.create_table(
        "memory",
        sa.Column("run", sa.String(32), primary_key=True),
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("digest", sa.String(64), nullable=False),
    )
