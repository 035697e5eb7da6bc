"""Random changes of ONNX models and targets through the service's reading of workloads.

    python -m tests.security.fuzz_models --inputs 20000 --seed 0

A child that lives on reads one input after the other, as the service's child does. Of every input
it must hold: there is an answer or a refusal in one short line; no file but those of Python, TVM
and the system is opened, none is written; neither paths of this machine nor a key nor what is in
a file of the working folder is in the answer. A child that dies is counted and replaced.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import multiprocessing
import os
import pathlib
import random
import resource
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tests.security import mutations

#: Eight bytes, so that they are recognised as a number, too.
CANARY = b"SECRETS!" * 4
KEY = "felix_0a1b2c3d_KEYINTHEENVIRONMENT"
MEMORY_BYTES = 5 << 30
INPUT_S = 60.0
INPUTS_A_CHILD = 2000
#: Longest refusal.
MAX_ERROR_CHARACTERS = 2000
_FORBIDDEN = (
    *("SECRETS!", KEY, "/tmp", "/home", "/root", "site-packages", sys.prefix, "Traceback"),
    *map(str, struct.unpack("<qi", b"SECRETS!SECR")),
)
_READABLE = (
    *(sys.prefix, sys.base_prefix, "/proc", "/sys", "/dev", "/etc/localtime", "/usr"),
    str(pathlib.Path(__file__).resolve().parents[2]),
)


@dataclasses.dataclass(slots=True)
class Figures:
    """What came out: how often, and the inputs for which something did not hold."""

    outcomes: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    violations: list[str] = dataclasses.field(default_factory=list)
    slow: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0


def requests(inputs: int, seed: int) -> Iterator[tuple[dict[str, Any], bytes]]:
    """The inputs: two models for each target."""
    rng = random.Random(seed)
    originals = mutations.seeds()
    for number in range(inputs):
        request = {
            "verb": "parse",
            "name": "gemm",
            "params": {"m": 4, "n": 4, "k": 4},
            "shapes": {},
            "target": "llvm",
            "devices": [],
            "allow_tf32": rng.random() < 0.5,
        }
        if number % 3 == 2:
            yield request | {"kind": "operator", "target": mutations.target_text(rng)}, b""
            continue
        shapes = rng.choice(({}, {}, {}, {"x": [4, 8]}, {"x": [4, 8], "z": [4, 8]}, {"q": [1]}))
        content = mutations.onnx_bytes(rng, originals)
        target = rng.choice(("llvm", "llvm", "h100"))
        yield request | {"kind": "onnx", "shapes": shapes, "target": target}, content


def run(inputs: int, seed: int) -> Figures:
    """Read all inputs in children; the figures."""
    figures = Figures()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="felix-fuzz-") as folder:
        pathlib.Path(folder, mutations.CANARY_FILE).write_bytes(CANARY)
        before = _state(folder)
        child = _Child(folder)
        for number, (request, content) in enumerate(requests(inputs, seed)):
            outcome, answer = child.read(request, content)
            figures.outcomes[f"{request['kind']}: {outcome}"] += 1
            if number % INPUTS_A_CHILD == INPUTS_A_CHILD - 1:
                child.renew()
            if outcome == "took too long":
                figures.slow.append(f"input {number}: {request['target'][:200]}")
            for problem in _problems(outcome, answer):
                figures.violations.append(f"input {number}: {problem}")
        child.end()
        if _state(folder) != before:
            figures.violations.append("the working folder has changed")
    figures.seconds = time.monotonic() - begun
    return figures


def _state(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}


def _problems(outcome: str, answer: Mapping[str, Any]) -> Iterator[str]:
    if outcome.startswith(("killed", "raised")):
        yield f"{outcome}: {answer}"
    text = json.dumps(answer, ensure_ascii=False)
    yield from (f"{word!r} is in the answer {text[:300]}" for word in _FORBIDDEN if word in text)
    yield from (f"opened {path}" for path in answer.get("opened", ()))
    error = answer.get("error")
    if error is not None and (not error.isprintable() or len(error) > MAX_ERROR_CHARACTERS):
        yield f"the refusal is not one short line: {error[:300]!r}"


class _Child:
    """A reading process, replaced when it dies or takes too long."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._context = multiprocessing.get_context("spawn")
        self._start()

    def read(self, request: Mapping[str, Any], content: bytes) -> tuple[str, dict[str, Any]]:
        """What became of an input, and the answer."""
        try:
            self._pipe.send((request, content))
            if not self._pipe.poll(INPUT_S):
                self.renew()
                return "took too long", {}
            answer: dict[str, Any] = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode
            self._start()
            return f"killed by {code}", {}
        if "raised" in answer:
            return f"raised {answer['raised']}", answer
        return ("read" if answer["error"] is None else "refused"), answer

    def renew(self) -> None:
        """End the process and start another: TVM keeps some of what it reads."""
        self.end()
        self._start()

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()

    def _start(self) -> None:
        self._pipe, theirs = self._context.Pipe()
        self._process = self._context.Process(target=_serve, args=(theirs, self._folder))
        self._process.start()
        theirs.close()
        self._pipe.recv()  # it has imported TVM, which is not the input's time


def _serve(pipe: Any, folder: str) -> None:
    from felix import without_torch  # noqa: F401
    from server.parsing import child as parsing_child

    os.environ["FELIX_API_KEY"] = KEY
    sys.dont_write_bytecode = True  # of what is imported when it is first used
    os.chdir(folder)
    sink = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(sink, stream)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    opened: list[str] = []
    sys.addaudithook(lambda event, arguments: _audit(opened, event, arguments))
    pipe.send(None)
    while True:
        request, content = pipe.recv()
        opened.clear()
        try:
            answer = parsing_child.answer(request, content)
        except Exception as error:  # what the service's child would die of
            answer = {"raised": type(error).__name__, "text": str(error)[:500]}
        pipe.send({**answer, "opened": list(opened)})


def _audit(opened: list[str], event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not isinstance(arguments[0], str | bytes):
        return
    path, flags = os.fsdecode(arguments[0]), arguments[2] or 0
    is_written = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    if path != os.devnull and (is_written or not path.startswith(_READABLE)):
        opened.append(path)


def main() -> int:
    """Print the figures; 1 if something did not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    figures = run(options.inputs, options.seed)
    print(f"{figures.outcomes.total()} inputs, seed {options.seed}, {figures.seconds:.0f} s")
    for outcome, count in figures.outcomes.most_common():
        print(f"  {count:6d} {outcome}")
    print(f"{len(figures.violations)} violations, {len(figures.slow)} took {INPUT_S:g} s")
    for line in (*figures.violations[:50], *figures.slow[:50]):
        print(f"  {line}")
    return 1 if figures.violations else 0


if __name__ == "__main__":
    raise SystemExit(main())
