"""Collecting generated kernels: the workload list, what is measured, recorded and resumed."""

from __future__ import annotations

import dataclasses
import pathlib
from collections import Counter
from typing import Any

import numpy as np
import pytest

from benchmarks.support import subgraphs
from costmodel import __main__ as cli
from costmodel.data import dataset, felix_bridge, workloads_few_channels, workloads_tensor_cores
from costmodel.data import features as task_features
from felix import errors
from felix.features.kind import FeatureKind
from felix.runner import protocol
from felix.templates import spec
from felix.workloads import catalogue
from tests.support import share
from tests.support.templates import made_up_data

BFLOAT16 = "gemm:96,160,64,transpose_b=true,epilogue=bias+gelu,dtype=bfloat16"
FLOAT64 = "gemm:64,64,64,dtype=float64"


def _extents(text: str) -> tuple[Any, ...]:
    """What a line computes, whatever its types, layout and epilogue."""
    operator, params = catalogue.parse_params(text)
    ignored = ("dtype", "out_dtype", "transpose_a", "transpose_b", "epilogue", "layout")
    return operator, *((name, str(v)) for name, v in sorted(params.items()) if name not in ignored)


def test_workloads_are_many_distinct_and_not_those_of_the_benchmarks() -> None:
    lines = workloads_tensor_cores.lines()
    assert lines == workloads_tensor_cores.lines() and len(lines) >= 320
    extents = [_extents(line) for line in lines]
    assert len(set(extents)) == len(lines)
    timed = subgraphs.SETS.items()
    held_out = {_extents(t) for name, each in timed if "tensor" in name for t in each.values()}
    assert len(held_out) >= 60 and not held_out & set(extents)
    parsed = [catalogue.parse_params(line) for line in lines]
    operators = Counter(operator for operator, _ in parsed)
    assert operators["gemm"] >= 250 and operators["conv2d"] >= 40 and operators["conv3d"] >= 10
    dtypes = Counter(params["dtype"] for _, params in parsed)
    assert set(dtypes) == {"bfloat16", "float16", "int8", "float8_e4m3fn"}
    assert dtypes["bfloat16"] > len(lines) / 2 and min(dtypes.values()) >= 20
    products = [params for operator, params in parsed if operator == "gemm"]
    assert {"bias", "relu", "gelu", "residual"} == {
        stage for product in products for stage in product.get("epilogue", ())
    }
    layouts = {("transpose_a" in p, "transpose_b" in p) for p in products}
    assert len(layouts) == 4 and sum("batch" in p for p in products) >= 24
    assert {p["m"] for p in products} >= {1, 2, 8, 32, 197, 2048}


@pytest.mark.slow("builds a program of every workload of the data")
def test_workloads_build_and_most_have_templates() -> None:
    lines = workloads_tensor_cores.lines()[::12]
    workloads = [felix_bridge.workload(line, made_up_data.TARGET) for line in lines]
    assert len({w.key for w in workloads}) == len(lines)
    for workload in workloads:
        task = felix_bridge.task_of(workload, made_up_data.TARGET)
        reasons: list[str] = []
        sketches = felix_bridge.template_sketches_of(task, on_left_out=reasons.append)
        assert bool(sketches) != bool(reasons), workload.name
        if workload.operator == "gemm" and "4_" not in workload.name:
            assert sketches or "batch" in reasons[0]


