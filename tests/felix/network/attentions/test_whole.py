"""Attentions as a whole: found in lowered networks, timed beside their programs, put in place."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from benchmarks.networks import catalogue
from felix import errors, frontend, target
from felix.network import deadline, executable, groups, report
from felix.network.attentions import finding, rewiring, whole
from felix.network.contenders import alone
from felix.network.contenders.shipping import Contender
from felix.torch_calls import functions
from tests.support import networks, run_py, share
from tests.support.modules import Called

FULL = target.parse(networks.TARGET)
Function = Callable[..., torch.Tensor]


def _found(function: Function, *tensors: torch.Tensor) -> list[finding.Attention]:
    model = frontend.import_torch(Called(function), tensors)
    return finding.find(frontend.lowered(model, FULL))


Q, K, V = torch.randn(3, 2, 4, 6, 8)
MASK, BIAS = torch.ones(6, 6, dtype=torch.bool), torch.randn(4, 6, 6)


def _by_hand(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, divisor: float = 3.0
) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / divisor, -1) @ v


def _other_way(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k, 3) @ v


def _built_in(**options: Any) -> Function:
    return lambda q, k, v, *mask: functional.scaled_dot_product_attention(
        q, k, v, *mask, **options
    )


@pytest.mark.parametrize(
    ("function", "tensors", "options"),
    [
        (_by_hand, (Q, K, V), {"scale": 1 / 3, "is_causal": False}),
        (_other_way, (Q, K.transpose(-1, -2).contiguous(), V), {"scale": 1.0, "is_causal": False}),
        (_built_in(scale=0.5), (Q, K, V), {"scale": 0.5, "is_causal": False}),
        (_built_in(is_causal=True), (Q, K, V), {"scale": 8**-0.5, "is_causal": True}),
        (_built_in(), (Q, K, V, MASK), {"scale": 8**-0.5, "is_causal": False}),
        (_built_in(), (Q, K, V, BIAS), {"scale": 8**-0.5, "is_causal": False}),
    ],
)
def test_attention_is_found_however_it_is_written(
    function: Function, tensors: tuple[torch.Tensor, ...], options: dict[str, Any]
) -> None:
    model = frontend.import_torch(Called(function), tensors)
    lowered = frontend.lowered(model, FULL)
    (found,) = finding.find(lowered)
    (call,) = [c for step in found.steps for c in step.form.calls if c.function == "attention"]
    assert call.options["is_causal"] is options["is_causal"]
    assert call.options["scale"] == pytest.approx(options["scale"], rel=1e-6)
    assert len(call.operands) == len(tensors)
    rewired = rewiring.with_operators(lowered, [found])
    (output,) = executable.build(rewired, FULL, model.parameters)(list(tensors))
    torch.testing.assert_close(output, function(*tensors), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2), -2) @ v,
        lambda q, k, v: v @ torch.softmax(q @ k.transpose(-1, -2), -1),
        lambda q, k, v: (torch.softmax(q @ k.transpose(-1, -2) + q[..., :6], -1) * 2) @ v,
        lambda q, k, v: 2 * torch.softmax(torch.tanh(q @ k.transpose(-1, -2)), -1) @ v,
        lambda q, k, v: torch.softmax((q @ k.transpose(-1, -2) + 1.5 * q[..., :6]) * 3, -1) @ v,
    ],
)
def test_what_is_no_attention(function: Function) -> None:
    q, k, v = torch.randn(3, 2, 4, 6, 6)
    assert not _found(function, q, k, v)


def test_scores_that_are_read_elsewhere_stay() -> None:
    def both(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        weights = torch.softmax(q @ k.transpose(-1, -2), -1)
        return weights @ v, weights

    assert not _found(both, Q, K, V)


def test_parts_of_a_tensor_that_are_read_elsewhere_are_inputs() -> None:
    def both(x: torch.Tensor) -> Any:
        q, k, v = x.split(8, -1)
        return _by_hand(q, k, v), q.sum(-1)

    x = torch.randn(2, 4, 6, 24)
    model = frontend.import_torch(Called(both), (x,))
    lowered = frontend.lowered(model, FULL)
    (found,) = finding.find(lowered)
    assert [tuple(map(int, each.ty.shape)) for each in found.inputs] == [(2, 4, 6, 8)] * 3
    parts = [each.contiguous() for each in x.split(8, -1)]
    alone = rewiring.alone(lowered, found)
    for mod, given in (
        (alone, parts),
        (rewiring.operator(alone, found), parts),
        (rewiring.with_operators(lowered, [found]), [x]),
    ):
        output, *_ = executable.build(mod, FULL, model.parameters)(given)
        torch.testing.assert_close(output, _by_hand(*parts), rtol=1e-5, atol=1e-5)


@pytest.mark.slow("compiles what contends for all groups of whole networks")
@pytest.mark.parametrize(
    ("name", "dtype", "fusion"),
    [
        ("bert_base", torch.bfloat16, "rules"),
        ("bert_base", torch.float32, "planned"),
        ("llama", torch.bfloat16, "planned"),
    ],
)
def test_networks_with_attention_as_a_whole(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    dtype: torch.dtype,
    fusion: str,
) -> None:
    networks.timed_contenders(monkeypatch, 1.0)
    model, inputs = catalogue.make(name, dtype=dtype, small=True)
    fast = networks.optimize(model, inputs, tmp_path, trials=1, pytorch=True, fusion=fusion)
    (one,) = fast.report.attentions
    assert one.ships and one.calls == 2 and not one.wrong


@pytest.mark.parametrize("dtype", share.of([torch.float32, torch.bfloat16], 1))
def test_faster_operator_takes_the_place_of_the_programs(
    everything_known: pathlib.Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    log = networks.timed_contenders(monkeypatch, 1.0)
    model, tokens = networks.Block().to(dtype).eval(), torch.tensor([[1, 2, 3, 10, 0]])
    fast = networks.optimize(model, tokens, everything_known, pytorch=True)
    (one,) = fast.report.attentions
    of_whole = [each for each in fast.report.groups if each.group.name in one.groups]
    assert one.ships and any(each.group.calls == 0 for each in of_whole)
    assert "attention as a whole" in str(fast.report)
    row = fast.report.to_json()["attentions"][0]
    assert row["ships"] == "pytorch" and row["latencies_us"] == {"groups": 10.0, "pytorch": 1.0}
    by_pytorch = [each for each in fast.report.groups if each.contender is Contender.PYTORCH]
    assert len(by_pytorch) >= len(fast.report.groups) - 3
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        actual = fast(tokens.flip(1))
    with torch.no_grad():
        expected = model(tokens.flip(1))
    limit = 1e-4 if dtype is torch.float32 else 0.1
    torch.testing.assert_close(actual, expected, rtol=limit, atol=limit)
    n_timed = len(log)
    again = networks.optimize(model, tokens, everything_known, pytorch=True)
    assert len(log) == n_timed and again.report.n_compared == 0  # attentions are known, too
    assert again.report.attentions[0].ships
    folder = fast.export(everything_known / "net")
    done = run_py.run(folder, "--json", "--repeats", "2")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["max_error"] <= limit


def test_time_is_kept_for_attentions(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are compared where there is none for groups."""
    log = networks.timed_contenders(monkeypatch, 1.0)
    monkeypatch.setattr(alone, "latencies_us", lambda *_: {})
    monkeypatch.setattr(deadline.Deadline, "comparing_s", lambda *_: 0.5 * deadline.ATTENTION_S)
    options = networks.tune_options(networks.Pool(), first_round_size=1)
    arguments = {"seconds": 60.0, "trials": 4, "pytorch": True, "options": options}
    fast = networks.optimize(Called(_by_hand), (Q, K, V), tmp_path, **arguments)
    (one,) = fast.report.attentions
    assert one.ships and fast.report.n_compared == len(log) == 1


