"""Revision 4: what silos have signed of where a run stands."""

import sqlalchemy as sa
from alembic import op

revision = "4"
down_revision = "3"


def upgrade() -> None:
    """Make the table; the first release refuses what it no longer knows."""
    op.create_table(
        "settled",
        sa.Column("run", sa.String(32), primary_key=True),
        sa.Column("seat", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("statement", sa.LargeBinary, nullable=False),
    )
    op.execute("UPDATE schema SET version = 4")
