"""Felix's kernels on all cores, beside PyTorch's operators, in the process that tuned them.

    python benchmarks/threads.py [--threads 1 2] [--trials 24] [--function-trials 8]

Ten kernels are tuned by `felix.tune` for each number of threads, and compiled by `felix.compile`.
With as many threads of PyTorch are timed

- *here*: the kernel, as candidates are, over the latency that tuning reported;
- *in turns*: the kernel and PyTorch's layer norm of 1024x768, a call of each after the other; with
  warm caches over what each takes alone, with cold ones over what it takes after waits;
- *functions* of 2^20 elements, tuned for all cores with few trials, in turns with PyTorch's.

Caches are cold, or as the calls before leave them. Results are written after each kernel.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks.support import common, ratios

KERNELS = {
    "gemm": "gemm:256,256,256",
    "gemm-batched": "gemm:128,128,64,batch=12",
    "conv2d": "conv2d:1,28,28,64,64,3,padding=1",
    "depthwise": "depthwise_conv2d:1,56,56,144,3,padding=1",
    "softmax": "softmax:512x1000",
    "layer-norm": "layer_norm:256x768",
    "rms-norm": "rms_norm:1024x768",
    "sum": "reduce:1024x1024,axes=1",
    "chain": "elementwise:1024x1024,ops=mul@1+add@1+relu",
    "gelu": "elementwise:1024x1024,ops=gelu",
}
#: Caches -> what calls in turns are compared with.
WITHOUT = {"cold": "waiting", "warm": "alone"}
CACHES = tuple(WITHOUT)
#: What is asked of latencies here, of those in turns, and of functions.
HERE, TURNS, FUNCTION = 1.1, 1.15, 1.1
#: Ratios by names of what is timed: median, ends of the interval.
Ratios: TypeAlias = Mapping[str, Mapping[str, Any]]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, write after each kernel and function, print the tables."""
    from benchmarks.support import one_pool

    args = _arguments(argv)
    data: dict[str, Any] = common.header("threads")
    data |= {"trials": args.trials, "function_trials": args.function_trials}
    data |= {"neighbour": one_pool.NEIGHBOUR, "kernels": [], "functions": []}
    for name in args.kernels:
        for threads in args.threads:
            print(f"{common.now()} {name} on {threads} ...", flush=True)
            found = one_pool.kernel(KERNELS[name], threads, args.trials)
            row = {"name": name, "workload": KERNELS[name], "threads": threads}
            data["kernels"].append(row | found)
            common.write(args.out, data)
    if args.functions:
        print(f"{common.now()} {len(args.functions)} functions ...", flush=True)
        for row in one_pool.functions(args.functions, args.threads, args.function_trials):
            data["functions"].append(row)
            common.write(args.out, data)
    print(render(data))
    return 0


def render(*results: Mapping[str, Any]) -> str:
    """What is asked and how far it is so, each kernel, each function."""
    tables = []
    for data in results:
        tables.append(_summary(data))
        tables += [_kernels(data)] if data["kernels"] else []
        tables += [_functions(data)] if data["functions"] else []
    return "\n\n".join(tables)


def _summary(data: Mapping[str, Any]) -> str:
    rows = [_row(*question) for question in _questions(data)]
    head = ["ratio", "caches", "threads", "of", "mean", "largest", "at most", "clearly above"]
    return common.table(head, rows)


def _questions(data: Mapping[str, Any]) -> Iterator[tuple[str, str, int, float, Ratios]]:
    """What is divided, with which caches, under how many threads; what it is to be; the ratios."""
    kernels, functions = data["kernels"], data["functions"]
    for threads in _threads(kernels):
        of = {each["name"]: each for each in kernels if each["threads"] == threads}
        here = {name: each["here"] for name, each in of.items()}
        yield "here / reported", "cold", threads, HERE, here
        for caches in CACHES:
            for who, label in (("felix", "Felix"), ("pytorch", "PyTorch")):
                found = {name: each[caches][who] for name, each in of.items()}
                yield f"{label}, in turns / {WITHOUT[caches]}", caches, threads, TURNS, found
    for threads in _threads(functions):
        for caches in CACHES:
            found = {e["name"]: e[caches] for e in functions if e["threads"] == threads}
            yield "function, Felix / PyTorch", caches, threads, FUNCTION, found


def _row(what: str, caches: str, threads: int, limit: float, found: Ratios) -> list[Any]:
    """A ratio is clearly above where its whole interval is."""
    largest = max(found, key=lambda name: found[name]["median"])
    mean = ratios.single({name: each["median"] for name, each in found.items()})
    above = sum(each["low"] > limit for each in found.values())
    return [
        what,
        caches,
        threads,
        len(found),
        mean.mean,
        f"{_text(found[largest])}: {largest}",
        limit,
        above,
    ]


def _kernels(data: Mapping[str, Any]) -> str:
    rows = [
        [
            each["name"],
            each["threads"],
            each["reported_us"],
            _text(each["here"]),
            *(each[caches][who]["median"] for caches in CACHES for who in ("felix", "pytorch")),
        ]
        for each in data["kernels"]
    ]
    turns = [f"{who}, {caches}" for caches in CACHES for who in ("Felix", "PyTorch")]
    return common.table(["kernel", "threads", "reported us", "here / reported", *turns], rows)


def _functions(data: Mapping[str, Any]) -> str:
    functions = data["functions"]
    counts = _threads(functions)
    found = {(each["name"], each["threads"]): each["cold"]["median"] for each in functions}
    names = dict.fromkeys(each["name"] for each in functions)
    rows = [[name, *(found[name, count] for count in counts)] for name in names]
    columns = [f"{count} thread{'s' * (count != 1)}" for count in counts]
    return common.table(["Felix / PyTorch, cold", *columns], rows)


def _threads(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    return sorted({each["threads"] for each in rows})


def _text(ratio: Mapping[str, Any]) -> str:
    return str(ratios.Mean(ratio["median"], ratio["low"], ratio["high"]))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    from benchmarks.support import one_pool
    from felix.target import cpu

    cores = cpu.available_cores()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    some = [count for count in (1, 2) if count < cores]
    parser.add_argument(
        "--threads",
        nargs="+",
        type=int,
        choices=range(1, cores + 1),
        default=[*some, cores],
        help="of PyTorch and of Felix's kernels (default: 1, 2 and all cores)",
    )
    parser.add_argument("--kernels", nargs="*", choices=KERNELS, default=list(KERNELS))
    functions = one_pool.FUNCTIONS
    parser.add_argument("--functions", nargs="*", choices=functions, default=list(functions))
    parser.add_argument("--trials", type=int, default=24, help="for each kernel (default 24)")
    parser.add_argument(
        "--function-trials", type=int, default=8, help="for each function (default 8)"
    )
    out = common.RESULTS / "threads" / "threads-cpu.json"
    parser.add_argument("--out", type=pathlib.Path, default=out, help="file of results")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
