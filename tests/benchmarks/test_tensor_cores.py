"""The benchmark of tensor cores: its shapes, and what it makes of pieces."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

from benchmarks import search_efficiency, tensor_cores
from benchmarks.pages import statements
from benchmarks.support import subgraphs, winners
from benchmarks.support.generated import first_choice
from felix.measure import protocol
from felix.measure.pool import local
from felix.templates import spec
from felix.workloads import catalogue
from tests.support.templates import made_up_data


def _pieces(
    name: str, felix_us: float, eager_us: float, inductor_us: float, first_us: float | None = None
) -> list[Any]:
    common = {"name": name, "workload": "gemm:8,8,8", "seed": 0, "date": "2030-01-01"}
    felix = {
        "strategy": "felix",
        "curve": [(1, 2.0, 12.0), (9, 4.0, felix_us)],
        "wall_s": 6.0,
        "n_measured": 9,
        "variant": "gemm-wgmma",
        "flops": 2_000_000,
    }
    us = {"felix": felix_us, "eager": eager_us, "inductor": inductor_us}
    pieces = [common | felix, common | {"strategy": "vendor", "latency_us": us}]
    if first_us is None:
        return pieces
    us["first"], pieces[0]["build_s"] = first_us, 0.25
    return [*pieces, common | {"strategy": "first", "us": first_us}]


RUNS = [
    *_pieces("square-512", 10.0, 9.0, 11.0),
    *_pieces("square-1024", 10.0, 20.0, 40.0),
    *_pieces("bert-up-16-gelu", 5.0, 20.0, 6.0),
]


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


def test_one_command_writes_results_and_the_picture_beside_them(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, work = tmp_path / "results.json", tmp_path / "work"
    out.write_text(json.dumps({"runs": RUNS}))
    search_efficiency.restore(work, out, [f"{run['name']}:*" for run in RUNS])
    places = ["--out", str(out), "--work", str(work)]
    command = ["tensor_cores.py", "--shapes", "square-512", "--limit-s", "0", *places]
    monkeypatch.setattr("sys.argv", command)
    tensor_cores.main()
    assert json.loads(out.read_text())["benchmark"] == "tensor_cores"
    assert "square-512" in (tmp_path / "results.svg").read_text()


def test_the_first_choice_is_beside_the_best_and_building_is_counted() -> None:
    runs = [*RUNS, *_pieces("odd", 10.0, 9.0, 11.0, 15.0), *_pieces("primes", 9.0, 9.0, 9.0, 8.0)]
    rows = {row["name"]: row for row in tensor_cores.shapes(runs)}
    ratios = {name: row["first_ratio"] for name, row in rows.items()}
    assert ratios["odd"] == 1.5 and ratios["primes"] == 1.0 and ratios["square-512"] is None
    text = tensor_cores.render({"runs": runs})
    assert "1 of 2" in text and "first within 25 %" in text and "0.25" in text
    assert "first within 25 %" not in tensor_cores.render({"runs": RUNS})


def test_without_libraries_the_pool_of_felix_says_what_is_best(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [run for run in _pieces("odd", 10.0, 9.0, 11.0, 15.0) if run["strategy"] != "vendor"]
    runs[0] |= {"finals": [(1, 2.0, 11.0), (9, 4.0, 12.0)]}
    (row,) = tensor_cores.shapes(runs)
    assert row["felix_us"] == 11.0 and row["first_ratio"] == 15.0 / 11.0
    assert row["ratio"] is None and row["cores"] == "own"
    text = tensor_cores.render({"runs": runs})
    assert "eager" not in text and "first within 25 %" in text
    said = statements.STATEMENTS["tensor_cores"]({"runs": runs})
    assert said.startswith("Tuning took 6.0 s") and "at most 20 s on 1 of 1" in said
    assert "library" not in said and "It is farther off on odd (1.36)." in said
    runs[0]["lanes"] = True
    assert "on cores that compiled" in statements.STATEMENTS["tensor_cores"]({"runs": runs})

    command = ["tensor_cores.py", "--without-libraries", "--limit-s", "0"]
    monkeypatch.setattr("sys.argv", [*command, "--work", str(tmp_path)])
    assert tensor_cores._arguments().strategies == ("felix", "first")
    assert tensor_cores._arguments().picture is None
    monkeypatch.setattr("sys.argv", [*command, "--lanes"])
    with pytest.raises(SystemExit):
        tensor_cores._arguments()


def test_shapes_that_are_whole_are_restored(tmp_path: pathlib.Path) -> None:
    results = tmp_path / "results.json"
    assert tensor_cores.whole_shapes(results, ["*"]) == []
    runs = [*RUNS, *_pieces("odd", 10.0, 9.0, 11.0, 15.0), *_pieces("primes", 9.0, 9.0, 9.0, 8.0)]
    results.write_text(json.dumps({"runs": runs}))
    assert tensor_cores.whole_shapes(results, []) == []
    assert tensor_cores.whole_shapes(results, ["*"]) == ["odd:*", "primes:*"]
    restored = tensor_cores.whole_shapes(results, ["prime*"])
    search_efficiency.restore(tmp_path / "work", results, restored)
    names = {path.name for path in (tmp_path / "work").iterdir()}
    assert names == {"primes-s0-felix.json", "primes-s0-first.json", "primes-s0-vendor.json"}


def test_sets_take_turns() -> None:
    assert tensor_cores.in_turns([["a", "b", "c"], ["d"], ["a", "e"]]) == ["a", "d", "b", "e", "c"]


def test_the_first_choice_is_the_best_predicted_of_the_templates() -> None:
    task = catalogue.parse(subgraphs.TENSOR_GEMMS["square-512"], target="h200")
    chosen = first_choice.choose(task, seed=0)
    assert chosen is not None
    sketch, suggestion, model = chosen
    assert "__global__" in sketch.program(suggestion.decisions).source and model
    rows = sketch.formulas.exact(sketch.sample(256, seed=3))
    times_us = (np.exp2(rows[..., spec.NAMES.index("analytic_us")]) - 1).sum(axis=1)
    assert suggestion.predicted_us is not None
    assert suggestion.predicted_us <= times_us.min() * 1.25
    wide = catalogue.parse("gemm:64,64,64,dtype=float64", target="h200")
    assert first_choice.choose(wide, seed=0) is None


def test_the_shapes_are_many_and_build() -> None:
    assert len(subgraphs.TENSOR_GEMMS) >= 32
    assert len(subgraphs.TENSOR_RESNET50) == 46 and len(subgraphs.TENSOR_R3D18) == 11
    convolutions = subgraphs.TENSOR_RESNET50 | subgraphs.TENSOR_R3D18
    assert len(set(convolutions.values())) == len(convolutions)
    for text in convolutions.values():
        operator, params = catalogue.parse_params(text)
        assert operator in ("conv2d", "conv3d") and params["dtype"] == "bfloat16"
    for text in list(convolutions.values())[::8]:
        assert catalogue.parse(text, target="cuda").flops > 1e7
    for text in (subgraphs.TENSOR_GEMMS | subgraphs.TENSOR_FUSED).values():
        operator, params = catalogue.parse_params(text)
        assert operator == "gemm" and params["dtype"] == "bfloat16"
    some = catalogue.parse(subgraphs.TENSOR_FUSED["bert-up-197-gelu"], target="cuda")
    assert some.flops > 2 * 197 * 3072 * 768


def test_the_piece_of_a_first_choice_has_its_latency_or_its_error(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools = [made_up_data.Pool(), made_up_data.Pool(lambda _: protocol.ErrorClass.WRONG_RESULT)]
    waiting = iter(pools)
    monkeypatch.setattr(local, "LocalPool", lambda task, options: next(waiting))
    text = subgraphs.TENSOR_GEMMS["square-512"]
    request = {"workload": text, "target": "h200", "seed": 0, "path": str(tmp_path / "a.json")}
    right = first_choice.piece(request)
    assert right["us"] == made_up_data.latency_us(pools[0].submitted[0]) and not right["error"]
    assert winners.read_one(tmp_path / "a.json") == pools[0].submitted
    wrong = first_choice.piece(request | {"path": str(tmp_path / "b.json")})
    assert wrong["us"] is None and "wrong_result" in wrong["error"]
    assert winners.read_one(tmp_path / "b.json") == []
    assert right["decisions"] == wrong["decisions"] and right["predicted_us"] > 0
    wide = request | {"workload": "gemm:64,64,64,dtype=float64", "path": str(tmp_path / "c.json")}
    assert set(first_choice.piece(wide)) == {"wall_s"}
    assert winners.read_one(tmp_path / "c.json") == []
