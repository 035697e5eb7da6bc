"""Changed ONNX files: what ONNX Runtime loads is right or refused, the rest is refused.

    python -m benchmarks.onnx_mutations [--count 5000] [--seed 0] [--out FILE] [--processes 2]
    python -m benchmarks.onnx_mutations --attributes

Each file follows from the seed and its number; with `--attributes` each attribute of each operator
is changed, in one case of the operator. A file is imported, built for this CPU as TVM schedules
it and run, and so it is by ONNX Runtime; where outputs differ, ONNX's reference decides. A file is

- *wrong*: it ran, and an output differs from what both compute;
- *failed*: an error that is not Felix's own, a crash, or no end in `LIMIT_S`;
- *accepted*: it ran, and ONNX Runtime or ONNX's checker say that it is no valid file;
- *unclear*: refused by a sentence that does not say what it is about;
- *unjudged*: it ran, it is valid, and neither engine runs it, or not of these values;
- *refused*: refused by a sentence;
- *right*.

The first four are defects: they are printed, and the command fails. Files that OUT has are not
read again; a line each, in JSON.
"""

from __future__ import annotations

import argparse
import collections
import functools
import json
import os
import pathlib
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import onnx
from onnx import numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from benchmarks.conformance import ledger
from benchmarks.conformance.ledger import Found
from benchmarks.support import forked, onnx_cases, onnx_changes
from felix.frontend.onnx import schemas

STATES = ("wrong", "failed", "accepted", "unclear", "unjudged", "refused", "right")
DEFECTS = STATES[:4]
#: Seconds that a file may take.
LIMIT_S = 60.0
#: What a process may allocate beyond what it has.
_MEMORY_BYTES = 8 << 30
#: Errors of ONNX Runtime by which it only says that it lacks a kernel or an opset.
_LACKS = (
    *("NotImplemented", "is under development", "is not a registered function/op"),
    *("not supported. If you need support", "can't be converted to MLDataType"),
    *("is not supported now", "The implementation does not support"),
    "inconsistent q_sequence_length",  # of masks that broadcast
)
#: Elements of inputs whose values ONNX's inference is told.
_SMALL = 1024
#: Errors of ONNX Runtime about values of a tensor, for which ONNX has no result.
_OF_VALUES = ("out of data bounds", "ut of range", "out of bounds", "by zero")


def main(argv: Sequence[str] | None = None) -> int:
    """Read the files; prints how many are in each state, and the defects."""
    args = _arguments(argv)
    known = read(args.out) if args.out else {}
    numbers = range(args.first, args.first + args.count)
    found = {number: known[number] for number in numbers if number in known}
    left = [number for number in numbers if number not in known]
    originals = onnx_changes.bases() if left or args.attributes else []
    make = functools.partial(onnx_changes.changed, originals, args.seed)
    if args.attributes:
        cases = onnx_changes.of_attributes(originals)
        make, left = cases.__getitem__, [each for each in range(len(cases)) if each not in known]
        found = known
    for row in rows(left, make, args.processes):
        found[row["number"]] = row
        if args.out:
            with args.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
    print(", ".join(f"{n} {state}" for state, n in counts(found.values()).items()))
    defects = [row for _, row in sorted(found.items()) if row["state"] in DEFECTS]
    for row in defects:
        print(f"{row['number']} {row['state']}: {row['name']}, {'; '.join(row['changes'])}: "
              f"{row['why']}")  # fmt: skip
    return bool(defects)


def rows(
    numbers: Sequence[int], make: Callable[[int], onnx_changes.Case], processes: int
) -> Iterator[dict[str, Any]]:
    """What became of the files of these numbers, which `make` makes, as they come."""

    def work(number: int, has_runtime: bool = True) -> Found:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, resource.RLIM_INFINITY))
        return state(make(number), has_runtime)

    def row(number: int, found: Any) -> dict[str, Any]:
        case = make(number)
        has_ended = isinstance(found, forked.Ended)
        answer: Found = Found("failed", found.why) if has_ended else found
        return {
            "number": number,
            "state": answer.state,
            "name": case.name,
            "changes": case.changes,
            "why": answer.sentence,
        }

    ended = []
    for number, found in forked.results(work, numbers, processes, LIMIT_S):
        if isinstance(found, forked.Ended):
            ended.append(number)
        else:
            yield row(number, found)
    # Whose fault it is: again without ONNX Runtime.
    again = forked.results(lambda number: work(number, False), ended, 1, LIMIT_S)
    for number, found in again:
        yield row(number, found)


