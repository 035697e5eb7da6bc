"""What a built kernel's registers, spills and instructions say of the cost model's errors.

    python benchmarks/built_kernels.py [--workloads 80] [--schedules 16] [--processes 2]

Could a network that is also trained to predict what the compiler makes of a schedule order
schedules better? This measures what being told it adds. The held-out weights score workloads that
they never saw (`data/pretrained/cuda-sm_90`), schedules of these are compiled without a GPU, and
the errors are corrected by what the compiler says: registers and bytes of spills of a thread (of
the kernel with most), instructions of all kernels. The correction is learnt from the other
workloads (five folds of them), by least squares and by trees; *control* are trees of the same size
that are told the prediction alone. Scores are means over workloads, of the compiled schedules:
drawn among those that ran. Writes benchmarks/results/cost-model/built_kernels.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import multiprocessing
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import numpy as np
from numpy.typing import NDArray

from benchmarks.support import common

Vector = NDArray[np.float64]
DATA = common.ROOT / "data" / "cuda"
MODEL = common.ROOT / "data" / "pretrained" / "cuda-sm_90"
OUT = common.RESULTS / "cost-model" / "built_kernels.json"
FOLDS = 5
#: Schedules of a workload below which it is not scored.
LEAST = 5
#: Bytes of an instruction of these GPUs.
INSTRUCTION_BYTES = 16
COLUMNS = ("registers", "spill_bytes", "instructions")


@dataclasses.dataclass(frozen=True, slots=True)
class Kernels:
    """What the compiler says of a program."""

    registers: int
    spill_bytes: int
    instructions: int

    @property
    def numbers(self) -> list[float]:
        """As inputs of a correction."""
        return [
            math.log(self.registers),
            float(self.spill_bytes > 0),
            math.log1p(self.spill_bytes),
            math.log(self.instructions),
        ]


def main() -> int:
    """Compile, correct, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workloads", type=int, default=80)
    parser.add_argument("--schedules", type=int, default=16, help="of a workload")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    args = parser.parse_args()
    drawn = _drawn(args.workloads, args.schedules)
    head, rows = common.header("built_kernels"), []
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        for number, found in enumerate(pool.imap(_of_workload, drawn), 1):
            rows += [found] if len(found["ln_latency"]) >= LEAST else []
            print(number, found["name"], len(found["ln_latency"]), flush=True)
    data = {**head, "rows": rows, "scores": scores(rows)}
    common.write(args.out, data)
    print(render(data))
    return 0


def _drawn(n_workloads: int, n_schedules: int) -> list[tuple[Any, list[Any]]]:
    """Test workloads, each with records of schedules that ran."""
    from costmodel.data import dataset as datasets
    from costmodel.data import features as task_features
    from felix.features.kind import FeatureKind

    known = json.loads((MODEL / "scores.json").read_text())["reports"][0]["tasks"]
    names = {task["name"] for task in known}
    rng = np.random.default_rng(0)
    groups = task_features.grouped(datasets.read(DATA), FeatureKind.TRACE)
    held_out = [
        (workload, [r for r in records if r.error is None])
        for workload, records in groups
        if workload.name in names
    ]
    order = rng.permutation(len(held_out))[:n_workloads]
    return [
        (workload, [records[i] for i in rng.permutation(len(records))[:n_schedules].tolist()])
        for workload, records in (held_out[number] for number in order.tolist())
    ]


def _of_workload(drawn: tuple[Any, list[Any]]) -> dict[str, Any]:
    """Predictions, latencies and kernels of the schedules of a workload that can be built."""
    import torch

    from costmodel.data import features as task_features
    from costmodel.data import felix_bridge
    from costmodel.models import checkpoint
    from costmodel.training import evaluate

    torch.set_num_threads(1)
    workload, records = drawn
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FELIX_CACHE_DIR"] = folder
        task = felix_bridge.task_of(workload, records[0].target)
        hardware = felix_bridge.hardware_of(records[0].device)
        sketches = {each.key: each for each in felix_bridge.sketches_of(task, hardware)}
        built = [
            (record, kernels)
            for record in records
            if record.sketch_key in sketches
            and (kernels := _kernels(sketches[record.sketch_key], record))
        ]
        rows: list[tuple[float, float, Kernels]] = []
        if built:
            featurizer = felix_bridge.FelixFeaturizer()
            network, _ = checkpoint.load(MODEL / "held_out.safetensors")
            predict = evaluate.of_module(network)
            for record, kernels in built:
                one, _ = task_features.task_of(workload, [record], featurizer, None)
                if one is not None:
                    rows.append((float(predict(one)[0]), float(one.ln_latency[0]), kernels))
    return {
        "name": workload.name,
        "operator": workload.operator,
        "predicted": [row[0] for row in rows],
        "ln_latency": [row[1] for row in rows],
        "kernels": [dataclasses.astuple(row[2]) for row in rows],
    }


