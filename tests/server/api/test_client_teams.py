"""The client and the command line with what teams share: projects, batches, databases, reuse."""

from __future__ import annotations

import dataclasses
import pathlib
import re
import zipfile
from typing import Any

import pytest

from felix import client, errors
from felix.cli import main
from felix.cli.remote import jobs as job_commands
from felix.client import rows
from server.store import jobs, keys
from tests.server import conftest
from tests.support import api_rows, service_fakes
from tests.support.live_service import Served, Shell

GEMM = conftest.GEMM | {"trials": 4}


def test_batches_templates_and_estimates(felix: client.Client) -> None:
    batch = felix.submit_batch([GEMM, GEMM | {"trials": -1}])
    assert [item["problem"] is None for item in batch.items] == [True, False]
    assert felix.batch(batch.id) == batch and felix.batches(limit=1) == [batch]
    felix.save_template("t", GEMM)
    assert [template.name for template in felix.templates()] == ["t"]
    job = felix.submit_template("t", workload={"params": {"m": 16}}, name="changed")
    assert (job.name, job.workload["params"]["m"]) == ("changed", 16)
    assert job.estimate is not None and job.estimate["position"] >= 2
    assert [other["id"] for other in felix.similar(job.id)] == [batch.items[0]["job_id"]]
    assert felix.estimate(GEMM).position > job.estimate["position"]
    felix.delete_template("t")
    with pytest.raises(errors.RemoteError, match="no template"):
        felix.submit_template("t")
    for number in (job.id, batch.items[0]["job_id"]):
        felix.cancel(number)


def test_databases(felix: client.Client, tmp_path: pathlib.Path) -> None:
    (tmp_path / "in.zip").write_bytes(api_rows.tuned_zip())
    job = felix.import_database(tmp_path / "in.zip")
    assert (job.kind, job.state, job.reason) == ("database", "succeeded", "imported")
    exported = felix.export_database(tmp_path / "again.zip", [job.id])
    assert felix.import_database(exported).workload["n_records"] == 1
    queued = felix.submit_batch([GEMM | {"reuse": False}]).items[0]["job_id"]
    with pytest.raises(errors.RemoteError, match="no artifact"):
        felix.export_database(tmp_path / "out.zip", [job.id, queued])
    assert not (tmp_path / "out.zip").exists()
    felix.cancel(queued)
    with pytest.raises(errors.WorkloadError, match="cannot read"):
        felix.import_database(tmp_path / "missing.zip")


def test_a_database_of_results(
    served: Served, felix: client.Client, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_rows, "CONTENT", api_rows.tuned_zip())
    done = api_rows.finished(served.db, served.blobs, tags=("db",))
    path = felix.export_database(tmp_path / "out.zip", tag="db")
    with zipfile.ZipFile(path) as archive:
        assert sorted(archive.namelist()) == [
            "database_tuning_record.json",
            "database_workload.json",
        ]
    assert felix.export_database(tmp_path / "b.zip", [done.id]).read_bytes() == path.read_bytes()


def test_the_command_line_says_what_is_reused(
    served: Served, shell: Shell, felix: client.Client
) -> None:
    done = api_rows.finished(served.db, served.blobs)  # says how long a trial takes
    code, out, _ = shell("submit", "gemm:8,8,8", "--trials", "4", "--no-reuse")
    place = r"number \d+ in the queue, begins in about \d+ s, takes about \d+ s"
    assert code == 0 and re.search(place, out), out
    code, out, _ = shell(
        "submit", "gemm:8,8,8", "--trials", "4", "--target", "cuda -arch sm_70", "--no-reuse"
    )
    assert code == 0 and "waits for a device of cuda/sm_70: the tuners have" in out, out
    code, _, err = shell("submit", "gemm:8,8,8", "--pytorch")
    assert code != 0 and "--pytorch is for the network of an ONNX file" in err
    for flags, refused in (([], None), (["--no-reuse"], False)):
        arguments = main._parser().parse_args(["submit", "gemm:8,8,8", *flags])
        assert job_commands._settings(arguments).get("reuse") is refused
    with served.db.write() as tx:
        row = tx.get_one(jobs.models.Job, done.id)
        row.reused_from, row.n_unscheduled = 3, 1
    assert f"job 3 has tuned it; get it: felix get {done.id}" in job_commands._line(
        felix.job(done.id)
    )
    text = job_commands.summary(felix.job(done.id))
    assert "answered by job 3" in text and "it is what ships" in text


def test_projects_and_webhooks_by_command(
    served: Served, felix: client.Client, shell: Shell
) -> None:
    def run(*words: str) -> str:
        code, printed, _ = shell(*words)
        assert code == 0
        return printed

    run("projects", "create", "vision", "--max-bytes", "10000000000")
    run("projects", "limit", "vision", "--retention-days", "30")
    (project,) = (p for p in felix.projects() if p.name == "vision")
    assert (project.max_bytes, project.retention_days) == (None, 30)
    table = run("projects", "ls")
    assert "vision" in table and "30" in table and "default" in table
    text = run("keys", "create", "k", "--project", "vision").strip()
    assert service_fakes.read(served.db, keys.find, text).project == "vision"
    assert "vision" in run("keys", "ls")
    secret = run("webhooks", "create", "https://ci.invalid/", "--state", "failed").strip()
    assert secret.startswith("whsec_")
    (hook,) = felix.webhooks()
    assert hook.states == ["failed"]
    assert "test-" in run("webhooks", "test", str(hook.id))
    assert "pending" in run("webhooks", "deliveries", str(hook.id))
    assert [each.webhook_id for each in felix.deliveries(hook.id)] == [hook.id]
    run("webhooks", "delete", str(hook.id))
    assert run("webhooks", "ls") == ""
    assert shell("projects", "create")[0] == shell("webhooks", "test", "x")[0] == 1


def test_rows_of_older_services_are_read() -> None:
    def row_without(kind: type, *names: str) -> Any:
        known = {field.name: None for field in dataclasses.fields(kind) if field.name not in names}
        return rows.of(kind, known)

    newer = ("program_key", "reused_from", "settled", "ships_unscheduled")
    task = row_without(rows.Task, *newer)
    assert (task.program_key, task.settled, task.ships_unscheduled) == (None, False, False)
    assert row_without(rows.Key, "project").project == "default"
    for kind in (rows.Task, rows.Key):
        with pytest.raises(errors.RemoteError, match="another version"):
            row_without(kind, "project", "name")
