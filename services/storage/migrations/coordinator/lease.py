"""Revision 2: which coordinator may write, where several share a database server."""

import sqlalchemy as sa
from alembic import op

revision = "2"
down_revision = "1"


def upgrade() -> None:
    """Make the lease, held by nobody; the first release refuses what it no longer knows."""
    lease = op.create_table(
        "lease",
        sa.Column("name", sa.String(32), primary_key=True),
        sa.Column("token", sa.Integer, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("expires_unix_s", sa.Float, nullable=False),
    )
    row = {"name": "coordinator", "token": 0, "holder": "", "expires_unix_s": 0.0}
    op.bulk_insert(lease, [row])
    op.execute("UPDATE schema SET version = 2")
