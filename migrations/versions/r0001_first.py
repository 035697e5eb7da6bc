"""The first schema: keys, jobs, tasks, trials, events, artifacts, checkpoints, workers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def _in(column: str, words: str) -> str:
    return f"{column} IN ({', '.join(repr(word) for word in words.split())})"


_STATES = _in(
    "state",
    """
    cancelled cancelling failed paused pausing queued running stopping succeeded
    """,
)
_MOVES = _in(
    "COALESCE(from_state, '') || '>' || COALESCE(to_state, '')",
    """
    > >queued cancelled>queued cancelling>cancelled failed>queued paused>cancelled
    paused>queued paused>stopping pausing>cancelling pausing>failed pausing>paused
    pausing>running pausing>stopping pausing>succeeded queued>cancelled queued>paused
    queued>running queued>stopping running>cancelling running>failed running>pausing
    running>queued running>stopping running>succeeded stopping>cancelled stopping>cancelling
    stopping>failed stopping>succeeded
    """,
)


def upgrade() -> None:
    """Make all tables."""
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("key_id", sa.Integer(), nullable=True),
        sa.Column("key_name", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.Column("remote", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_key_id", "audit", ["key_id", "id"], unique=False)
    op.create_table(
        "keys",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("public", sa.Text(), nullable=False),
        sa.Column("secret_sha256", sa.Text(), nullable=False),
        sa.Column("can_read", sa.Boolean(), nullable=False),
        sa.Column("can_submit", sa.Boolean(), nullable=False),
        sa.Column("can_admin", sa.Boolean(), nullable=False),
        sa.Column("max_running_jobs", sa.Integer(), nullable=True),
        sa.Column("max_trials", sa.Integer(), nullable=True),
        sa.Column("max_upload_bytes", sa.BigInteger(), nullable=True),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("last_used_at", _TIME, nullable=True),
        sa.Column("expires_at", _TIME, nullable=True),
        sa.Column("revoked_at", _TIME, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_keys"),
        sa.UniqueConstraint("public", name="uq_keys_public"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("versions", sa.JSON(), nullable=False),
        sa.Column("devices", sa.JSON(), nullable=False),
        sa.Column("started_at", _TIME, nullable=False),
        sa.Column("last_beat_at", _TIME, nullable=False),
        sa.Column("stopped_at", _TIME, nullable=True),
        sa.Column("n_trials", sa.Integer(), nullable=False),
        sa.Column("n_infrastructure", sa.Integer(), nullable=False),
        sa.Column("n_jobs", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_workers"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key_id", sa.Integer(), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("op", sa.Text(), nullable=False),
        sa.Column("workload", sa.JSON(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("target_key", sa.Text(), nullable=False),
        sa.Column("resolved_target", sa.Text(), nullable=True),
        sa.Column("trials", sa.Integer(), nullable=True),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("seed", sa.Integer(), nullable=False),
        sa.Column("strategy", sa.String(length=32), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("updated_at", _TIME, nullable=False),
        sa.Column("started_at", _TIME, nullable=True),
        sa.Column("finished_at", _TIME, nullable=True),
        sa.Column("n_tasks", sa.Integer(), nullable=False),
        sa.Column("n_trials", sa.Integer(), nullable=False),
        sa.Column("n_failed", sa.Integer(), nullable=False),
        sa.Column("flops", sa.Double(), nullable=False),
        sa.Column("best_us", sa.Double(), nullable=True),
        sa.Column("unscheduled_us", sa.Double(), nullable=True),
        sa.Column("elapsed_s", sa.Double(), nullable=False),
        sa.Column("measured_s", sa.Double(), nullable=False),
        sa.Column("breakdown", sa.JSON(), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("not_before", _TIME, nullable=True),
        sa.Column("lease_token", sa.Text(), nullable=True),
        sa.Column("lease_expires_at", _TIME, nullable=True),
        sa.Column("worker_id", sa.Integer(), nullable=True),
        sa.Column("last_seq", sa.Integer(), nullable=False),
        sa.CheckConstraint(
            "(finished_at IS NOT NULL) = (state IN ('cancelled', 'failed', 'succeeded'))",
            name="ck_jobs_finished",
        ),
        sa.CheckConstraint(
            "lease_token IS NOT NULL OR NOT (state IN ('cancelling', 'pausing', 'running'))",
            name="ck_jobs_lease_needed",
        ),
        sa.CheckConstraint(
            "lease_token IS NULL OR state IN ('cancelling', 'pausing', 'running', 'stopping')",
            name="ck_jobs_lease_allowed",
        ),
        sa.CheckConstraint(_STATES, name="ck_jobs_state"),
        sa.CheckConstraint(
            "(lease_token IS NULL) = (lease_expires_at IS NULL)", name="ck_jobs_lease_whole"
        ),
        sa.CheckConstraint("best_us > 0", name="ck_jobs_best_us"),
        sa.ForeignKeyConstraint(
            ["key_id"], ["keys.id"], name="fk_jobs_key_id_keys", ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["worker_id"], ["workers.id"], name="fk_jobs_worker_id_workers", ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_jobs_claim", "jobs", ["state", "priority", "id"], unique=False)
    op.create_index("ix_jobs_key_id_state", "jobs", ["key_id", "state"], unique=False)
    op.create_index("ix_jobs_lease", "jobs", ["lease_expires_at"], unique=False)
    op.create_table(
        "logins",
        sa.Column("token_sha256", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Integer(), nullable=False),
        sa.Column("csrf", sa.Text(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("expires_at", _TIME, nullable=False),
        sa.ForeignKeyConstraint(
            ["key_id"], ["keys.id"], name="fk_logins_key_id_keys", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("token_sha256", name="pk_logins"),
    )
    op.create_table(
        "artifacts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("media_type", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_artifacts_job_id_jobs", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_artifacts"),
        sa.UniqueConstraint("job_id", "name", name="uq_artifacts_job_id_name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "checkpoints",
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("n_records", sa.Integer(), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("state", sa.LargeBinary(), nullable=False),
        sa.Column("tensors", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_checkpoints_job_id_jobs", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", name="pk_checkpoints"),
    )
    op.create_table(
        "events",
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("type", sa.String(length=16), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("from_state", sa.String(length=16), nullable=True),
        sa.Column("to_state", sa.String(length=16), nullable=True),
        sa.CheckConstraint(_MOVES, name="ck_events_move"),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_events_job_id_jobs", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "seq", name="pk_events"),
    )
    op.create_table(
        "idempotency",
        sa.Column("key_id", sa.Integer(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("request_sha256", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_idempotency_job_id_jobs", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["key_id"], ["keys.id"], name="fk_idempotency_key_id_keys", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("key_id", "idempotency_key", name="pk_idempotency"),
    )
    op.create_table(
        "job_tags",
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("tag", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_job_tags_job_id_jobs", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "tag", name="pk_job_tags"),
    )
    op.create_index("ix_job_tags_tag", "job_tags", ["tag", "job_id"], unique=False)
    op.create_table(
        "rounds",
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("task", sa.Integer(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("n_candidates", sa.Integer(), nullable=False),
        sa.Column("n_invalid", sa.Integer(), nullable=False),
        sa.Column("predicted_us", sa.Double(), nullable=True),
        sa.Column("elapsed_s", sa.Double(), nullable=False),
        sa.Column("steps", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_rounds_job_id_jobs", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "task", "round", name="pk_rounds"),
    )
    op.create_table(
        "tasks",
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("flops", sa.Double(), nullable=False),
        sa.Column("min_bytes", sa.Double(), nullable=False),
        sa.Column("program", sa.Text(), nullable=False),
        sa.Column("task_key", sa.Text(), nullable=True),
        sa.Column("n_sketches", sa.Integer(), nullable=True),
        sa.Column("n_trials", sa.Integer(), nullable=False),
        sa.Column("n_failed", sa.Integer(), nullable=False),
        sa.Column("n_rounds", sa.Integer(), nullable=False),
        sa.Column("best_us", sa.Double(), nullable=True),
        sa.Column("best_trial", sa.Integer(), nullable=True),
        sa.Column("unscheduled_us", sa.Double(), nullable=True),
        sa.Column("unscheduled_message", sa.Text(), nullable=True),
        sa.Column("schedule", sa.Text(), nullable=True),
        sa.Column("source", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_tasks_job_id_jobs", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "number", name="pk_tasks"),
    )
    op.create_table(
        "trainings",
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("n_records", sa.Integer(), nullable=False),
        sa.Column("loss_before", sa.Double(), nullable=True),
        sa.Column("loss_after", sa.Double(), nullable=True),
        sa.Column("accepted", sa.Boolean(), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_trainings_job_id_jobs", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "n_records", name="pk_trainings"),
    )
    op.create_table(
        "trials",
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("task", sa.Integer(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("sketch_index", sa.Integer(), nullable=False),
        sa.Column("schedule_hash", sa.String(length=64), nullable=False),
        sa.Column("decisions", sa.JSON(), nullable=False),
        sa.Column("latency_us", sa.Double(), nullable=True),
        sa.Column("error", sa.String(length=16), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("checked", sa.Boolean(), nullable=False),
        sa.Column("spread", sa.Double(), nullable=True),
        sa.Column("predicted_us", sa.Double(), nullable=True),
        sa.Column("best_us", sa.Double(), nullable=True),
        sa.Column("is_best", sa.Boolean(), nullable=False),
        sa.Column("curve_us", sa.Double(), nullable=True),
        sa.Column("elapsed_s", sa.Double(), nullable=False),
        sa.Column("measured_s", sa.Double(), nullable=False),
        sa.Column("build_s", sa.Double(), nullable=False),
        sa.Column("run_s", sa.Double(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("measured_at", _TIME, nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        sa.Column("final_us", sa.Double(), nullable=True),
        sa.Column("final_error", sa.String(length=16), nullable=True),
        sa.Column("final_record", sa.Text(), nullable=True),
        sa.CheckConstraint("(latency_us IS NULL) <> (error IS NULL)", name="ck_trials_outcome"),
        sa.CheckConstraint("latency_us > 0", name="ck_trials_latency_us"),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_trials_job_id_jobs", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "number", name="pk_trials"),
        sa.UniqueConstraint(
            "job_id", "task", "schedule_hash", name="uq_trials_job_id_task_schedule_hash"
        ),
    )
    op.create_index(
        "ix_trials_curve",
        "trials",
        ["job_id", "number"],
        unique=False,
        sqlite_where=sa.text("curve_us IS NOT NULL"),
        postgresql_where=sa.text("curve_us IS NOT NULL"),
    )
    op.create_index("ix_trials_task", "trials", ["job_id", "task", "number"], unique=False)
