"""Public networks three ways, each compared with PyTorch: right, refused, or a defect.

    python -m benchmarks.public_networks [--only REGEX] [--trials 1] [--missing] [--update]

Needs the extra `networks`. Each network (`benchmarks.networks.public`) has a process of its own,
which is ended after `LIMIT_S`. Its ways are

- *optimize*: `felix.optimize` of the module, of one trial;
- *backend*: `torch.compile(..., backend="felix")`, all whose groups run as TVM schedules them and
  none by PyTorch;
- *onnx*: `felix.optimize` of the file that PyTorch's exporter writes, of one trial. Where that is
  off, ONNX Runtime says whether the file is: the exporter has no minus infinity in masks.

All are called with the example and with other inputs. Where all is right the error is the largest
one of `felix.network.agreement`. States are those of `benchmarks.conformance`, and so is the
ledger. `--update` writes after each network; with `--missing` those that the ledger has are left
out, so that an interrupted run goes on.
"""

from __future__ import annotations

import argparse
import functools
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import onnxruntime
import torch
from torch.utils import _pytree as pytree

import felix
from benchmarks.conformance import ledger
from benchmarks.conformance.ledger import Found
from benchmarks.networks import public
from benchmarks.support import common
from felix import errors
from felix.builder import payload
from felix.database import store
from felix.database.outcome import KnownResult
from felix.network import agreement
from felix.task import Task

