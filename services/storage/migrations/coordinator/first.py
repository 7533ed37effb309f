"""Revision 1: runs, their attempts and reports, as the first release made them."""

import sqlalchemy as sa
from alembic import op

revision = "1"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    schema = op.create_table("schema", sa.Column("version", sa.Integer, primary_key=True))
    op.bulk_insert(schema, [{"version": 1}])
    op.create_table(
        "runs",
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("run", sa.String(32), nullable=False, unique=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("algorithm", sa.Text, nullable=False),
        sa.Column("config", sa.LargeBinary, nullable=False),
        sa.Column("plan", sa.LargeBinary, nullable=False),
        sa.Column("cohort", sa.Text, nullable=False),
        sa.Column("rounds_total", sa.Integer, nullable=False),
        sa.Column("created_unix_s", sa.Float, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("round", sa.Integer, nullable=False),
        sa.Column("snapshot", sa.String(64)),
    )
    op.create_table(
        "attempts",
        sa.Column("run", sa.String(32), primary_key=True),
        sa.Column("round", sa.Integer, primary_key=True),
        sa.Column("next", sa.Integer, nullable=False),
    )
    op.create_table(
        "reports",
        sa.Column("run", sa.String(32), primary_key=True),
        sa.Column("round", sa.Integer, primary_key=True),
        sa.Column("document", sa.Text, nullable=False),
    )
    op.create_table(
        "artifacts",
        sa.Column("run", sa.String(32), primary_key=True),
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("digest", sa.String(64), nullable=False),
    )