def _kernels(sketch: Any, record: Any) -> Kernels | None:
    """The kernels of a schedule; None if it cannot be made or built any more."""
    import tvm

    from felix import errors
    from felix.measure.cuda.building import build, launches, nvrtc

    try:
        mod = sketch.apply(list(record.decisions)).mod
        lowered = build.lower(
            mod if build.pipelined(mod) else build.implicit(mod), sketch.task.target
        )
        source = lowered.source
        return of_ptx(nvrtc.compile_ptx(source.text, lowered.arch, headers=source.headers))
    except (
        errors.FelixError,
        launches.BuildError,
        tvm.error.InternalError,
        subprocess.CalledProcessError,
    ):
        return None


def of_ptx(ptx: str) -> Kernels:
    """What ptxas says of a PTX program, and the size of its code."""
    (arch,) = re.findall(r"^\.target (\w+)", ptx, re.MULTILINE)
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = pathlib.Path(folder, "k.ptx"), pathlib.Path(folder, "k.cubin")
        source.write_text(ptx)
        command = ["ptxas", "-v", f"-arch={arch}", str(source), "-o", str(cubin)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        return of_report(said, code_bytes(cubin.read_bytes()))


def of_report(said: str, n_bytes: int) -> Kernels:
    """What `ptxas -v` printed of a program with so many bytes of code."""
    registers = [int(n) for n in re.findall(r"Used (\d+) registers", said)]
    stores = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", said)
    spills = [int(stored) + int(loaded) for stored, loaded in stores]
    return Kernels(max(registers), max(spills, default=0), n_bytes // INSTRUCTION_BYTES)


def code_bytes(elf: bytes) -> int:
    """Bytes of the sections of code of a cubin, which is a 64-bit ELF file."""
    (start,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", elf, start + size * i) for i in range(count)]
    texts = sections[names][4]
    return sum(
        section[5] for section in sections if elf[texts + section[0] :].startswith(b".text.")
    )


# ---------------------------------------------------------------- corrections


def scores(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Scores of the predictions as they are and of each correction."""
    from costmodel.training import metrics

    result = []
    corrections: dict[str, Correction | None] = {
        "as predicted": None,
        "control: trees without": _trees(with_kernels=False),
        "least squares": _least_squares,
        "trees": _trees(with_kernels=True),
    }
    for name, correction in corrections.items():
        corrected = _corrected(rows, correction)
        each = [
            metrics.score(p, np.array(row["ln_latency"]))
            for p, row in zip(corrected, rows, strict=True)
        ]
        result.append({"correction": name, **dataclasses.asdict(metrics.mean(each))})
    return result


#: (inputs [n, k] and errors [n] of the other workloads, inputs [m, k]) -> errors [m]
Correction = Callable[[NDArray[np.float64], Vector, NDArray[np.float64]], Vector]


def _corrected(rows: Sequence[dict[str, Any]], correction: Correction | None) -> list[Vector]:
    """Predictions less the errors that were learnt from workloads of other folds."""
    predicted = [np.array(row["predicted"]) for row in rows]
    if correction is None:
        return predicted
    inputs = [_inputs(row) for row in rows]
    errors = [
        _centred(p - np.array(row["ln_latency"])) for p, row in zip(predicted, rows, strict=True)
    ]
    result = []
    for number, before in enumerate(predicted):
        others = [i for i in range(len(rows)) if i % FOLDS != number % FOLDS]
        x, y = (
            np.concatenate([inputs[i] for i in others]),
            np.concatenate([errors[i] for i in others]),
        )
        result.append(before - correction(x, y, inputs[number]))
    return result


def _inputs(row: dict[str, Any]) -> NDArray[np.float64]:
    """[n, 5]: the prediction, then what the compiler says, each less its workload's mean."""
    kernels = np.array([Kernels(*each).numbers for each in row["kernels"]])
    together = np.column_stack([np.array(row["predicted"]), kernels])
    return together - together.mean(axis=0)


def _centred(values: Vector) -> Vector:
    centred: Vector = values - values.mean()
    return centred


def _least_squares(x: NDArray[np.float64], y: Vector, at: NDArray[np.float64]) -> Vector:
    weights, *_ = np.linalg.lstsq(x, y, rcond=None)
    result: Vector = at @ weights
    return result


def _trees(with_kernels: bool) -> Correction:
    def correction(x: NDArray[np.float64], y: Vector, at: NDArray[np.float64]) -> Vector:
        import xgboost

        width = x.shape[1] if with_kernels else 1
        options = {"max_depth": 4, "eta": 0.1, "min_child_weight": 8, "nthread": 1, "seed": 0}
        model = xgboost.train(options, xgboost.DMatrix(x[:, :width], y), num_boost_round=60)
        errors: Vector = model.predict(xgboost.DMatrix(at[:, :width])).astype(np.float64)
        return errors

    return correction


def render(data: dict[str, Any]) -> str:
    """The table of a results file."""
    keys = ["pairwise", "top1", "top5", "near_best", "centred_rmse"]
    head = ["correction", *(key.replace("_", " ") for key in keys)]
    table = [[row["correction"], *(row[key] for key in keys)] for row in data["scores"]]
    n_kernels = sum(len(row["kernels"]) for row in data["rows"])
    spilled = sum(each[1] > 0 for row in data["rows"] for each in row["kernels"])
    return (
        f"{len(data['rows'])} workloads, {n_kernels} schedules, {spilled} with spills.\n\n"
        + common.table(head, table)
    )


if __name__ == "__main__":
    sys.exit(main())
