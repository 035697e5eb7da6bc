"""Mutation fuzz of TIR programs: `python -m tests.security.fuzz_programs --inputs 20000 --seed 0`.

Each input is the JSON of a right program with a few changes: of fields, numbers, types, names of
operators, whole nodes, single characters, or of extents, indices, conditions and bindings as a
client who knows TIR would change them. It must be refused by a `WorkloadError`, or be accepted and
then run between pages without access. A worker process does the reading and the running; its
death is counted with its signal and what it was doing.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import faulthandler
import math
import multiprocessing
import random
import signal
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import tvm

from felix import errors
from felix.task import Task
from felix.tir import design_space, grammar
from felix.workloads.suite import CHECK_SUITE
from tests.support import tir_programs
from tests.support.hostile import guarded
from tests.support.tir_programs import Document

#: A program that moves or computes more is proved, not run.
MAX_RUN_BYTES = 2**24
MAX_RUN_POINTS = 10**6
#: One accepted program of so many is scheduled by TVM as well.
SCHEDULED_ONE_IN = 60
#: Keeps every access, also those whose value is not used, and compiles fast.
UNOPTIMISED = {"kind": "llvm", "opt-level": 0}
#: Compiled programs stay in memory: a worker serves this many inputs.
INPUTS_A_WORKER = 1500
SECONDS_AN_INPUT = 60.0

NUMBERS = (0, 1, -1, 2, 3, 7, 15, 16, 17, 31, 64, 1000, 2**15, 2**31 - 1, -(2**31), 2**31, 2**32,
           2**62, 2**63 - 1, -(2**63), 2**63, 10**30)  # fmt: skip
OPERATORS = (
    *grammar.FUNCTIONS,
    *"tirx.call_extern tirx.cuda.func_call tirx.ptx.sqrt tirx.address_of tirx.reinterpret".split(),
    *"tirx.tvm_access_ptr prim.nothing tirx.ret tirx.assume tirx.vscale".split(),
)
TYPES = (*(f"prim.{name}" for name in (*grammar.ARITHMETIC, *grammar.COMPARISONS, *grammar.LOGIC)),
         "prim.Not", "prim.Cast", "prim.Select", "prim.Let", "prim.Ramp", "prim.LShift", "ir.Call",
         "ir.Tuple", "ir.Var", "ir.GlobalVar", "ir.StringImm", "tirx.For", "tirx.While",
         "tirx.Evaluate", "tirx.AllocBuffer", "tirx.AttrStmt", "ffi.Module", "ffi.Function",
         "ffi.Tensor", "ffi.Shape", "None", "int", "ffi.Array", "ffi.Map", "nothing")  # fmt: skip
_OTHER_DTYPES = "int32x4 handle void float32x2 int1 int4 uint128 float8_e4m3fn".split()
DTYPES = (*grammar.DTYPES, *_OTHER_DTYPES, "")
COUNTED = (
    "refused",
    "accepted",
    "run",
    "too large to run",
    "not built by TVM",
    "scheduled",
    "unexpected error",
)


def seeds() -> list[str]:
    """JSON of right programs of every kind of access."""
    names = """gemm_primes conv2d_dilation2 conv_transpose2d max_pool2d_padded softmax_middle
        layer_norm_plain elementwise_broadcast_row""".split()
    programs = [CHECK_SUITE[name]().func for name in names]
    programs += [
        tir_programs.copy("T.if_then_else(T.And(v >= 1, v < 15), A[v - 1], T.float32(0))"),
        tir_programs.copy("A[v // 4 * 4 + v % 4]", loop=32, where="i < 16"),
        tir_programs.copy("A[T.max(T.min(v * 3 - 5, 15), 0)] + T.Select(v < 3, A[v], A[0])"),
    ]
    both = tir_programs.A16, tir_programs.B16
    data = ('I: T.Buffer((16,), "int32")', 'J: T.Buffer((16,), "int32")')
    shifted = "T.shift_left(I[v], T.min(T.max(I[v], 0), 31)) // T.Select(I[v] == 0, 1, I[v])"
    bounded = "A[T.min(T.max(I[v], 0), 15)] + A[I[v] % 16]"
    for value, store in ((bounded, "B[v]"), (shifted, "J[v]")):
        programs.append(tir_programs.copy(value, store, params=(*both, *data)))
    of_best = ('A: T.Buffer((4, 16), "float32")', 'B: T.Buffer((4,), "int32")')
    programs += [
        tir_programs.function(_NAMED),
        tir_programs.function(_BEST, *of_best, 'C: T.Buffer((4,), "float32")'),
    ]
    return [tvm.ir.save_json(program) for program in programs]


#: A value that has a name.
_NAMED = """
for i in range(16):
    with T.sblock("copy"):
        v = T.axis.spatial(16, i)
        n: T.let[T.float32] = A[15 - v]
        B[v] = n * n
