"""Keys of machines that measure for the service, bound to kinds of devices."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; keys that exist are of no worker."""
    for column in (
        sa.Column("can_worker", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column(
            "device_kinds",
            sa.JSON(none_as_null=True),
            nullable=False,
            server_default=sa.text("'[]'"),
        ),
    ):
        op.add_column("keys", column)
