"""Optimizing with planned groups: right results, and no measuring the second time."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import torch

import felix
from benchmarks.networks import transformers
from felix import errors
from felix.frontend.programs.planning import merged, norms, planner
from felix.measure.calls import cpu_calls
from felix.network.contenders.shipping import Contender
from tests.support import networks


def test_planned_groups_agree_and_are_known_the_second_time(tmp_path: pathlib.Path) -> None:
    torch.manual_seed(0)
    model = transformers._PreNormBlock(16, 2, 32).eval()
    x = torch.randn(1, 6, 16)
    first_pool, second_pool = networks.Pool(), networks.Pool()
    first = networks.optimize(model, (x,), tmp_path, first_pool, fusion="planned", trials=64)
    with torch.no_grad():
        torch.testing.assert_close(first(x), model(x), rtol=1e-4, atol=1e-5)
    assert first_pool.n_measured
    by_rules = networks.optimize(model, (x,), tmp_path / "rules")
    assert _n_calls(first) < _n_calls(by_rules)
    second = networks.optimize(model, (x,), tmp_path, second_pool, fusion="planned", trials=64)
    assert second_pool.n_measured == 0
    assert _n_calls(second) == _n_calls(first)


def _n_calls(fast: felix.network.optimized.OptimizedNetwork) -> int:
    return sum(each.group.calls for each in fast.report.groups)


@pytest.mark.parametrize("fusion", ["best", "fuseops", "planned-as-written"])
def test_an_unknown_fusion_is_refused(fusion: str) -> None:
    with pytest.raises(errors.WorkloadError, match=f"one of rules, planned, got '{fusion}'"):
        felix.optimize(torch.nn.ReLU(), (torch.randn(2),), fusion=fusion)


def test_pytorch_contends_for_planned_groups(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_turns_us(calls: Any, inputs: Any, turns: int, burst: int, hopeless: float) -> Any:
        return {name: [1.0 if name is Contender.PYTORCH else 10.0] for name in calls}

    monkeypatch.setattr(cpu_calls, "in_turns_us", in_turns_us)
    for rewriting in (merged, norms):  # groups are of the model's own operators
        monkeypatch.setattr(rewriting, "extended", lambda read: read)
    torch.manual_seed(0)
    model = transformers._PreNormBlock(16, 2, 32).eval()
    x = torch.randn(1, 6, 16)
    fast = networks.optimize(model, (x,), tmp_path, fusion="planned", pytorch=True)
    assert {each.contender for each in fast.report.groups} == {Contender.PYTORCH}
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)


def test_folded_norms_run_and_are_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "NEW", 0.1)  # folding is chosen wherever it is legal
    torch.manual_seed(0)
    model = transformers._PreNormBlock(32, 2, 64).to(torch.bfloat16).eval()
    x = torch.randn(1, 6, 32).to(torch.bfloat16)
    fast = networks.optimize(model, (x,), tmp_path, fusion="planned", trials=8)
    assert fast.report.max_error < 0.05
    said = {each.group.name: each.group.rewriting for each in fast.report.groups}
    products = [name for name in said if "normed_product" in name]
    assert len(products) == 2 and all("norm is folded" in str(said[name]) for name in products)
    assert not any("norm_weights" in name for name in said)
    assert "computed in another way: norm_statistics: " in str(fast.report)