"""
#: The greatest of each row, and where it is.
_BEST = """
for i, k in T.grid(4, 16):
    with T.sblock("best"):
        v, w = T.axis.remap("SR", [i, k])
        with T.init():
            B[v] = -1
            C[v] = T.float32(-3e38)
        b: T.let[T.int32] = T.Select(C[v] >= A[v, w], B[v], w)
        c: T.let[T.float32] = T.Select(C[v] >= A[v, w], C[v], A[v, w])
        B[v] = b
        C[v] = c
"""


# Mutations


class Mutator:
    """Changes of the JSON of a program; each draws what it needs from one generator."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def mutated(self, text: str) -> str:
        """The text with one to three changes."""
        doc = Document(text)
        for _ in range(self._rng.choice((1, 1, 1, 2, 3))):
            with contextlib.suppress(LookupError, TypeError, AttributeError):
                self._rng.choice(self._MUTATIONS)(self, doc)  # an earlier one may have broken it
        text = doc.text()
        return self._noise(text) if self._rng.random() < 0.05 else text

    def _node(self, doc: Document, *kinds: str) -> dict[str, Any] | None:
        nodes = [n for n in doc.nodes if (n["type"] in kinds if kinds else "data" in n)]
        return self._rng.choice(nodes) if nodes else None

    def _field(self, doc: Document) -> None:
        node = self._node(doc)
        if node is None or not node["data"] or not isinstance(node["data"], dict | list):
            return
        data = node["data"]
        key = self._rng.choice(list(data) if isinstance(data, dict) else range(len(data)))
        data[key] = self._rng.choice(
            (self._rng.randrange(len(doc.nodes)), self._rng.choice(NUMBERS), 1.5, None, "x", [0])
        )

    def _number(self, doc: Document) -> None:
        if node := self._node(doc, "int"):
            node["data"] = self._near(node["data"])

    def _near(self, value: Any) -> Any:
        near = [value + 1, value - 1, value * 2, -value] if isinstance(value, int) else []
        return self._rng.choice([*near, *near, self._rng.choice(NUMBERS)])

    def _type(self, doc: Document) -> None:
        node = self._rng.choice(doc.nodes)
        same = [kind for kind in TYPES if kind.startswith("prim.")]
        node["type"] = self._rng.choice(same if node["type"].startswith("prim.") else TYPES)

    def _operator(self, doc: Document) -> None:
        if node := self._node(doc, "ir.Op"):
            node["data"] = self._rng.choice(OPERATORS)

    def _dtype(self, doc: Document) -> None:
        if node := self._node(doc, "ir.PrimType"):
            node["data"]["dtype"] = self._rng.choice(DTYPES)

    def _swap(self, doc: Document) -> None:
        i, j = (self._rng.randrange(len(doc.nodes)) for _ in range(2))
        doc.nodes[i], doc.nodes[j] = doc.nodes[j], doc.nodes[i]

    def _copy(self, doc: Document) -> None:
        doc.nodes[self._rng.randrange(len(doc.nodes))] = dict(self._rng.choice(doc.nodes))

    def _delete(self, doc: Document) -> None:
        node = self._node(doc)
        if node and isinstance(node["data"], dict | list) and node["data"]:
            data = node["data"]
            del data[self._rng.choice(list(data) if isinstance(data, dict) else [0])]

    def _noise(self, text: str) -> str:
        letters = list(text)
        for _ in range(self._rng.randint(1, 4)):
            letters[self._rng.randrange(len(letters))] = self._rng.choice(
                '0123456789"[]{},:-x\x00'
            )
        return "".join(letters)

    # Changes that keep the text well formed: what is left to refuse is what the program does.

    def _extent(self, doc: Document) -> None:
        """Another extent of a loop, an iterator or a buffer."""
        kind = self._rng.choice(("tirx.For", "ir.Range", "ffi.Array"))
        if kind == "ffi.Array":
            shapes = [b["shape"] for b in doc.all("tirx.BufferType")]
            items = doc.nodes[self._rng.choice(shapes)]["data"]
            if items:
                at = self._rng.randrange(len(items))
                items[at] = self._changed_constant(doc, items[at])
        elif node := self._node(doc, kind):
            node["data"]["extent"] = self._changed_constant(doc, node["data"]["extent"])

    def _changed_constant(self, doc: Document, index: int) -> int:
        node = doc.nodes[index]
        if node["type"] != "ir.IntImm":
            return doc.number(self._rng.choice(NUMBERS))
        value = doc.nodes[node["data"]["value"]]["data"]
        fields = dict(node["data"], value=doc.add("int", self._near(value)))
        return doc.add("ir.IntImm", fields)

    def _index(self, doc: Document) -> None:
        """Another index of an access, or another binding."""
        owner = self._node(doc, "ir.TensorLoad", "tirx.BufferStore", "s_tir.SBlockRealize")
        if owner is None:
            return
        field = "iter_values" if owner["type"] == "s_tir.SBlockRealize" else "indices"
        items = list(doc.nodes[owner["data"][field]]["data"])
        if items:
            at = self._rng.randrange(len(items))
            items[at] = self._expression(doc, items[at], 2)
            owner["data"][field] = doc.add("ffi.Array", items)

    def _expression(self, doc: Document, index: Any, depth: int) -> int:
        """An expression around another of the type int32."""
        if not isinstance(index, int) or not 0 <= index < len(doc.nodes):
            return doc.number(3)
        constant = doc.number(self._rng.choice((-3, -1, 0, 1, 2, 3, 4, 7, 8, 16, 2**20)))
        operation = self._rng.choice(
            ("Add", "Add", "Sub", "Mul", "FloorDiv", "FloorMod", "Div", "Mod", "Min", "Max", "If",
             "Select", "Cast", "popcount", "clz"))  # fmt: skip
        made = self._made(doc, operation, index, constant)
        return self._expression(doc, made, depth - 1) if self._rng.random() < 0.3 * depth else made

    def _made(self, doc: Document, operation: str, index: int, constant: int) -> int:
        int32 = doc.nodes[constant]["data"]["ty"]
        none = doc.none()
        if operation == "Cast":
            ty = doc.add("ir.PrimType", {"span": none, "dtype": self._rng.choice(DTYPES[:13])})
            inner = doc.add("prim.Cast", {"span": none, "ty": ty, "value": index})
            return doc.add("prim.Cast", {"span": none, "ty": int32, "value": inner})
        if operation in ("popcount", "clz"):
            dialect = "prim" if operation == "clz" else "tirx"
            return doc.call(doc.add("ir.Op", f"{dialect}.{operation}"), index)
        if operation in ("If", "Select"):
            ty = doc.add("ir.PrimType", {"span": none, "dtype": "bool"})
            kind = self._rng.choice(("prim.LT", "prim.GE", "prim.EQ", "prim.NE"))
            test = doc.add(kind, {"span": none, "ty": ty, "a": index, "b": constant})
            other = doc.number(self._rng.choice((0, 1, 5, 15, 16)))
            if operation == "If":
                return doc.call(doc.add("ir.Op", "prim.if_then_else"), test, index, other)
            fields = {"condition": test, "true_value": index, "false_value": other}
            return doc.add("prim.Select", {"span": none, "ty": int32} | fields)
        return doc.add(f"prim.{operation}", {"span": none, "ty": int32, "a": index, "b": constant})

    def _condition(self, doc: Document) -> None:
        """Another comparison, or another number in one."""
        kinds = [f"prim.{name}" for name in (*grammar.COMPARISONS, *grammar.LOGIC)]
        if node := self._node(doc, *kinds):
            if self._rng.random() < 0.5:
                side = self._rng.choice("ab")
                node["data"][side] = self._changed_constant(doc, node["data"][side])
            else:
                node["type"] = self._rng.choice(kinds)

    _MUTATIONS = (_field, _field, _number, _number, _type, _operator, _dtype, _swap, _copy,
                  _delete, _extent, _extent, _extent, _index, _index, _index, _index, _condition,
                  _condition)  # fmt: skip