@pytest.mark.slow("builds a program of every workload of the data")
def test_workloads_of_few_channels_are_distinct_and_all_have_templates() -> None:
    lines = workloads_few_channels.lines()
    extents = {_extents(line) for line in lines}
    assert len(extents) == len(lines) >= 40
    others = [*workloads_tensor_cores.lines(), *subgraphs.EVERY.values()]
    assert not extents & {_extents(line) for line in others}
    parsed = [catalogue.parse_params(line) for line in lines]
    operators = Counter(operator for operator, _ in parsed)
    assert min(operators[f"conv{rank}d"] for rank in (1, 3)) >= 4
    assert operators["conv2d"] >= 20 and operators["conv_transpose2d"] >= 10
    per_group = [params["ci"] // params.get("groups", 1) for _, params in parsed]
    assert sum(channels <= 4 for channels in per_group) >= 20
    assert sum(params.get("groups", 1) > 1 for _, params in parsed) >= 8
    for line in share.of(lines, 12):
        workload = felix_bridge.workload(line, made_up_data.TARGET)
        task = felix_bridge.task_of(workload, made_up_data.TARGET)
        assert felix_bridge.template_sketches_of(task), line


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> made_up_data.Pool:
    made = made_up_data.Pool()
    monkeypatch.setattr(felix_bridge, "pool_for", lambda task, builders: made)
    return made


def _collect(folder: pathlib.Path, lines: str, *more: str) -> int:
    (folder / "w").write_text(lines)
    arguments = ["collect", "--target", "h200", "--kind", "template", "--out", f"{folder}/data"]
    return cli.main([*arguments, "--workloads", f"{folder}/w", "--builders", "2", *more])


def test_kernels_are_measured_recorded_and_resumed(
    tmp_path: pathlib.Path, pool: made_up_data.Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = f"{BFLOAT16}\ngemm:128,128,72,dtype=float16\n"
    assert _collect(tmp_path, lines, "--per-workload", "8", "--turn", "4") == 0
    assert _collect(tmp_path, lines, "--per-workload", "16", "--turn", "8") == 0
    assert "32 of 32 schedules" in capsys.readouterr().out and len(pool.submitted) == 32
    data = dataset.read(tmp_path / "data")
    assert len({r.identity for r in data.records}) == len(data.records) == 32
    assert {r.kind for r in data.records} == {FeatureKind.TEMPLATE}
    names = {record.template for record in data.records}
    assert names <= {"gemm-wgmma", "gemm-wgmma-swapped"} and len(names) >= 1
    sources = Counter(record.source for record in data.records)
    assert sources["descent"] >= 4 and sources["random"] >= 12
    programs = [program.source for program in pool.submitted]
    assert len(set(programs)) > 16 and all("__global__" in text for text in programs)
    stored = task_features.load_features(data, felix_bridge.TemplateFeaturizer())
    assert stored.names == spec.NAMES and stored.skipped == 0
    older = [dataclasses.replace(r, features_version=spec.VERSION - 1) for r in data.records]
    again = task_features.load_features(
        dataclasses.replace(data, records=tuple(older)), felix_bridge.TemplateFeaturizer()
    )
    for task, other in zip(stored.tasks, again.tasks, strict=True):
        np.testing.assert_array_equal(task.rows, other.rows)
        np.testing.assert_array_equal(task.mask, other.mask)
        assert task.mask.any(axis=1).all()


@pytest.mark.slow("measures; the whole collection is tested above")
def test_workloads_of_few_channels_are_collected_alone(
    tmp_path: pathlib.Path, pool: made_up_data.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = workloads_few_channels.lines()
    monkeypatch.setattr(workloads_few_channels, "lines", lambda: every[:2])
    assert _collect(tmp_path, "", "--workloads", "few-channels", "--per-workload", "2") == 0
    data = dataset.read(tmp_path / "data")
    names = {felix_bridge.workload(line, made_up_data.TARGET).name for line in every[:2]}
    assert {workload.name for workload in data.workloads.values()} == names


def test_wrong_results_are_recorded_and_what_has_no_template_is_left_out(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(program: Any) -> float | protocol.ErrorClass:
        is_wrong = int(made_up_data.latency_us(program)) % 2
        return protocol.ErrorClass.WRONG_RESULT if is_wrong else 20.0

    pool = made_up_data.Pool(answer)
    monkeypatch.setattr(felix_bridge, "pool_for", lambda task, builders: pool)
    depthwise = "depthwise_conv2d:1,8,8,32,3,padding=1,dtype=bfloat16"
    lines = f"{depthwise}\n{BFLOAT16}\n{FLOAT64}\n"
    assert _collect(tmp_path, lines, "--per-workload", "12", "--descend", "0") == 0
    output = capsys.readouterr()
    assert "no generated kernel" in output.err and "12 of 36" in output.out
    data = dataset.read(tmp_path / "data")
    assert Counter(r.error for r in data.records).keys() == {None, "wrong_result"}
    assert {data.workloads[r.workload].operator for r in data.records} == {"gemm"}
    assert _collect(tmp_path, f"{FLOAT64}\n") == 0 and len(pool.submitted) == 12


def test_templates_are_for_gpus(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["collect", "--target", "llvm", "--kind", "template", "--out", str(tmp_path)]
    assert cli.main(arguments) == 1
    assert "give --target cuda" in capsys.readouterr().err


def test_records_of_kernels_are_small(tmp_path: pathlib.Path) -> None:
    made_up_data.write(tmp_path / "a", ["gemm:384,512,256,dtype=bfloat16"], 600)
    made_up_data.write(tmp_path / "b", ["gemm:100,771,256,dtype=bfloat16"], 600)
    dataset.compact([tmp_path / "a", tmp_path / "b"], tmp_path / "c")
    (part,) = (tmp_path / "c" / "schedules").iterdir()
    assert part.stat().st_size < 1200 * 200  # 3 MB of 15,000


def test_features_of_another_width_are_refused(tmp_path: pathlib.Path) -> None:
    made_up_data.write(tmp_path, [BFLOAT16], 8)
    data = dataset.read(tmp_path)
    cut = tuple(dataclasses.replace(r, features=r.features[:-1]) for r in data.records)
    with pytest.raises(errors.RecordError, match="stored features"):
        task_features.load_features(
            dataclasses.replace(data, records=cut), felix_bridge.TemplateFeaturizer()
        )
