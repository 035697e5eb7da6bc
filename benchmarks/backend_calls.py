"""What a call of a small compiled model costs, by Felix's backend and by inductor.

    python benchmarks/backend_calls.py [--seconds 20] [--turns 1000]

Models whose operators have so little to do that a call is mostly what is around them. Felix's
tasks are tuned by the queue for some seconds, and its programs run whether or not they are faster.
Calls take turns, with warm caches. Latencies in microseconds.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import torch
from torch import nn

from benchmarks.networks import case
from benchmarks.support import common, ratios

FELIX, INDUCTOR, EAGER = "felix", "inductor", "eager"


class Chain(nn.Module):
    """Sixty elementwise operators."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = torch.relu(x) * 1.01 + 0.1
        return x


def layers() -> nn.Module:
    """Eight layers with an activation each."""
    return nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(16, 16), nn.Tanh())))


MODELS = {"sixty operators": Chain, "eight layers": layers, "one layer": lambda: nn.Linear(16, 16)}
#: Of the input.
SHAPE = (4, 16)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure each model, write, print the table."""
    args = _arguments(argv)
    data: dict[str, Any] = common.header("backend_calls")
    data |= {"seconds": args.seconds, "cases": []}
    for name, make in MODELS.items():
        data["cases"].append({"model": name, **_measured(make().eval(), args)})
        common.write(args.out, data)
    print(render(data))
    return 0


def _measured(model: nn.Module, args: argparse.Namespace) -> dict[str, Any]:
    from felix.database import store
    from felix.network import in_turns, outcomes
    from felix.network.backend import entry, queued

    x = torch.randn(SHAPE)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        known = store.Store(pathlib.Path(folder, "known.sqlite"))
        options: Any = {"known_results": str(known.path), "never_slower": False}
        torch.compile(model, backend="felix", options=options)(x)
        queued.work_off(known, outcomes.Request(seconds=args.seconds))
        torch._dynamo.reset()
        compiled = {
            FELIX: torch.compile(model, backend="felix", options=options),
            INDUCTOR: torch.compile(model),
        }
        calls = {name: _call(each, x) for name, each in {**compiled, EAGER: model}.items()}
        for call in calls.values():
            call()
        timed_us = case.in_turns(calls, args.turns, args.turns_s)
        is_tuned = all(part.is_tuned for part in entry.backend_report().parts)
        torch._dynamo.reset()
    found = in_turns.ratio(timed_us[FELIX], timed_us[INDUCTOR])
    return {
        "is_tuned": is_tuned,
        "latency_us": {name: statistics.median(each) for name, each in timed_us.items()},
        "ratio": [found.median, found.low, found.high],
        "turns": len(timed_us[FELIX]),
    }


def _call(model: Any, x: torch.Tensor) -> Any:
    return lambda: model(x)


def render(data: Mapping[str, Any]) -> str:
    """A row for each model."""
    rows = [
        [
            each["model"],
            *(each["latency_us"][name] for name in (FELIX, INDUCTOR, EAGER)),
            str(ratios.Mean(*each["ratio"])),
            each["turns"],
        ]
        for each in data["cases"]
        if each["is_tuned"]
    ]
    head = ["model", "Felix us", "inductor us", "eager us", "Felix / inductor", "turns"]
    return common.table(head, rows)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="of tuning, for each model")
    parser.add_argument("--turns", type=int, default=1000, help="at most")
    parser.add_argument(
        "--turns-s", type=float, default=10.0, help="no further turn after so long"
    )
    out = common.RESULTS / "networks" / "backend-calls-cpu.json"
    parser.add_argument("--out", type=pathlib.Path, default=out, help="file of results")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
