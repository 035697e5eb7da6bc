"""The client: one method a verb of the REST API."""

from __future__ import annotations

import hashlib
import json
import pathlib
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import httpx

from felix import errors, files
from felix.client import _http, _teams, rows

if TYPE_CHECKING:
    import pandas


class Client(_teams.Teams):
    """A service and a key; safe to share between threads, to be closed.

    Args:
        url: address of the service, e.g. `http://127.0.0.1:8000`.
        key: an API key.
        timeout_s: for one response.
        transport: of `httpx`, for tests.
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        timeout_s: float = 60.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._http = _http.Http(url, key, timeout_s, transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def submit(
        self,
        operator: str,
        params: Mapping[str, Any],
        *,
        idempotency_key: str | None = None,
        **settings: Any,
    ) -> rows.Job:
        """Queue a job for an operator of the catalogue (`operators` has their parameters).

        Args:
            operator: its name.
            params: its parameters.
            idempotency_key: repeating the call with it makes no second job.
            settings: target, trials, seconds, name, tags, priority, seed, strategy, options, note,
                reuse (False: begin anew, whatever earlier jobs measured), allow_tf32 (True:
                products of float32 may be computed in TF32 on a GPU).

        Raises:
            RemoteError: the service refused; the message says why.
        """
        workload = {"kind": "operator", "name": operator, "params": dict(params)}
        body = {"workload": workload, **settings}
        return self._http.made(rows.Job, "/v1/jobs", idempotency_key, json=body)

    def submit_program(
        self,
        program: str,
        *,
        file_name: str = "program",
        idempotency_key: str | None = None,
        **settings: Any,
    ) -> rows.Job:
        """Queue a job for a program as JSON (`felix.Task.to_json`); settings as in `submit`."""
        workload = {"kind": "tir", "name": file_name, "program": program}
        body = {"workload": workload, **settings}
        return self._http.made(rows.Job, "/v1/jobs", idempotency_key, json=body)

    def submit_file(
        self,
        path: str | pathlib.Path,
        *,
        kind: str | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        values: Mapping[str, Any] | None = None,
        network: bool | None = None,
        pytorch: bool = False,
        idempotency_key: str | None = None,
        **settings: Any,
    ) -> rows.Job:
        """Queue a job for an ONNX model or a TIR file; settings as in `submit`.

        Args:
            path: the file.
            kind: onnx or tir; None: by the name's end (`.onnx`, `.json`).
            shapes: of ONNX inputs whose extents the file leaves open.
            values: numbers, or lists of them, of ONNX inputs that are the same in every call.
            network: whether the whole network is built when tuning ends; None: that of ONNX is.
            pytorch: whether PyTorch's operators run groups of it where they are faster; what is
                built then needs PyTorch.
            idempotency_key: see `submit`.
            settings: see `submit`.
        """
        path = pathlib.Path(path)
        job = {"kind": kind or ("tir" if path.suffix == ".json" else "onnx"), **settings}
        if shapes is not None:
            job["shapes"] = {name: list(shape) for name, shape in shapes.items()}
        if values is not None:
            job["values"] = dict(values)
        if network is not None:
            job["network"] = network
        if pytorch:
            job["pytorch"] = True
        file = {"file": (path.name, _http.content_of(path))}
        data = {"job": json.dumps(job)}
        return self._http.made(rows.Job, "/v1/jobs/upload", idempotency_key, files=file, data=data)

    def job(self, job_id: int, seq: int = 0) -> rows.Job:
        """A job as it stands.

        Args:
            job_id: its number.
            seq: of a known event; the job returned is not older than it. An API server may
                return one that is `FELIX_CACHE_TTL_S` old, and the event may have come from
                another server.

        Raises:
            RemoteError: there is no such job, or it has no such event.
        """
        started_s = time.monotonic()
        while True:
            job = self._http.row(rows.Job, "GET", f"/v1/jobs/{job_id}")
            if job.last_seq >= seq:
                return job
            if time.monotonic() - started_s > _http.PATIENCE_S:
                raise errors.RemoteError(f"job {job_id} has no event {seq}")
            self._http.sleep(_http.RETRY_S)

    def jobs(self, limit: int | None = None, **filters: Any) -> Iterator[rows.Job]:
        """Jobs, newest first.

        Args:
            limit: at most so many.
            filters: state, tag (one or a list), q, kind, op, target_key, program, mine,
                oldest_first.
        """
        return self._http.items(rows.Job, "/v1/jobs", limit, filters)

    def wait(self, job_id: int, timeout_s: float | None = None) -> rows.Job:
        """The job, when it has ended.

        Raises:
            RemoteError: it has not within the time.
        """
        started_s = time.monotonic()
        job = self.job(job_id)
        while not job.has_ended:
            waited_s = time.monotonic() - started_s
            if timeout_s is not None and waited_s >= timeout_s:
                raise errors.RemoteError(f"job {job_id} is {job.state} after {waited_s:.0f} s")
            left_s = 2.0 if timeout_s is None else min(2.0, timeout_s - waited_s)
            self._http.sleep(left_s)
            job = self.job(job_id)
        return job

    def events(self, job_id: int, after_seq: int = 0) -> Iterator[rows.Event]:
        """Events of a job as they come, until it has ended; lost connections are renewed."""
        return _http.follow(self._http, job_id, after_seq)

    def tasks(self, job_id: int) -> list[rows.Task]:
        """The tensor programs of a job."""
        return self._http.listed(rows.Task, f"/v1/jobs/{job_id}/tasks")

    def trials(
        self, job_id: int, limit: int | None = None, **filters: Any
    ) -> Iterator[rows.Trial]:
        """Trials of a job by number; filters: task, ok, error, round, best_only."""
        path = f"/v1/jobs/{job_id}/trials"
        return self._http.items(rows.Trial, path, limit, filters)

    def best(self, job_id: int) -> list[rows.Trial]:
        """The fastest trial of each task that has one, in the order of tasks."""
        numbers = [task.best_trial for task in self.tasks(job_id)]
        path = f"/v1/jobs/{job_id}/trials"
        return [
            self._http.row(rows.Trial, "GET", f"{path}/{number}")
            for number in numbers
            if number is not None
        ]

    def curve(self, job_id: int, task: int | None = None) -> rows.Curve:
        """Best so far of a job, or of one of its tasks."""
        return _curve(self._http.get(f"/v1/jobs/{job_id}/curve", task=task))

    def network_curve(self, job_id: int) -> rows.Curve:
        """Estimated latency of a call of the job's network: the sum of calls x latency.

        A task counts with the faster of its best so far and its unscheduled program, so the curve
        begins where those are known, as a rule before the first trial.

        Raises:
            RemoteError: there is no such job, or it builds no network.
        """
        return _curve(self._http.get(f"/v1/jobs/{job_id}/network/curve"))

    def curves(self, job_ids: Sequence[int]) -> list[rows.Curve]:
        """The curves of several jobs."""
        page = self._http.get("/v1/curves", job=list(job_ids))
        return [_curve(item) for item in page["items"]]

    def search(self, job_id: int) -> dict[str, Any]:
        """Search internals: rounds with descent steps, trainings, error classes."""
        internals: dict[str, Any] = self._http.get(f"/v1/jobs/{job_id}/search")
        return internals

    def dataframe(self, job_id: int) -> pandas.DataFrame:
        """All trials as a pandas table, a row a trial, indexed by number.

        Raises:
            RemoteError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise errors.RemoteError(
                "dataframes need pandas: pip install 'felix-tuner[dataframe]'"
            ) from error
        text = self._http.send("GET", f"/v1/jobs/{job_id}/trials.jsonl").text
        records = [json.loads(line) for line in text.splitlines()]
        names = list(rows.Trial.__dataclass_fields__)
        table = pandas.DataFrame.from_records(records, columns=names)
        table["measured_at"] = pandas.to_datetime(table["measured_at"], utc=True, format="ISO8601")
        return table.set_index("number")

    def artifacts(self, job_id: int) -> list[rows.Artifact]:
        """The files of a job."""
        return self._http.listed(rows.Artifact, f"/v1/jobs/{job_id}/artifacts")

    def download(
        self,
        job_id: int,
        folder: str | pathlib.Path = ".",
        name: str | None = None,
        *,
        network: bool = False,
    ) -> pathlib.Path:
        """Write an artifact into a folder, checked against its sha256; its path.

        Args:
            job_id: the job.
            folder: made if it is not there.
            name: of the artifact; None: the bundle.
            network: without a name, the network that the job built.

        Raises:
            RemoteError: there is no such artifact, or it arrived damaged.
            OutputError: the folder cannot be written.
        """
        artifact = self._find_artifact(job_id, name, "network" if network else "bundle")
        folder, file_name = pathlib.Path(folder), pathlib.PurePosixPath(artifact.name).name
        if file_name != artifact.name or file_name in ("", ".", "..") or "\\" in file_name:
            raise errors.RemoteError(
                f"the artifact's name is not one of a file: {artifact.name!r}"
            )
        with errors.writing(f"in {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            with files.replacing(folder / file_name, durable=False) as file:
                self._fetch(job_id, artifact, file)
        return folder / file_name

    def pause(self, job_id: int) -> rows.Job:
        """Pause the job; everything measured stays."""
        return self._do(job_id, "pause")

    def resume(self, job_id: int) -> rows.Job:
        """Go on with a paused job."""
        return self._do(job_id, "resume")

    def cancel(self, job_id: int) -> rows.Job:
        """Drop the job; there is no artifact."""
        return self._do(job_id, "cancel")

    def stop(self, job_id: int) -> rows.Job:
        """End the job early, with the artifact of the best so far."""
        return self._do(job_id, "stop")

    def retry(self, job_id: int) -> rows.Job:
        """Go on with a failed or cancelled job."""
        return self._do(job_id, "retry")

    def change(self, job_id: int, **changes: Any) -> rows.Job:
        """Change name, note, priority or tags."""
        return self._http.row(rows.Job, "PATCH", f"/v1/jobs/{job_id}", json=changes)

    def delete(self, job_id: int) -> None:
        """Remove an ended job and all it has."""
        self._http.send("DELETE", f"/v1/jobs/{job_id}")

    def operators(self) -> dict[str, dict[str, Any]]:
        """JSON Schema of the parameters of every operator, by name."""
        schemas: dict[str, dict[str, Any]] = self._http.get("/v1/operators")
        return schemas

    def log(self, job_id: int) -> str:
        """What happened to a job, a line an event."""
        return self._http.send("GET", f"/v1/jobs/{job_id}/log").text

    def _do(self, job_id: int, verb: str) -> rows.Job:
        return self._http.row(rows.Job, "POST", f"/v1/jobs/{job_id}/{verb}")

    def _find_artifact(self, job_id: int, name: str | None, kind: str) -> rows.Artifact:
        matching = [
            artifact
            for artifact in self.artifacts(job_id)
            if (artifact.kind == kind if name is None else artifact.name == name)
        ]
        if not matching:
            if name is not None:
                raise errors.RemoteError(f"job {job_id} has no artifact {name!r}")
            job = self.job(job_id)
            failure = (job.network or {}).get("failure") if kind == "network" else None
            why = f"it is {job.state}" if failure is None else str(failure)
            what = "network" if kind == "network" else "artifact"
            raise errors.RemoteError(f"job {job_id} has no {what} to download: {why}")
        return matching[0]

    def _fetch(self, job_id: int, artifact: rows.Artifact, file: BinaryIO) -> None:
        digest = hashlib.sha256()
        quoted = urllib.parse.quote(artifact.name, safe="")
        try:
            with self._http.stream(f"/v1/jobs/{job_id}/artifacts/{quoted}") as response:
                for chunk in response.iter_bytes():
                    digest.update(chunk)
                    file.write(chunk)
        except httpx.TransportError as error:
            raise self._http.unreachable(error) from error
        if digest.hexdigest() != artifact.sha256:
            raise errors.RemoteError(
                f"{artifact.name} arrived damaged (its sha256 differs): download it again"
            )


def _curve(content: Mapping[str, Any]) -> rows.Curve:
    points = [rows.of(rows.CurvePoint, point) for point in content["points"]]
    return rows.of(rows.Curve, {**content, "points": points})