def _report(folder: pathlib.Path, divisor: float) -> report.Report:
    """Of a network of two attentions, by another operator than that of another divisor."""

    def twice(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return _by_hand(_by_hand(q, k, v, divisor), k, v, divisor)

    return networks.optimize(Called(twice), (Q, K, V), folder, pytorch=True).report


@pytest.mark.slow("tunes a network once more; the faster operator is tested above")
def test_slower_operator_leaves_the_programs(
    everything_known: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks.timed_contenders(monkeypatch, 11.0)
    found = _report(everything_known, 3.0)
    (one,) = found.attentions
    assert one.calls == 2 and not one.ships and one.reason == "PyTorch: 1.10 times as long"
    assert all(each.group.calls for each in found.groups)


def _wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention by PyTorch is wrong, and the fastest."""
    networks.timed_contenders(monkeypatch, 1.0)
    right = functions.MAKING["attention"]
    monkeypatch.setitem(functions.MAKING, "attention", lambda *a, **o: 1.5 * right(*a, **o))


@pytest.mark.slow("tunes a network once more")
def test_wrong_operator_does_not_ship(
    everything_known: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _wrong(monkeypatch)
    found = _report(everything_known, 4.0)
    (one,) = found.attentions
    assert not one.ships and set(one.wrong) == {Contender.PYTORCH}
    assert "left out: PyTorch's result differs from the reference's" in str(found)


@pytest.mark.slow("tunes a network once more")
def test_wrong_programs_and_operator_are_one_error(
    everything_known: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _wrong(monkeypatch)
    monkeypatch.setattr(whole._Comparison, "_expected", lambda self, drawn: torch.zeros_like(V))
    with pytest.raises(errors.TuningError, match=r"no program of an attention .* is right here"):
        _report(everything_known, 5.0)


def test_a_mask_is_converted_once_for_all_layers() -> None:
    model, inputs = catalogue.make("bert_base", dtype=torch.bfloat16, small=True)
    lowered = frontend.lowered(frontend.import_torch(model, inputs), FULL)
    found = finding.find(lowered)
    assert [len(each.steps) for each in found] == [2, 2]
    rewired = rewiring.with_operators(lowered, found)
    packed = [
        str(binding.value.args[0].global_symbol)
        for block in rewired["main"].body.blocks
        for binding in block.bindings
        if getattr(getattr(binding.value, "op", None), "name", "") == "relax.call_dps_packed"
    ]
    assert len(packed) == 3 and len(set(packed)) == 2
    before, after = (groups.counts(each).total() for each in (lowered, rewired))
    assert before - after == 2 * 8  # split, 3 transpositions, scores, softmax, sum, transposition