# The worker


def work(connection: Connection, first: int) -> None:
    """Read, prove and run texts until None comes; tells what it begins, then what came of it."""
    faulthandler.disable()  # the parent reports a death, once
    run_keys: set[str] = set()
    number = first
    while (text := connection.recv()) is not None:
        number += 1
        try:
            task = Task.from_json(text, "llvm", trusted=True)
        except errors.WorkloadError:
            connection.send(("done", ["refused"]))
            continue
        except Exception as error:
            connection.send(("done", ["unexpected error", f"{type(error).__name__}: {error}"]))
            continue
        results = ["accepted"]
        if task.key not in run_keys:
            run_keys.add(task.key)
            results += _run(connection, task, scheduled=number % SCHEDULED_ONE_IN == 0)
        connection.send(("done", results))


def _run(connection: Connection, task: Task, *, scheduled: bool) -> list[str]:
    if task.min_bytes > MAX_RUN_BYTES or _points(task) > MAX_RUN_POINTS:
        return ["too large to run"]
    connection.send(("running", []))
    try:
        library = tvm.tirx.build(task.mod, UNOPTIMISED)
    except grammar.TVM_ERRORS:
        return ["not built by TVM"]
    guarded.run(library["main"], task.func.params)
    if not scheduled:
        return ["run"]
    connection.send(("scheduling", []))
    context = design_space.tune_context(task.mod, task.target, seed=1)
    try:
        schedules = context.generate_design_space()
        schedule = schedules[-1]
        if not all(p.apply(schedule) for p in context.space_generator.postprocs):
            return ["run"]
        library = tvm.tirx.build(schedule.mod, task.target)
    except grammar.TVM_ERRORS:
        return ["run"]  # the rehearsal of a submitted program refuses it
    connection.send(("running what was scheduled", []))
    guarded.run(library["main"], task.func.params)
    return ["run", "scheduled"]


