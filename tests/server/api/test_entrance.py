"""Attacks by what a key of the scope submit sends: other files, options, names, sizes."""

from __future__ import annotations

import json
import logging
import pathlib
import re
from typing import Any

import numpy as np
import pytest

from felix import target, workloads
from felix.target import memory
from felix.task import Task
from server.database import models as tables
from server.parsing import devices
from server.store import jobs, tuners
from tests.server.conftest import GEMM, Service

pytest.importorskip("onnx", reason="onnx is an optional extra")

from tests.support import service_fakes
from tests.support.hostile import onnx_models as models


def refused(response: Any, *words: str) -> str:
    """The detail of a 422 that tells nothing of this machine."""
    assert response.status_code == 422, response.text
    assert not models.tells_secret(response.text)
    assert not any(path in response.text for path in ("site-packages", "/tmp/", "/home/"))
    problem = response.json()
    detail = problem["detail"] + json.dumps(problem.get("errors", ""))
    for word in words:
        assert word in detail, detail
    assert len(detail) < 4000
    return detail


def upload(service: Service, model: Any, **job: Any) -> Any:
    content = model if isinstance(model, bytes) else model.SerializeToString()
    return service.upload("net.onnx", content, json.dumps(job))


def everything(service: Service) -> str:
    """All that the service has written or shows, as text."""
    rows = []
    with service.db.read() as tx:
        for table in tables.Base.metadata.sorted_tables:
            rows += [str(row) for row in tx.execute(table.select())]
    pages = [service.client.get(path).text for path in ("/v1/jobs", "/v1/devices")]
    return "\n".join([*rows, *pages])


@pytest.mark.parametrize("place", ["initializer", "shape", "constant", "branch", "sparse_values"])
def test_an_upload_reads_no_file_of_the_server(
    service: Service,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    place: str,
) -> None:
    key = tmp_path / "admin.key"
    key.write_text(models.SECRET)
    (tmp_path / "link").symlink_to(key)
    monkeypatch.chdir(tmp_path)
    others = (str(key), f"../{tmp_path.name}/admin.key", "link") if place == "shape" else ()
    for location in ("admin.key", *others):
        with caplog.at_level(logging.DEBUG):
            refused(upload(service, models.EXTERNAL[place](location)))
    assert not models.tells_secret(everything(service))
    assert not models.tells_secret(caplog.text + "".join(capfd.readouterr()))
    assert service.client.get("/v1/jobs").json()["items"] == [] and service.files() == []


def test_unknown_names_in_shapes_list_the_inputs(service: Service) -> None:
    open_input = models.model(
        [models.node("Relu", ["x"], ["y"])], inputs=[models.value("x", ["n", 8])]
    )
    refused(upload(service, open_input, shapes={"input": [4, 8]}), "its inputs are 'x'")
    assert upload(service, open_input, shapes={"x": [4, 8]}).status_code == 201


def test_values_of_inputs_are_known_when_a_file_is_read(service: Service) -> None:
    x = np.zeros((4, 8), "float32")
    summed = models.one("ReduceSum", x, np.array([1]))
    refused(upload(service, summed), "must be known")
    refused(upload(service, summed, values={"x2": [1]}), "no input 'x2'")
    refused(upload(service, summed, values={"x1": [[1]]}))
    done = upload(service, summed, values={"x1": [1]})
    assert done.status_code == 201 and done.json()["workload"]["values"] == {"x1": [1]}


