"""ONNX's own cases of one node each: right, refused with a sentence, or a defect.

    python -m benchmarks.conformance [--only REGEX] [--update] [--processes 2]   # make conformance

Each case is imported, lowered, built for this CPU as TVM schedules it, and run; its outputs are
compared with the case's, by the case's tolerances; of 16-bit floats, whose expected values ONNX
rounds at every step, by two units in the last place. A case is, from the worst to the best,

- *wrong*: it ran, and an output differs;
- *failed*: an error that is not Felix's own, a crash, or no end in `LIMIT_S`;
- *unclear*: refused by a sentence that does not say what it is about;
- *refused*: refused by a sentence;
- *right*.

The ledger has the state of each. Cases that are worse than there are printed, and the command
fails; `--update` writes what was found.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import os
import pathlib
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import onnx
import onnxruntime
import tvm
from onnx.backend.test.case import node as onnx_cases
from tvm import relax

from benchmarks.support import common
from felix import errors, frontend, target
from felix.frontend.onnx import conversion

LEDGER = common.RESULTS / "conformance" / "onnx_nodes.txt"
#: From the worst to the best.
STATES = ("wrong", "failed", "unclear", "refused", "right")
#: Of 16-bit floats: a unit in the last place, relative.
_ROUNDING = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
#: Cases whose values are not what ONNX's text says, and what is taken for right: ONNX Runtime's.
#: By the text ends are aligned by whole lengths; the cases take those before they are rounded.
_DISPUTED = frozenset(
    f"test_resize_downsample_scales_{mode}_align_corners" for mode in ("cubic", "linear")
)
#: Seconds that a case may take.
LIMIT_S = 60.0
#: What sentences that say nothing of the model have.
_UNCLEAR = ("with these inputs and attributes", "does not accept its inputs or tensors")
#: A case's state, and what was said of it.
Found: TypeAlias = tuple[str, str]
_forks = multiprocessing.get_context("fork")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases; prints how many are in each state and what got worse."""
    args = _arguments(argv)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        cases = {case.name: case for case in onnx_cases.collect_testcases(None)}
    names = [name for name in cases if re.search(args.only, name)]
    found: dict[str, Found] = {}
    pipes = []
    for number in range(args.processes):
        ours, theirs = _forks.Pipe(duplex=False)
        of_it = names[number :: args.processes]
        _forks.Process(
            target=lambda c, n, t: t.send(of(c, n)), args=(cases, of_it, theirs)
        ).start()
        pipes.append(ours)
    for pipe in pipes:
        found |= pipe.recv()
    known = read(args.ledger)
    print(", ".join(f"{n} {state}" for state, n in counts(found).items()))
    lost = worse(known, found)
    for name in lost:
        print(f"{name}: {found[name][0]}, was {known[name][0]}: {found[name][1]}")
    if args.update:
        write(args.ledger, known | found)
    return bool(lost and not args.update)


def of(cases: Mapping[str, Any], names: Sequence[str]) -> dict[str, Found]:
    """The states of cases; they run in a process that is forked anew where native code ends it."""
    found: dict[str, Found] = {}
    left = list(names)
    while left:
        ours, theirs = _forks.Pipe(duplex=False)
        process = _forks.Process(target=_run_all, args=(cases, left, theirs))
        process.start()
        theirs.close()
        why = f"no end in {LIMIT_S:.0f} s"
        try:
            while left and ours.poll(LIMIT_S):
                found[left[0]] = ours.recv()
                del left[0]
        except EOFError:
            why = "native code ended the process"
        process.kill()
        process.join()
        if left:
            found[left.pop(0)] = "failed", why
    return found


def _run_all(cases: Mapping[str, Any], names: Sequence[str], pipe: Any) -> None:
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    warnings.simplefilter("ignore")
    for name in names:
        pipe.send(state(cases[name]))


