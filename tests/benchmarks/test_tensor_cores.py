"""The benchmark of tensor cores: its shapes, and what it makes of pieces."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from benchmarks import tensor_cores
from benchmarks.support import subgraphs
from felix.workloads import catalogue


def _pieces(name: str, felix_us: float, eager_us: float, inductor_us: float) -> list[Any]:
    common = {"name": name, "workload": "gemm:8,8,8", "seed": 0, "date": "2030-01-01"}
    felix = {"strategy": "felix", "curve": [(1, 2.0, 12.0), (9, 4.0, felix_us)], "wall_s": 6.0,
             "n_measured": 9, "variant": "gemm-wgmma", "flops": 2_000_000}  # fmt: skip
    us = {"felix": felix_us, "eager": eager_us, "inductor": inductor_us}
    return [common | felix, common | {"strategy": "vendor", "latency_us": us}]


RUNS = [*_pieces("square-512", 10.0, 9.0, 11.0), *_pieces("square-1024", 10.0, 20.0, 40.0),
        *_pieces("bert-up-16-gelu", 5.0, 20.0, 6.0)]  # fmt: skip


def test_the_faster_library_counts() -> None:
    rows = {row["name"]: row for row in tensor_cores.shapes(RUNS)}
    ratios = {name: row["ratio"] for name, row in rows.items()}
    assert ratios == {"square-512": 0.9, "square-1024": 2.0, "bert-up-16-gelu": 1.2}
    assert rows["square-512"]["tflops"] == pytest.approx(0.2)
    assert rows["square-512"]["sketch"] == "gemm-wgmma" and rows["square-512"]["to_90%_s"] == 4.0
    by_set = tensor_cores.ratios_by_set(list(rows.values()))
    assert by_set == {"gemms": [0.9, 2.0], "fused": [1.2]}


def test_a_shape_with_one_piece_has_no_row() -> None:
    assert tensor_cores.shapes(RUNS[:1]) == [] and tensor_cores.render({"runs": RUNS[:1]}) == ""


def test_the_table_has_geometric_means_and_the_picture_a_bar_a_shape(
    tmp_path: pathlib.Path,
) -> None:
    text = tensor_cores.render({"runs": RUNS})
    assert "| gemms |      2 |" in text and "1.34" in text and "gemm-wgmma" in text
    tensor_cores.picture({"runs": RUNS}, tmp_path / "bars.svg")
    drawn = (tmp_path / "bars.svg").read_text()
    assert all(name in drawn for name in ("square-512", "square-1024", "bert-up-16-gelu"))


def test_the_shapes_are_many_and_build() -> None:
    assert len(subgraphs.TENSOR_GEMMS) >= 32
    for text in (subgraphs.TENSOR_GEMMS | subgraphs.TENSOR_FUSED).values():
        operator, params = catalogue.parse_params(text)
        assert operator == "gemm" and params["dtype"] == "bfloat16"
    some = catalogue.parse(subgraphs.TENSOR_FUSED["bert-up-197-gelu"], target="cuda")
    assert some.flops > 2 * 197 * 3072 * 768