@pytest.mark.parametrize(
    "text",
    [
        "llvm -cl-opt=-info-output-file=felix-attack",
        "llvm -num-cores 100000000",
        "llvm -mattr=+avx512f",
        "llvm -mattr=+amx-tile",
        "llvm -mtriple=aarch64-linux-gnu",
        "llvm -jit=mcjit",
        "llvm -libs=mkl",
        "cuda -max_threads_per_block=99999",
        "raspberry-pi/4b-aarch64",
        '{"kind":"llvm","cl-opt":["-debug"]}',
        '{"kind":"cuda","host":{"kind":"llvm","cl-opt":["-debug"]}}',
        '{"kind":"llvm","mattr":["+avx512f"]}',
        '{"kind":"llvm","tag":"aws/cpu/c5.large"}',
        '{"kind":"llvm","unknown":1}',
        "{" * 199,
        "x" * 201,
        "llvm\u202e",
        "llvm -mcpu nonsense",
    ],
)
def test_a_client_sets_no_options_of_compilers(
    service: Service, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    body = {**GEMM, "target": text}
    refused(service.client.post("/v1/jobs", json=body))
    assert not (tmp_path / "felix-attack").exists()


def test_a_foreign_cpu_is_not_hidden_by_an_escape(service: Service) -> None:
    """A job for another CPU waits for one; this one said that it is for any."""
    escaped = '{"kind":"llvm","\\u006dcpu":"skylake-avx512"}'
    for text in (escaped, "aws/cpu/c5.large", "llvm -mcpu=skylake-avx512"):
        made = service.client.post("/v1/jobs", json={**GEMM, "target": text})
        assert made.status_code == 201, made.text
        assert made.json()["target_key"] == "llvm/skylake-avx512"


def here(service: Service) -> dict[str, Any]:
    """Register a tuner with this machine's CPU."""
    (device, *_) = devices.of_this_machine()
    new = tuners.NewWorker(name="t", host="h", pid=1, versions={}, devices=[device])
    service_fakes.write(service.db, tuners.register, new)
    return device


def test_more_cores_than_the_device_has_are_refused(service: Service) -> None:
    cores = here(service)["hardware"]["cores"]
    body = {**GEMM, "target": f"llvm -num-cores {cores + 1}"}
    refused(service.client.post("/v1/jobs", json=body), f"the device has {cores} cores")
    body["target"] = f"llvm -num-cores {cores}"
    assert service.client.post("/v1/jobs", json=body).status_code == 201


def test_a_workload_too_large_for_the_device_does_not_wait(service: Service) -> None:
    here(service)
    for m, n, k in ((60_000, 60_000, 60_000), (200_000, 200_000, 1)):
        large = {"kind": "operator", "name": "gemm", "params": {"m": m, "n": n, "k": k}}
        refused(service.client.post("/v1/jobs", json={"workload": large}), "is too large")
    program = workloads.gemm(200_000, 200_000, 1).to_json()
    body = {"workload": {"kind": "tir", "program": program}}
    refused(service.client.post("/v1/jobs", json=body), "is too large")
    wide = models.model(
        [models.node("MatMul", ["x", "w"], ["y"])],
        inputs=[models.value("x", [50_000, 8]), models.value("w", [8, 50_000])],
    )
    refused(upload(service, wide), "is too large")
    assert service.client.get("/v1/jobs").json()["items"] == []


NAMES = ["a\u202eb", "a\x1b[31mb", "a\nb", "x" * 201, "\u2066x", " "]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_clients_choose_are_lines_of_printable_text(
    service: Service, name: str
) -> None:
    for changes in ({"name": name}, {"tags": [name]}):
        refused(service.client.post("/v1/jobs", json={**GEMM, **changes}))
    params = {"shape": [4, 4], "ops": [name]}
    odd = {"kind": "operator", "name": "elementwise", "params": params}
    refused(service.client.post("/v1/jobs", json={"workload": odd}))
    odd["params"] = {"shape": [4, 4], name: 1}
    refused(service.client.post("/v1/jobs", json={"workload": odd}))
    refused(upload(service, models.model([models.node("Relu", ["x"], ["y"])]), shapes={name: [1]}))
    made = service.client.post("/v1/jobs", json=GEMM).json()
    where = f"/v1/jobs/{made['id']}"
    for changes in ({"name": name}, {"tags": [name]}):
        refused(service.client.patch(where, json=changes))


@pytest.mark.parametrize("note", ["\u202eabc", "a\x1b[0m", "a\0"])
def test_notes_have_no_control_characters(service: Service, note: str) -> None:
    refused(service.client.post("/v1/jobs", json={**GEMM, "note": note}))
    response = service.client.post("/v1/jobs", json={**GEMM, "note": "two\n\tlines"})
    assert response.status_code == 201 and response.json()["note"] == "two\n\tlines"


def test_halves_of_surrogate_pairs_are_refused(service: Service) -> None:
    for field in ("name", "note", "target"):
        body = json.dumps({**GEMM, field: "llvm\ud800"})
        headers = {"Content-Type": "application/json"}
        refused(service.client.post("/v1/jobs", content=body.encode(), headers=headers))


@pytest.mark.parametrize("name", ["x" * 10**6, "a\u202eb", "a\nb", ""])
def test_names_of_tasks_in_programs_are_names(service: Service, name: str) -> None:
    outer = json.loads(workloads.gemm(4, 4, 4).to_json())
    program = json.dumps(outer | {"name": name})
    body = {"workload": {"kind": "tir", "program": program}}
    refused(service.client.post("/v1/jobs", json=body), "a task's name")


def program_of_a_buffer(service: Service, name: str) -> Any:
    """The response to a program whose input has that name."""
    import tvm
    from tvm import te

    a = te.placeholder((8,), name=name)
    func = te.create_prim_func([a, te.compute((8,), lambda i: a[i] + 1.0, name="b")])
    body = {"workload": {"kind": "tir", "program": tvm.ir.save_json(func)}, "target": "h100"}
    return service.client.post("/v1/jobs", json=body)


@pytest.mark.parametrize(
    "name", ['x\n#include "/etc/passwd"\n', 'a; asm("trap;");', "x" * 201, "\u202e"]
)
def test_names_in_programs_are_no_code(service: Service, name: str) -> None:
    """TVM writes a buffer's name into CUDA source, whose compiler quotes the lines of a file."""
    response = program_of_a_buffer(service, name)
    assert response.status_code == 201, response.text
    (program,) = service_fakes.read(service.db, jobs.programs, response.json()["id"])
    assert name not in program and json.dumps(name)[1:-1] not in program
    buffers = [*Task.from_json(program, trusted=True).func.params]
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", buffer.name) for buffer in buffers)


def test_names_that_begin_with_a_digit_are_refused(service: Service) -> None:
    refused(program_of_a_buffer(service, "1x"), "a name has letters")


def test_a_list_of_many_stages_is_refused(service: Service) -> None:
    many = {
        "kind": "operator",
        "name": "elementwise",
        "params": {"shape": [8], "ops": ["exp"] * 65},
    }
    refused(service.client.post("/v1/jobs", json={"workload": many}), "64 are allowed")


def test_errors_quote_little_of_what_is_long(service: Service) -> None:
    odd = {"kind": "operator", "name": "gemm", "params": {"m": [1] * 20_000, "n": 8, "k": 8}}
    detail = refused(service.client.post("/v1/jobs", json={"workload": odd}), "must be an integer")
    assert len(detail) < 300


def test_devices_say_their_memory() -> None:
    (device, *_) = devices.of_this_machine()
    assert device["memory_bytes"] == memory.memory_bytes(target.parse("llvm")) > 1 << 28