def state(case: Any) -> Found:
    """The state of a case."""
    try:
        return _compared(case)
    except errors.FelixError as error:
        sentence = " ".join(str(error).split())
        is_unclear = any(words in sentence for words in _UNCLEAR)
        return ("unclear" if is_unclear else "refused"), sentence
    except Exception as error:  # whatever it is, it is what the case's state says
        return "failed", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _compared(case: Any) -> Found:
    imported = _imported(case)
    full = tvm.target.Target({**target.parse("llvm").export(), "opt-level": 0})
    built = relax.build(
        frontend.lowered(imported), target=full, relax_pipeline=frontend.build_pipeline()
    )
    machine = relax.VirtualMachine(built, tvm.cpu())
    names = [item.name for item in case.model.graph.input]
    for inputs, outputs in case.data_sets:
        by_name = dict(zip(names, inputs, strict=False))
        if case.name in _DISPUTED:
            outputs = _by_runtime(case.model, by_name)
        given = [tvm.runtime.tensor(_array(by_name[spec.name])) for spec in imported.inputs]
        results = machine["main"](*given, *imported.parameters)
        for index, (result, expected) in enumerate(zip(results, outputs, strict=True)):
            if (why := _difference(result.numpy(), _array(expected), case)) is not None:
                return "wrong", f"output {index}: {why}"
    return "right", ""


def _by_runtime(model: Any, inputs: Mapping[str, Any]) -> list[Any]:
    """The outputs of a model by ONNX Runtime."""
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    outputs: list[Any] = session.run(None, {name: _array(each) for name, each in inputs.items()})
    return outputs


def _imported(case: Any) -> frontend.ImportedModel:
    """A case's model, with values of the inputs that shapes and the like follow from."""
    content = case.model.SerializeToString()
    names = [item.name for item in case.model.graph.input]
    values: dict[str, Any] = {}
    while True:
        try:
            return frontend.import_onnx(content, values=values)
        except conversion.UnknownInput as error:
            found = {name: names.index(name) for name in error.inputs if name in names}
            if not found:
                raise
            inputs = case.data_sets[0][0]
            values |= {name: _array(inputs[place]) for name, place in found.items()}


def _array(value: Any) -> np.ndarray:
    """A tensor of a case."""
    is_message = isinstance(value, onnx.TensorProto)
    return onnx.numpy_helper.to_array(value) if is_message else np.asarray(value)


def _difference(actual: np.ndarray, expected: np.ndarray, case: Any) -> str | None:
    if (actual.dtype, actual.shape) != (expected.dtype, expected.shape):
        return f"{actual.dtype} {actual.shape}, not {expected.dtype} {expected.shape}"
    wide = (each.astype("float64") for each in (actual, expected))
    rtol = max(case.rtol, 2 * _ROUNDING.get(str(expected.dtype), 0.0))
    if np.allclose(*wide, rtol=rtol, atol=case.atol, equal_nan=True):
        return None
    return "other values"


def counts(found: Mapping[str, Found]) -> dict[str, int]:
    """Cases by state."""
    number = collections.Counter(each for each, _ in found.values())
    return {each: number[each] for each in STATES}


def worse(known: Mapping[str, Found], found: Mapping[str, Found]) -> list[str]:
    """Names of cases whose state is worse than what is known of them."""
    both = [name for name in found if name in known]
    return [name for name in both if STATES.index(found[name][0]) < STATES.index(known[name][0])]


def read(path: pathlib.Path) -> dict[str, Found]:
    """The states of a ledger; none where there is no file."""
    lines = path.read_text().splitlines() if path.exists() else []
    parts = (line.split("\t") for line in lines)
    return {name: (each, sentence) for name, each, sentence in parts}


def write(path: pathlib.Path, found: Mapping[str, Found]) -> None:
    """Write a ledger: a line a case, with its state and what was said of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (f"{name}\t{each}\t{sentence}\n" for name, (each, sentence) in sorted(found.items()))
    path.write_text("".join(lines))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="a regular expression of names")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--ledger", type=pathlib.Path, default=LEDGER)
    parser.add_argument("--update", action="store_true", help="write what was found")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
