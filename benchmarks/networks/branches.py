"""Independent kernels side by side: a network's CUDA graph with branches beside one without.

    python -m benchmarks.networks.branches [--networks resnet50 dlrm ...] [--dtypes float32 ...]

Every network is made by `felix.optimize` with --trials candidates over all tasks, in a process of
its own, then captured --captures times, with branches and without. Both graphs of a capture are
replayed in turns with warm caches (`felix.network.cuda_graph`); what is shown is the median over
captures, and the least and the largest ratio. Besides the seven networks there are two with many
independent operators: GoogLeNet, whose inception blocks have four paths, and DLRM, which looks up
26 tables.
"""

from __future__ import annotations

import argparse
import itertools
import os
import pathlib
import sys
from typing import Any

import torch
from torch import nn

from benchmarks.networks import catalogue, repeated, results
from benchmarks.support import common

NAME = "networks_branches"
OUT = common.RESULTS / "networks" / "networks-branches-h200.json"


class Inception(nn.Module):
    """Four paths from one tensor, their channels one behind the other (Szegedy et al., 2015)."""

    def __init__(
        self,
        before: int,
        one: int,
        reduced_3: int,
        three: int,
        reduced_5: int,
        five: int,
        pooled: int,
    ) -> None:
        super().__init__()
        self.paths = nn.ModuleList(
            [
                _convolution(before, one, 1),
                nn.Sequential(
                    _convolution(before, reduced_3, 1), _convolution(reduced_3, three, 3)
                ),
                nn.Sequential(
                    _convolution(before, reduced_5, 1), _convolution(reduced_5, five, 5)
                ),
                nn.Sequential(nn.MaxPool2d(3, 1, 1), _convolution(before, pooled, 1)),
            ]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, before, h, w) to (batch, one + three + five + pooled, h, w)."""
        return torch.cat([path(x) for path in self.paths], dim=1)


def _convolution(before: int, after: int, window: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, after, window, stride, window // 2), nn.ReLU(inplace=True)
    )


def googlenet() -> nn.Module:
    """GoogLeNet without its auxiliary classifiers; images of 224 x 224."""
    pool = nn.MaxPool2d(3, 2, 1)
    return nn.Sequential(
        _convolution(3, 64, 7, 2),
        pool,
        _convolution(64, 64, 1),
        _convolution(64, 192, 3),
        pool,
        Inception(192, 64, 96, 128, 16, 32, 32),
        Inception(256, 128, 128, 192, 32, 96, 64),
        pool,
        Inception(480, 192, 96, 208, 16, 48, 64),
        Inception(512, 160, 112, 224, 24, 64, 64),
        Inception(512, 128, 128, 256, 24, 64, 64),
        Inception(512, 112, 144, 288, 32, 64, 64),
        Inception(528, 256, 160, 320, 32, 128, 128),
        pool,
        Inception(832, 256, 160, 320, 32, 128, 128),
        Inception(832, 384, 192, 384, 48, 128, 128),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(1024, 1000),
    )


class DLRM(nn.Module):
    """A recommendation model of 13 numbers and 26 categories (Naumov et al., 2019)."""

    def __init__(self, rows: int = 100_000, width: int = 64, n_tables: int = 26) -> None:
        super().__init__()
        self.bottom = _perceptron(13, 512, 256, width)
        self.tables = nn.ModuleList([nn.Embedding(rows, width) for _ in range(n_tables)])
        self.top = _perceptron(width + (n_tables + 1) ** 2, 1024, 1024, 512, 256, 1)

    def forward(self, numbers: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        """(batch, 13) and rows of tables (batch, tables) to (batch, 1)."""
        dense = self.bottom(numbers)
        looked_up = [table(categories[:, n]) for n, table in enumerate(self.tables)]
        vectors = torch.stack([dense, *looked_up], dim=1)
        products = (vectors @ vectors.transpose(1, 2)).flatten(1)
        return torch.sigmoid(self.top(torch.cat([dense, products], dim=1)))


def _perceptron(*widths: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _made(name: str, dtype: torch.dtype, small: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    """A network and its inputs, batch 1."""
    if name in catalogue.NETWORKS:
        return catalogue.make(name, dtype=dtype, small=small)
    torch.manual_seed(0)
    if name == "googlenet":
        return googlenet().to(dtype).eval(), (torch.randn(1, 3, 224, 224, dtype=dtype),)
    categories = torch.randint(0, 1000, (1, 26))
    return DLRM(1000 if small else 100_000).to(dtype).eval(), (
        torch.randn(1, 13, dtype=dtype),
        categories,
    )


def main() -> int:
    """Run the cases; returns 1 if one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = [*catalogue.NETWORKS, "googlenet", "dlrm"]
    parser.add_argument("--networks", nargs="+", choices=names, default=names)
    parser.add_argument("--dtypes", nargs="+", choices=catalogue.DTYPES, default=catalogue.DTYPES)
    parser.add_argument("--small", action="store_true", help="the networks' small variants")
    parser.add_argument("--trials", type=int, default=256, help="of each network")
    parser.add_argument("--captures", type=int, default=5)
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    args = parser.parse_args()
    runs: list[dict[str, Any]] = []
    every = [
        {
            "name": name,
            "dtype": dtype,
            "small": args.small,
            "trials": args.trials,
            "captures": args.captures,
        }
        for dtype in args.dtypes
        for name in args.networks
    ]
    failed = repeated.run_all(NAME, every, _case, runs, args.out)
    if runs:
        print(results.render_branches({"runs": runs}))
    return int(bool(failed))


def _case(case: dict[str, Any], out: str) -> None:
    import felix
    from felix import target
    from felix.network import cuda_graph

    os.environ["FELIX_CACHE_DIR"] = str(pathlib.Path(out).parent)
    model, inputs = _made(case["name"], getattr(torch, case["dtype"]), case["small"])
    model, inputs = model.cuda(), tuple(each.cuda() for each in inputs)
    fast = felix.optimize(model, inputs, trials=case["trials"])
    made = [
        cuda_graph.CapturedNetwork(fast.executable, inputs).branching
        for _ in range(case["captures"])
    ]
    captures = [
        {
            "branches": each.n_branches,
            "branched_us": each.branched_us,
            "in_order_us": each.in_order_us,
        }
        for each in made
        if each is not None
    ]
    device = str(target.hardware(target.parse("cuda")).name)
    kernels = sum(each.group.calls for each in fast.report.groups)
    common.write(
        pathlib.Path(out),
        {
            **case,
            "device": device,
            "calls": kernels,
            "max_error": fast.report.max_error,
            "captured": captures,
        },
    )


if __name__ == "__main__":
    sys.exit(main())
