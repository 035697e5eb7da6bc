"""Two lanes of a benchmark: what overlaps, what fails alone, and who has the GPU."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import pathlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from benchmarks import search_efficiency, tensor_cores
from benchmarks.support import common, winners
from benchmarks.support.lanes import device, lane, overlap, pieces
from felix.measure.pool.locks import device_lock
from tests.benchmarks import lane_workers


@pytest.fixture(autouse=True)
def _locks(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FELIX_LOCK_DIR", str(tmp_path))
    monkeypatch.setattr(search_efficiency, "PRELOADED", ())


def _run(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    *more: str,
    tuning: Any = lane_workers.tuning,
) -> tuple[int, list[list[Any]], set[str]]:
    """Exit status, the journal and the pieces of a run with lanes that pretend."""
    work, out = tmp_path / "work", tmp_path / "results.json"
    monkeypatch.setattr(pieces, "tuning", tuning)
    libraries = functools.partial(lane_workers.libraries, tmp_path)
    monkeypatch.setattr(pieces, "libraries", libraries)
    argv = [
        "search_efficiency.py",
        "--lanes",
        "--strategies",
        "felix",
        "vendor",
        "--work",
        str(work),
        "--out",
        str(out),
        *more,
    ]
    monkeypatch.setattr("sys.argv", argv)
    status = search_efficiency.main()
    journal = work / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    return status, lines, {path.stem for path in work.glob("*.json")}


def _moment(lines: list[list[Any]], *what: str) -> float:
    (moment,) = (line[3] for line in lines if line[:3] == list(what))
    return float(moment)


def test_a_shape_is_tuned_while_its_libraries_are_prepared_and_then_they_are_timed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning = functools.partial(lane_workers.tuning, lane_workers.await_preparing)
    status, lines, done = _run(
        tmp_path, monkeypatch, "--subgraphs", "gemm", "conv2d-3x3", "conv3d", tuning=tuning
    )
    assert status == 0 and len(done) == 6
    for name in ("gemm", "conv2d-3x3", "conv3d"):
        ends = _moment(lines, "ends", "felix", name)
        assert _moment(lines, "prepare", "vendor", name) < ends
        assert _moment(lines, "time", "vendor", name) > ends
    second = _moment(lines, "begins", "felix", "conv2d-3x3")
    assert second < _moment(lines, "ends", "vendor", "gemm")
    by = {(line[1], line[4]) for line in lines}
    assert len(by) == 2  # one process each, for all shapes
    runs = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert all(run["lanes"] for run in runs)
    lines.clear()
    status, lines, _ = _run(tmp_path, monkeypatch, "--subgraphs", "gemm", "conv2d-3x3", "conv3d")
    assert status == 0 and len(lines) == 15  # nothing is done again


def test_results_are_written_after_each_shape(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    write = common.write

    def spy(path: pathlib.Path, data: Any) -> None:
        write(path, data)
        if path == tmp_path / "results.json":
            written.append(len(json.loads(path.read_text())["runs"]))

    monkeypatch.setattr(common, "write", spy)
    status, _, _ = _run(tmp_path, monkeypatch, "--subgraphs", "gemm", "conv3d")
    assert status == 0 and len(written) == 3
    assert 2 <= written[0] < written[2] == 4


def test_what_fails_costs_its_shape_alone(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["gemm", "layer-norm", "softmax", "conv3d"]
    status, lines, done = _run(tmp_path, monkeypatch, "--subgraphs", *names)
    assert status == 1
    assert done == {
        "gemm-s0-felix",
        "gemm-s0-vendor",
        "softmax-s0-felix",
        "conv3d-s0-felix",
        "conv3d-s0-vendor",
    }
    assert len({line[4] for line in lines if line[1] == "felix"}) == 2
    assert len({line[4] for line in lines if line[1] == "vendor"}) == 2
    assert "cannot be tuned" in (tmp_path / "work" / "layer-norm-s0-felix.log").read_text()
    failed = capsys.readouterr().err
    assert "layer-norm:0:felix" in failed and "softmax:0:vendor" in failed
    assert "layer-norm:0:vendor" in failed and "gemm:" not in failed


def test_a_shape_that_is_begun_is_finished_whatever_the_time(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["gemm", "conv3d", "softmax-odd", "reduction"]
    limited = ["--subgraphs", *names, "--limit-s", "0.1"]
    status, _, done = _run(tmp_path, monkeypatch, *limited)
    assert status == 0 and done == {"gemm-s0-felix", "gemm-s0-vendor"}
    assert search_efficiency.TIME_IS_UP in capsys.readouterr().out
    status, _, done = _run(tmp_path, monkeypatch, "--subgraphs", *names)
    assert status == 0 and len(done) == 8


def test_a_search_without_programs_is_made_again_if_libraries_are_missing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run(tmp_path, monkeypatch, "--subgraphs", "gemm", "conv3d")
    results, work = tmp_path / "results.json", tmp_path / "work"
    data = json.loads(results.read_text())
    data["runs"] = [
        run for run in data["runs"] if (run["name"], run["strategy"]) != ("conv3d", "vendor")
    ]
    results.write_text(json.dumps(data))
    for path in work.iterdir():
        path.unlink()
    status, lines, done = _run(
        tmp_path, monkeypatch, "--subgraphs", "gemm", "conv3d", "--restore", "*"
    )
    assert status == 0 and len(done) == 4 and {line[2] for line in lines} == {"conv3d"}
    assert (work / "conv3d-s0-felix").with_suffix(winners.SUFFIX).exists()


def test_a_request_that_hangs_is_ended(tmp_path: pathlib.Path) -> None:
    one = lane.Lane(lane_workers.hanging, patience_s=0.3)
    assert not one.run({"log": str(tmp_path / "log")})
    one.close()


def test_lanes_are_for_felix_and_the_libraries(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["search_efficiency.py", "--lanes", "--strategies", "felix", "stock"]
    monkeypatch.setattr("sys.argv", argv)
    with pytest.raises(SystemExit):
        search_efficiency.main()
    assert "run without it: stock" in capsys.readouterr().err


def test_shapes_of_tensor_cores_go_to_lanes_in_order(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[argparse.Namespace] = []
    monkeypatch.setattr(search_efficiency, "search", lambda args, *_: parsed.append(args) or 0)
    argv = ["tensor_cores.py", "--lanes", "--first", "gemms", "fused", "--work", str(tmp_path)]
    monkeypatch.setattr("sys.argv", argv)
    assert tensor_cores.main() == 0
    shapes = search_efficiency.missing_shapes(parsed[0])
    names = [shape.name for shape in shapes]
    members = tensor_cores.SETS
    n_first = len(members["gemms"]) + len(members["fused"])
    assert set(names[:n_first]) == {*members["gemms"], *members["fused"]}
    assert set(names) == {name for each in members.values() for name in each}
    label, prepare, timing = shapes[0].libraries or ("", {}, {})
    assert label == f"{names[0]}:0:vendor" and timing["path"] == prepare["path"]
    assert list(shapes[0].tuning) == [f"{names[0]}:0:felix", f"{names[0]}:0:first"]


def test_tuning_is_little_ahead() -> None:
    begun: list[str] = []
    enough = threading.Event()

    class Tunes(lane.Lane):
        def run(self, request: lane.Request) -> bool:
            begun.append(request["log"])
            return True

    class Waits(lane.Lane):
        def run(self, request: lane.Request) -> bool:
            return enough.wait(5)

    shapes = [
        overlap.Shape(str(n), {str(n): {"log": str(n)}}, (str(n), {"log": ""}, {"log": ""}))
        for n in range(9)
    ]
    ended: list[int] = []
    run = overlap.Overlap(
        Tunes(lane_workers.tuning),
        Waits(lane_workers.tuning),
        lambda text: None,
        ended=lambda: ended.append(len(begun)),
    )
    thread = threading.Thread(target=run.run, args=(shapes,))
    thread.start()
    time.sleep(0.3)
    assert len(begun) == overlap.AHEAD and ended == []
    enough.set()
    thread.join()
    assert len(begun) == 9 and run.failed == []
    assert len(ended) == 9


class _Lock:
    def __init__(self) -> None:
        self.is_held = False

    def acquire(self) -> None:
        assert not self.is_held
        self.is_held = True

    def release(self) -> None:
        assert self.is_held
        self.is_held = False


def test_a_turn_is_taken_and_let_go_in_nested_blocks() -> None:
    lock = _Lock()
    turn = device.Turn(lock)
    with turn.taken(), turn.taken():
        with turn.let_go():
            assert not lock.is_held
            with contextlib.suppress(ValueError), turn.taken():
                assert lock.is_held
                raise ValueError
            assert not lock.is_held
        assert lock.is_held
    assert not lock.is_held and turn.held_s > 0


def test_inductor_has_the_lock_while_it_chooses_and_not_while_it_compiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch._inductor import compile_fx, select_algorithm

    lock, held = _Lock(), {}
    compiling, choosing = compile_fx.compile_fx, select_algorithm.AlgorithmSelectorCache

    def choose(cls: Any, choices: Any, **more: Any) -> dict[Any, float]:
        held["choosing"] = lock.is_held
        return dict.fromkeys(choices, 1.0)

    def compile_(*args: Any, **kwargs: Any) -> Any:
        held["compiling"] = lock.is_held
        timings = choosing.make_benchmark_fn([], [], None, {})(["a", "b"])
        assert timings == {"a": 1.0, "b": 1.0} and not lock.is_held
        return compiling(*args, **kwargs)

    monkeypatch.setattr(compile_fx, "compile_fx", compile_)
    monkeypatch.setattr(choosing, "benchmark_in_current_process", classmethod(choose))
    torch.compiler.reset()
    turn = device.Turn(lock)
    with device.shared_while_compiling(turn) as shares, turn.taken(), torch.inference_mode():
        assert shares
        call = torch.compile(lambda a, b: a @ b + 1, mode="max-autotune", dynamic=False)
        assert call(torch.ones(8, 8), torch.ones(8, 8))[0, 0] == 9.0
        assert lock.is_held
    assert held == {"compiling": False, "choosing": True} and not lock.is_held
    assert compile_fx.compile_fx is compile_


def test_the_lock_is_held_all_the_time_where_pytorch_is_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device, "FUSES", ("torch._inductor.codegen.triton", "Missing", "method"))
    from torch._inductor import compile_fx

    before = compile_fx.compile_fx
    with device.shared_while_compiling(device.Turn(_Lock())) as shares:
        assert not shares and compile_fx.compile_fx is before


def test_waiting_for_a_lock_is_counted(tmp_path: pathlib.Path) -> None:
    waits = device.Waits()
    first, second = (device_lock.DeviceLock(tmp_path / "a") for _ in range(2))
    first.acquire()
    threading.Timer(0.2, first.release).start()
    with waits.counted():
        second.acquire()
    second.release()
    assert 0.1 < waits.seconds < 2


def test_libraries_are_prepared_once_and_timed_with_the_lock(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.support import vendor
    from felix.cli.comparison import torch_child
    from felix.measure.calls import cuda_calls

    lock = _Lock()
    first_calls: list[bool] = []

    def compiled(call: Any, place: str) -> Any:
        def called(*inputs: Any) -> Any:
            first_calls.append(lock.is_held)
            return call(*inputs)

        return called

    def in_turns_us(calls: dict[Any, Any], turns: int, burst: int) -> dict[Any, list[float]]:
        assert lock.is_held
        return {name: [1.0] for name in calls}

    monkeypatch.setattr(vendor, "DEVICE", "cpu")
    monkeypatch.setattr(torch_child, "compiled", compiled)
    monkeypatch.setattr(cuda_calls, "in_turns_us", in_turns_us)
    work = pieces.Libraries(device.Turn(lock), shares=True)
    request = {
        "name": "a",
        "workload": "conv2d:1,4,4,2,2",
        "seed": 0,
        "strategy": "vendor",
        "target": "llvm",
        "path": str(tmp_path / "a-s0-vendor.json"),
        "log": "unused",
        "lanes": True,
    }
    work.do(request | {"phase": "prepare"})
    assert first_calls == [True, True]  # one for each layout
    work.do(request | {"phase": "time"})
    assert len(first_calls) == 2 and not lock.is_held
    piece = json.loads((tmp_path / "a-s0-vendor.json").read_text())
    assert piece["latency_us"] == {"eager": 1.0, "inductor": 1.0} and piece["lanes"]
    assert piece["prepare_s"] > 0 and "log" not in piece and "phase" not in piece
    work.do(request | {"phase": "time"})  # by a process that took another one's place
    assert len(first_calls) == 4


def test_felix_tunes_shape_after_shape_by_one_pool(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches: list[str] = []
    with _tuning() as do:
        for number in (1, 2):
            path = tmp_path / f"a{number}-s0-felix.json"
            do(
                {
                    "name": "a",
                    "workload": f"gemm:32,32,{32 * number}",
                    "seed": 0,
                    "trials": 4,
                    "strategy": "felix",
                    "target": "llvm",
                    "model": None,
                    "max_compile_s": None,
                    "path": str(path),
                    "log": "unused",
                    "lanes": True,
                }
            )
            caches.append(os.environ["FELIX_CACHE_DIR"])
            piece = json.loads(path.read_text())
            assert piece["n_measured"] == 4 and piece["best_warm_us"] > 0
            assert piece["lock_wait_s"] >= 0 and path.with_suffix(winners.SUFFIX).exists()
    assert len(set(caches)) == 2 and not any(pathlib.Path(each).exists() for each in caches)


@contextlib.contextmanager
def _tuning() -> Iterator[pieces.Do]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FELIX_CACHE_DIR", "")  # is put back
        with pieces.tuning() as do:
            yield do