LEDGER = common.RESULTS / "conformance" / "public_networks.txt"
#: Seconds that a network may take, all ways together.
LIMIT_S = 1200.0
#: Reasons of the backend for a part that it gives back to PyTorch, and what they are here.
_DEFECTS = {
    "its network differs": "wrong",
    "its network cannot be built": "failed",
    "its network does not run": "failed",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Compare the networks; prints each way's state, how many are in each and what got worse."""
    args = _arguments(argv)
    if args.one:
        name, lines = args.one
        _compare(name, pathlib.Path(lines), args.trials)
        return 0
    known = ledger.read(args.ledger)
    found: dict[str, Found] = {}
    for name in public.NETWORKS:
        is_known = all(f"{name} {way}" in known for way in WAYS)
        if not re.search(args.only, name) or (args.missing and is_known):
            continue
        of_it = _in_process(name, args.trials)
        for way, each in of_it.items():
            print(f"{way}: {each.state}: {each.sentence}", flush=True)
        found |= of_it
        if args.update:
            ledger.write(args.ledger, {**ledger.read(args.ledger), **of_it})
    return int(ledger.report(args.ledger, found, args.update))


def _in_process(name: str, trials: int) -> dict[str, Found]:
    """The states of a network's ways, by name, from a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        lines = pathlib.Path(folder) / "lines"
        lines.touch()
        command = [sys.executable, "-m", "benchmarks.public_networks", "--one", name, str(lines)]
        with subprocess.Popen(
            [*command, "--trials", str(trials)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=common.ROOT,
            start_new_session=True,
        ) as process:
            try:
                process.wait(LIMIT_S)
                why = f"the process ended with {process.returncode}"
            except subprocess.TimeoutExpired:
                why = f"no end in {LIMIT_S:.0f} s"
            finally:
                _end(process)
        of_ways = map(json.loads, lines.read_text().splitlines())
    found = {f"{name} {way}": Found(state, sentence) for way, state, sentence in of_ways}
    return {f"{name} {way}": Found("failed", why) for way in WAYS} | found


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and those that it began."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _compare(name: str, lines: pathlib.Path, trials: int) -> None:
    """Write a line of JSON for each way of a network."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    model, calls = public.make(name)
    for way, run in WAYS.items():
        with tempfile.TemporaryDirectory() as folder:
            known = pathlib.Path(folder) / "known.sqlite"
            compare = functools.partial(run, model, calls, known, trials)
            found = ledger.judged(compare)
        state, sentence = found.state, found.sentence
        if state == "refused" and "differs from" in sentence:
            state = "wrong"
        with lines.open("a") as file:
            file.write(json.dumps([way, state, sentence]) + "\n")


def _optimized(
    model: torch.nn.Module, calls: Sequence[Mapping[str, Any]], known: pathlib.Path, trials: int
) -> Found:
    fast = felix.optimize(model, kwargs=calls[0], known_results=known, trials=trials)
    return _judged(model, calls, lambda call: fast(**call))


def _by_backend(
    model: torch.nn.Module, calls: Sequence[Mapping[str, Any]], known: pathlib.Path, trials: int
) -> Found:
    """The first call queues the tasks; all become known by their programs without a schedule."""
    options = {"known_results": str(known), "never_slower": False}
    with torch.no_grad():
        for _ in range(2):
            torch._dynamo.reset()
            fast = torch.compile(model, backend="felix", options=options)
            fast(**calls[0])
            _learn(store.Store(known))
        found = _judged(model, calls, lambda call: fast(**call))
    graphs = felix.backend_report().graphs
    sizes = [size for graph in graphs for size in graph.sizes]
    parts = [part for size in sizes for part in size.parts]
    for part in parts:
        for reason, defect in _DEFECTS.items():
            if part.reason.startswith(reason):
                return Found(defect, f"{part.name}: {part.reason}")
    ours = sum(len(part.operators) for part in parts if part.is_tuned)
    outside = sorted({each for size in sizes for each in size.pytorch})
    rest = f", outside: {', '.join(outside)}" if outside else ""
    whole = [size.reason for size in sizes if size.reason] + [g.reason for g in graphs if g.reason]
    rest += "".join(f", in PyTorch: {reason}" for reason in whole)
    sentence = f"{found.sentence}, {ours} operators in {len(parts)} parts{rest}"
    return Found(found.state, sentence)


def _learn(known: store.Store) -> None:
    waiting = store.queued(known)
    for entry in waiting:
        task = Task.from_json(entry.task, trusted=True)
        program = payload.of(task.mod, task.target)
        known.add(task, KnownResult(tuned_us=1.0, program=program, default_us=None, n_trials=1))
    store.unqueue(known, waiting)


def _from_onnx(
    model: torch.nn.Module, calls: Sequence[Mapping[str, Any]], known: pathlib.Path, trials: int
) -> Found:
    content = _exported(model, calls[0])
    fast = felix.optimize(content, _tensors(calls[0]), known_results=known, trials=trials)
    found = _judged(model, calls, lambda call: fast(*_tensors(call)))
    if found.state == "right":
        return found
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def by_runtime(**call: Any) -> list[torch.Tensor]:
        given = {name: each.numpy() for name, each in zip(names, _tensors(call), strict=True)}
        return list(map(torch.as_tensor, session.run(None, given)))

    again = _judged(by_runtime, calls, lambda call: fast(*_tensors(call)))
    said = f"{again.sentence} from ONNX Runtime; from PyTorch: {found.sentence}"
    return Found(again.state, said)


def _exported(model: torch.nn.Module, call: Mapping[str, Any]) -> bytes:
    """The file by PyTorch's exporter, or by its older one where that fails.

    Raises:
        WorkloadError: both fail.
    """
    reasons = []
    for options in ({"dynamo": True}, {"dynamo": False, "opset_version": 18}):
        file = io.BytesIO()
        try:
            torch.onnx.export(model, (), file, kwargs=dict(call), verbose=False, **options)
            return file.getvalue()
        except RuntimeError as error:
            reasons.append(str(error.__cause__ or error).splitlines()[0])
    raise errors.WorkloadError(f"PyTorch writes no file: {'; '.join(reasons)}")


def _tensors(call: Mapping[str, Any]) -> list[torch.Tensor]:
    return [each for each in call.values() if isinstance(each, torch.Tensor)]


#: How a network is run: module, calls, file of known results and trials -> what is found.
WAYS: Mapping[str, Callable[..., Found]] = {
    "optimize": _optimized,
    "backend": _by_backend,
    "onnx": _from_onnx,
}


def _judged(
    model: Callable[..., Any],
    calls: Sequence[Mapping[str, Any]],
    run: Callable[[Mapping[str, Any]], Any],
) -> Found:
    """Compare calls with a model's own: all output tensors."""
    worst = 0.0
    limit = agreement.TOLERANCES[torch.float32]
    for number, call in enumerate(calls):
        with torch.no_grad():
            pairs = zip(_leaves(run(call)), _leaves(model(**call)), strict=True)
        for place, (ours, theirs) in enumerate(pairs):
            error = agreement.difference(ours, theirs, is_exact=False)
            if not error <= limit:
                return Found("wrong", f"call {number}, output {place}: relative error {error:.1e}")
            worst = max(worst, error)
    return Found("right", f"{worst:.0e}")


def _leaves(result: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="a regular expression of names")
    parser.add_argument("--trials", type=int, default=1, help="of each optimize")
    parser.add_argument("--ledger", type=pathlib.Path, default=LEDGER)
    parser.add_argument("--update", action="store_true", help="write what was found")
    parser.add_argument("--missing", action="store_true", help="only what the ledger has not")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
