"""Revision 3: changes of a run's silos that an operator has asked for and no attempt has yet."""

import sqlalchemy as sa
from alembic import op

revision = "3"
down_revision = "2"


def upgrade() -> None:
    """Make the table; the first release refuses what it no longer knows."""
    op.create_table(
        "changes",
        sa.Column("run", sa.String(32), primary_key=True),
        sa.Column("seat", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("change", sa.Text, nullable=False),
    )
    op.execute("UPDATE schema SET version = 3")