def state(case: onnx_changes.Case, has_runtime: bool = True) -> Found:
    """The state of a file."""

    def judged() -> Found:
        (outputs,) = onnx_cases.by_felix(case.model, [case.inputs])
        return _judged(case, outputs, has_runtime)

    return ledger.judged(judged)


def _judged(case: onnx_changes.Case, outputs: list[np.ndarray], has_runtime: bool) -> Found:
    """The state of a file of which Felix computes these outputs."""
    names = [item.name for item in case.model.graph.input]
    inputs = dict(zip(names, case.inputs, strict=True))
    invalid, shapes = _checked(case.model, inputs)
    if not has_runtime:
        if invalid is not None:
            return Found("accepted", f"ONNX Runtime crashes / {invalid}")
        return _by_reference(case, outputs, inputs, None)
    expected, error = ledger.attempted(lambda: onnx_cases.by_runtime(case.model, inputs))
    if expected is None:
        said, all_said = ledger.failed(error).sentence, f"{type(error).__name__}: {error}"
        if invalid is None and any(word in all_said for word in _OF_VALUES):
            return Found("unjudged", said)
        if invalid is not None or not any(word in all_said for word in _LACKS):
            return Found("accepted", f"{said} / {invalid}")
        return _by_reference(case, outputs, inputs, None)
    differs: str | None = "ONNX Runtime has another number of outputs"
    if len(expected) == len(outputs):
        differs = onnx_cases.difference(outputs, expected, case)
    if differs is None:
        return Found("right")
    if _contradict(expected, shapes) and not _contradict(outputs, shapes):
        differs = None  # ONNX Runtime does not keep to ONNX
    return _by_reference(case, outputs, inputs, differs)


def _by_reference(
    case: onnx_changes.Case, outputs: list[np.ndarray], inputs: Any, differs: str | None
) -> Found:
    """The state by ONNX's reference: behind a difference from ONNX Runtime, or instead of it."""

    def compared() -> tuple[str | None]:
        with np.errstate(all="ignore"):
            expected = ReferenceEvaluator(case.model).run(None, inputs)
        return (onnx_cases.difference(outputs, expected, case),)

    found, error = ledger.attempted(compared)
    if found is None:
        said = ledger.failed(error).sentence
        is_same = differs is None
        return Found("unjudged", said) if is_same else Found("wrong", f"{differs} / {said}")
    (why,) = found
    if why is None:
        return Found("right", "by ONNX's reference")
    return Found("wrong", f"{differs or 'not run by ONNX Runtime'} / {why} (reference)")


def _checked(model: Any, inputs: Mapping[str, Any]) -> tuple[str | None, list[list[int] | None]]:
    """What ONNX's checker says against a model of these inputs, None where it is valid; and the
    shapes of its outputs, as far as ONNX infers them.

    Shapes that it declares of its outputs are no matter: ONNX Runtime takes those that follow.
    """
    open_ended = onnx.ModelProto()
    open_ended.CopyFrom(model)
    del open_ended.graph.value_info[:]
    for item in open_ended.graph.output:
        item.type.tensor_type.ClearField("shape")
    for item in model.graph.input:
        if inputs[item.name].size <= _SMALL:
            tensor = numpy_helper.from_array(inputs[item.name], item.name)
            open_ended.graph.initializer.append(tensor)
            open_ended.graph.input.remove(item)
    try:
        inferred = shape_inference.infer_shapes(
            open_ended, check_type=True, strict_mode=True, data_prop=True
        )
        shapes = [schemas.shape_of(item.type) for item in inferred.graph.output]
        # The checker takes no output without a shape.
        if all(item.type.tensor_type.HasField("shape") for item in inferred.graph.output):
            onnx.checker.check_model(inferred, full_check=True)
    except (onnx.checker.ValidationError, shape_inference.InferenceError) as error:
        return " ".join(str(error).split())[:200], []
    return None, shapes


def _contradict(outputs: Sequence[Any], shapes: Sequence[list[int] | None]) -> bool:
    """Whether outputs have other shapes than ONNX infers."""
    pairs = zip(outputs, shapes, strict=False)
    return any(shape is not None and list(each.shape) != shape for each, shape in pairs)


def counts(found: Any) -> dict[str, int]:
    """Files by state."""
    number = collections.Counter(row["state"] for row in found)
    return {each: number[each] for each in STATES}


def read(path: pathlib.Path) -> dict[int, dict[str, Any]]:
    """The lines of an earlier run, by number; none where there is no file."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {row["number"]: row for row in map(json.loads, lines)}


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0, help="the first number")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--attributes", action="store_true", help="of each operator, instead")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=pathlib.Path, help="where lines are added, read first")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
