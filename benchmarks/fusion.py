"""Groups of operators chosen by cost against TVM's FuseOps and the fixed rules, in transformers.

    python benchmarks/fusion.py --target cuda --trials 32 --depth 2 \
        --out benchmarks/results/fusion/fusion-h200.json
    python benchmarks/fusion.py --small --dtypes float32 --trials 24

Blocks of ViT, BERT and LLaMA with the widths of their papers (--small: 128, 128 and 256), batch 1.
Each is grouped by both ways of `felix.optimize(fusion=)` and by TVM's FuseOps, and the tasks of
the groups are tuned together, each once. Norms, softmax, elementwise operators and moves of
elements are compared, with those products that not all ways have, because their group took such an
operator in. The others cancel and are not tuned.

A latency is the better of Felix's schedule and TVM's default one, with cold caches, in
microseconds; a sum is over the calls of one run of the network. What was tuned lies in the work
folder, so a run can be interrupted and continued, with more trials as well.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks.support import common, ratios

if TYPE_CHECKING:
    import torch

    from felix.database import store
    from felix.network import groups, outcomes

NETWORKS = ("vit_b32", "bert_base", "llama")
DTYPES = ("float32", "bfloat16")
#: Values of `felix.frontend.Fusion`: the fixed rules, TVM's, by cost.
RULES, FUSEOPS, PLANNED = WAYS = ("rules", "fuseops", "planned")
#: Rows of a vocabulary; an embedding takes few of them, whatever their number.
_VOCABULARY = 1024


def main() -> int:
    """Measure what is missing, write the results and print the tables."""
    from felix import target
    from felix.database import store

    args = _arguments()
    full = target.parse(args.target)
    known = store.Store(args.work / "known.sqlite")
    entries: dict[str, Any] = {}
    if args.out.exists():
        entries = {_label(each): each for each in json.loads(args.out.read_text())["entries"]}
    started = time.monotonic()
    for name, dtype in itertools.product(args.networks, args.dtypes):
        if args.limit_s is not None and time.monotonic() - started > args.limit_s:
            print("time is up; the same command goes on")
            break
        entry = _measured(name, dtype, args, full, known)
        entries[_label(entry)] = entry
        data = common.header("fusion") | {
            "device": target.hardware(full).name,
            "trials": args.trials,
            "depth": args.depth,
            "small": args.small,
            "entries": list(entries.values()),
        }
        common.write(args.out, data)
        print(render(data), flush=True)
    return 0


def render(*results: Mapping[str, Any]) -> str:
    """Sums and ratios of each network and device."""
    body = [
        [
            data["device"],
            each["network"],
            each["dtype"],
            *(_calls(each, way) for way in WAYS),
            _sum_us(each, PLANNED),
            *(ratio(each, way) for way in (FUSEOPS, RULES)),
        ]
        for data in results
        for each in data["entries"]
    ]
    entries = {f"{d['device']} {_label(e)}": e for d in results for e in d["entries"]}
    means = [
        ratios.single({name: ratio(entry, way) for name, entry in entries.items()})
        for way in (FUSEOPS, RULES)
    ]
    head = ["device", "network", "type", *(f"{way} calls" for way in WAYS), "planned us"]
    table = common.table([*head, "fuseops / planned", "rules / planned"], body)
    return f"{table}\n\nGeometric means: fuseops {means[0]}, rules {means[1]}."


def ratio(entry: Mapping[str, Any], way: str) -> float:
    """The sum of a way over that of planned groups: above 1 where these are faster."""
    return _sum_us(entry, way) / _sum_us(entry, PLANNED)


def _label(entry: Mapping[str, Any]) -> str:
    return f"{entry['network']}:{entry['dtype']}"


def _calls(entry: Mapping[str, Any], way: str) -> int:
    return sum(each["calls"] for each in entry["groups"][way])


def _sum_us(entry: Mapping[str, Any], way: str) -> float:
    return sum(each["calls"] * each["latency_us"] for each in entry["groups"][way])


def _measured(
    name: str, dtype: str, args: argparse.Namespace, full: Any, known: store.Store
) -> dict[str, Any]:
    import torch
    from tvm import relax

    from felix import frontend
    from felix.network import group_costs, groups, outcomes

    model, inputs = _network(name, getattr(torch, dtype), args.depth, args.small)
    imported = frontend.import_torch(model, inputs)
    groupings = {
        RULES: frontend.Grouping(frontend.Fusion.RULES),
        FUSEOPS: frontend.Grouping(frontend.Fusion.RULES, rules=relax.transform.FuseOps()),
        PLANNED: frontend.Grouping(frontend.Fusion.PLANNED, group_costs.SketchCosts()),
    }
    compared = {
        way: groups.of(frontend.lowered(imported, full, grouping), full)
        for way, grouping in groupings.items()
    }
    parts = _parts(compared)
    tasks = {each.task.key: each.task for of in parts.values() for each in of if each.task}
    print(f"{common.now()} {name} {dtype}: {len(tasks)} tasks", flush=True)
    load = common.load()
    request = outcomes.Request(
        trials=args.trials * len(tasks), seconds=args.seconds, improve=args.improve, pytorch=False
    )
    gathered = outcomes.gather(list(tasks.values()), known, request)
    return {
        "network": name,
        "dtype": dtype,
        "load": load,
        "tuning_s": gathered.elapsed_s,
        "refused": {way: sum(each.task is None for each in of) for way, of in parts.items()},
        "groups": {way: _rows(of, gathered) for way, of in parts.items()},
    }


def _parts(compared: Mapping[str, Sequence[groups.Group]]) -> dict[str, list[groups.Group]]:
    """The groups without the products that all ways have."""
    from tvm import s_tir

    from felix.frontend.programs.groups import multiplies_two
    from felix.tir import grammar

    keys = [{each.task.key for each in of if each.task is not None} for of in compared.values()]
    everywhere = set.intersection(*keys)

    def is_compared(group: groups.Group) -> bool:
        if group.task is None or group.task.key not in everywhere:
            return True
        blocks = grammar.nodes(group.task.mod["main"].body, s_tir.SBlock)
        return not any(each.init is not None and multiplies_two(each) for each in blocks)

    return {way: [each for each in of if is_compared(each)] for way, of in compared.items()}


def _rows(of: Sequence[groups.Group], gathered: outcomes.Outcomes) -> list[dict[str, Any]]:
    """The groups that are tasks, with their latencies.

    Raises:
        ValueError: a task was not measured.
    """
    rows = []
    for group in of:
        if group.task is None:
            continue  # no way has fewer of them: nothing is fused with such a program
        outcome = gathered.by_key.get(group.task.key)
        latencies = [] if outcome is None else [outcome.tuned_us, outcome.default_us]
        measured = [us for us in latencies if us is not None]
        if not measured:
            raise ValueError(f"{group.name} was not measured: allow more trials or seconds")
        rows.append({"name": group.name, "calls": group.calls, "latency_us": min(measured)})
    return sorted(rows, key=lambda row: -row["calls"] * row["latency_us"])


def _network(
    name: str, dtype: torch.dtype, depth: int, small: bool
) -> tuple[torch.nn.Module, Any]:
    """The first blocks of a network, and its inputs."""
    import torch

    from benchmarks.networks import transformers

    torch.manual_seed(0)
    model: torch.nn.Module
    inputs: tuple[torch.Tensor, ...]
    if name == "vit_b32":
        sizes = {"width": 128, "heads": 4, "hidden": 256} if small else {}
        model, inputs = transformers.ViT(depth=depth, **sizes), (torch.randn(1, 3, 224, 224),)
    elif name == "bert_base":
        sizes = {"width": 128, "heads": 4, "hidden": 256} if small else {}
        model = transformers.Bert(vocabulary=_VOCABULARY, depth=depth, **sizes)
        mask = torch.ones(1, 128, dtype=torch.bool)
        inputs = (torch.randint(0, _VOCABULARY, (1, 128)), mask)
    else:
        sizes = {"width": 256, "heads": 4, "hidden": 688} if small else {}
        model = transformers.Llama(depth=depth, **sizes)
        inputs = (torch.randn(1, 100, sizes.get("width", 4096)),)
    cast = tuple(t.to(dtype) if t.is_floating_point() else t for t in inputs)
    return model.to(dtype).eval(), cast


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--target", default="llvm")
    parser.add_argument("--depth", type=int, default=1, help="blocks of each network (default 1)")
    parser.add_argument("--small", action="store_true", help="narrow blocks, for a CPU")
    parser.add_argument("--trials", type=int, default=32, help="for each task (default 32)")
    parser.add_argument("--seconds", type=float, help="of tuning, for each network and type")
    parser.add_argument("--improve", action="store_true", help="tune known tasks further")
    parser.add_argument("--limit-s", type=float, help="start no further network after this long")
    parser.add_argument("--work", type=pathlib.Path, default=common.PARTS / "fusion")
    out = common.RESULTS / "fusion" / "fusion-cpu.json"
    parser.add_argument("--out", type=pathlib.Path, default=out)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