def _points(task: Task) -> int:
    """Iterations of the program, and elements of all its buffers."""
    blocks = list(grammar.blocks(task.func.body))
    buffers = [*task.func.params, *(b for block in blocks for b in block.alloc_buffers)]
    points = [math.prod(int(v.dom.extent) for v in block.iter_vars) for block in blocks]
    points += _loops(task.func.body, 1)
    return max(*points, *(math.prod(grammar.shape(buffer)) for buffer in buffers))


def _loops(stmt: Any, trips: int) -> Iterator[int]:
    match type(stmt).__name__:
        case "For":
            yield from _loops(stmt.body, trips * int(stmt.extent))
        case "SBlockRealize":
            yield from _loops(stmt.block.body, trips)
        case "SeqStmt":
            for item in stmt.seq:
                yield from _loops(item, trips)
        case _:
            yield trips


# The fuzz


@dataclasses.dataclass(slots=True)
class Report:
    """How many inputs came to what; `deaths` names signal and occupation of dead workers."""

    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    deaths: list[str] = dataclasses.field(default_factory=list)
    errors: list[str] = dataclasses.field(default_factory=list)

    def lines(self) -> list[str]:
        """The figures as text."""
        counts = ", ".join(f"{self.counts[name]} {name}" for name in COUNTED)
        deaths = "; ".join(f"{n} x {what}" for what, n in collections.Counter(self.deaths).items())
        return [counts, f"deaths of the worker: {deaths or 'none'}", *self.errors[:5]]

    def passed(self) -> bool:
        """Whether no worker died and nothing but WorkloadError was raised."""
        return not self.deaths and not self.errors


class Worker:
    """A forked process that serves one text at a time."""

    def __init__(self, served: int) -> None:
        self.served = served
        self._connection, other = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=work, args=(other, served), daemon=True)
        self._process.start()
        other.close()

    def serve(self, text: str, report: Report) -> bool:
        """Let it do one text; False when it is dead."""
        doing = "reading"
        self.served += 1
        try:
            self._connection.send(text)
            while self._connection.poll(SECONDS_AN_INPUT):
                verb, results = self._connection.recv()
                if verb == "done":
                    report.counts.update(results[:1] if results[0] == COUNTED[-1] else results)
                    report.errors += results[1:] if results[0] == COUNTED[-1] else []
                    return True
                doing = verb
            self._process.kill()
            self._process.join()
            what = f"nothing for {SECONDS_AN_INPUT:.0f} s"
        except (EOFError, ConnectionError):
            self._process.join()
            code = self._process.exitcode or 0
            what = signal.Signals(-code).name if code < 0 else f"exit {code}"
        report.deaths.append(f"{what} while {doing}")
        return False

    def close(self) -> None:
        """End it."""
        self._connection.send(None)
        self._process.join(10)
        self._process.kill()


def fuzz(inputs: int, seed: int) -> Report:
    """Serve that many mutated programs; the same seed makes the same texts."""
    rng = random.Random(seed)
    mutator, texts, report = Mutator(rng), seeds(), Report()
    worker = Worker(0)
    for _ in range(inputs):
        alive = worker.serve(mutator.mutated(rng.choice(texts)), report)
        if not alive or worker.served % INPUTS_A_WORKER == 0:
            if alive:
                worker.close()
            worker = Worker(worker.served)
    worker.close()
    return report


def main() -> int:
    """Run the fuzz and print its figures; 1 when a worker died or an error was unexpected."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    started = time.monotonic()
    report = fuzz(arguments.inputs, arguments.seed)
    print(*report.lines(), f"{time.monotonic() - started:.0f} s", sep="\n")
    return 0 if report.passed() else 1


if __name__ == "__main__":
    sys.exit(main())
