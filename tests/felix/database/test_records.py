"""Record files that survive kills, and MetaSchedule databases that stock TVM applies."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest
import tvm
from tvm import te
from tvm.s_tir import meta_schedule as ms

from felix import errors
from felix.database import metaschedule_files, records
from felix.runner import protocol
from tests.support import tuning_fakes as fakes
from tests.support import warm


def _record(number: int = 0, **changes: object) -> records.Trial:
    measured = protocol.Measurement.timed([3.0, 1.0, 2.0], checked=True, device="cpu")
    record = fakes.record((4, 8, number), measured, predicted_us=2.5)
    return dataclasses.replace(record, **changes)


def _gemm() -> tvm.IRModule:
    a, b = (te.placeholder((32, 32), name=name) for name in "ab")
    k = te.reduce_axis((0, 32), name="k")
    c = te.compute((32, 32), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="c")
    return tvm.IRModule({"main": te.create_prim_func([a, b, c])})


def _tuned(mod: tvm.IRModule, factor: int) -> tvm.s_tir.Schedule:
    sch = tvm.s_tir.Schedule(mod)
    i, _, _ = sch.get_loops(sch.get_sblock("c"))
    outer, _ = sch.split(i, [factor, None])
    sch.parallel(outer)
    return sch


def test_round_trip_of_latency_and_error(tmp_path: pathlib.Path) -> None:
    failed = protocol.Measurement(error=protocol.ErrorClass.TIMEOUT, message="slow", build_s=2.0)
    written = [
        _record(0),
        _record(1, measurement=failed, predicted_us=None),
        _record(2, decisions=()),
    ]
    path = tmp_path / "deep" / "records.jsonl"
    with records.Writer(path) as writer:
        for record in written:
            writer.append(record)
    assert records.read(path) == written
    assert records.read(path)[1].measured.error is protocol.ErrorClass.TIMEOUT


def test_torn_last_line_is_skipped_then_cut(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "records.jsonl"
    with records.Writer(path) as writer:
        writer.append(_record(0))
    with open(path, "a") as file:
        file.write(_record(1).to_json()[:-10])
    assert records.read(path) == [_record(0)]
    with records.Writer(path) as writer:
        writer.append(_record(2))
    assert records.read(path) == [_record(0), _record(2)]
    path.write_text("x" * 200_000)
    with records.Writer(path) as writer:
        writer.append(_record(3))
    assert records.read(path) == [_record(3)]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"a": 1}',
        '{"felix_record": 99}',
        '{"felix_record": 1}',
        _record().to_json().replace('"round":0', '"round":"zero"'),
        _record().to_json().replace("[4,8,0]", '[4,"8",0]'),
        _record().to_json().replace('"error":null', '"error":"unheard_of"'),
        _record().to_json().replace('"latency_us":2.0', '"latency_us":null'),
        _record().to_json().replace('"round":0', '"round":0,"surprise":1'),
        "[" * 100_000,
    ],
)
def test_malformed_line_is_one_clear_error(tmp_path: pathlib.Path, line: str) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(_record().to_json() + "\n" + line + "\n")
    with pytest.raises(errors.RecordError, match="line 2"):
        records.read(path)


def test_missing_file_and_unwritable_folder(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.RecordError, match="cannot read"):
        records.read(tmp_path / "none.jsonl")
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.OutputError, match="cannot write"):
        records.Writer(tmp_path / "file" / "records.jsonl")


_WRITER = """
from tests.felix.database import test_records as t
from felix.database import metaschedule_files, records
with records.Writer({path!r}) as writer:
    number = 0
    while True:
        writer.append(t._record(number))
        number += 1
        print(number, flush=True)
"""


def test_records_survive_kill_9(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "records.jsonl"
    script = _WRITER.format(path=str(path))
    root = str(pathlib.Path(__file__).parents[3])
    writer = warm.Popen(
        [sys.executable, "-c", script],
        warm=True,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": root},
    )
    assert writer.stdout is not None
    for line in writer.stdout:
        n_written = int(line)
        if n_written == 50:
            break
    writer.send_signal(signal.SIGKILL)
    n_written = int((writer.stdout.read().split("\n")[:-1] or ["50"])[-1])
    writer.wait()
    stored = records.read(path)
    assert len(stored) >= n_written
    assert [record.decisions[2] for record in stored] == list(range(len(stored)))


def test_stock_tvm_applies_an_exported_database(tmp_path: pathlib.Path) -> None:
    mod = _gemm()
    target = tvm.target.Target({"kind": "llvm", "num-cores": 2})
    best = _tuned(mod, 4)
    metaschedule_files.export_database(
        tmp_path,
        [
            metaschedule_files.DatabaseEntry(mod, _tuned(mod, 2).trace, (30.0, 31.0), target),
            metaschedule_files.DatabaseEntry(mod, best.trace, (10.0,), target),
        ],
    )
    database = ms.database.JSONDatabase(work_dir=str(tmp_path))
    applied = ms.tir_integration.compile_tir(database, mod, target)
    tvm.ir.assert_structural_equal(applied.mod["main"].body, best.mod["main"].body)
    arrays = [np.random.default_rng(0).random((32, 32), dtype="f4") for _ in range(3)]
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    tvm.tirx.build(applied.mod, target)["main"](*tensors)
    assert np.allclose(tensors[2].numpy(), arrays[0] @ arrays[1], rtol=1e-4)


def test_database_round_trip_sorts_and_drops_failures(tmp_path: pathlib.Path) -> None:
    mod = _gemm()
    target = tvm.target.Target({"kind": "llvm", "num-cores": 2})
    entries = [
        metaschedule_files.DatabaseEntry(mod, _tuned(mod, factor).trace, latencies, target)
        for factor, latencies in ((2, (30.0,)), (4, (10.0, 12.0)), (8, (1e16,)))
    ]
    metaschedule_files.export_database(tmp_path, entries)
    imported = metaschedule_files.import_database(tmp_path)
    assert [entry.latencies_us for entry in imported] == [
        pytest.approx((10.0, 12.0)),
        pytest.approx((30.0,)),
    ]
    sch = tvm.s_tir.Schedule(imported[0].mod)
    imported[0].trace.apply_to_schedule(sch, remove_postproc=False)
    tvm.ir.assert_structural_equal(sch.mod["main"].body, _tuned(mod, 4).mod["main"].body)
    assert imported[0].target.kind.name == "llvm"


def test_bad_databases_are_record_errors(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.RecordError, match="missing"):
        metaschedule_files.import_database(tmp_path)
    for name in ("database_workload.json", "database_tuning_record.json"):
        (tmp_path / name).write_text("{oops\n")
    with pytest.raises(errors.RecordError, match="cannot read the database"):
        metaschedule_files.import_database(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.OutputError):
        metaschedule_files.export_database(tmp_path / "file", [])
