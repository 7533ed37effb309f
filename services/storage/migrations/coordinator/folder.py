"""Revision 5: which folder holds the files that a database server's rows name."""

import sqlalchemy as sa
from alembic import op

revision = "5"
down_revision = "4"


def upgrade() -> None:
    """Add the folder's mark to the lease; the next holder's folder is the one."""
    with op.batch_alter_table("lease") as lease:
        lease.add_column(sa.Column("folder", sa.String(32), nullable=False, server_default=""))
    op.execute("UPDATE schema SET version = 5")
