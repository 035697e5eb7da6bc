"""Networks are compared with their models on the examples and beside them; what differs first is
said."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tvm import relax

from felix import errors, target
from felix.frontend.onnx import operators as onnx_operators
from felix.frontend.pytorch import operators
from felix.network import assembly, checking, differences, imported
from tests.support import networks
from tests.support.hostile import onnx_models as models
from tests.support.modules import Called

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
FULL = target.parse("llvm")


def read(call: Callable[..., Any], *inputs: torch.Tensor) -> imported.Network:
    return imported.read(Called(call), inputs, {}, FULL)


def checked(network: imported.Network, elapsed_s: float = 1000.0) -> checking.Checked:
    return checking.check(network, assembly.built(network, []), elapsed_s)


def test_masks_that_lie_otherwise_and_the_largest_integers() -> None:
    mask, ids = torch.ones(4, 4).tril().t(), torch.tensor([0, 5, 2**63 - 1])
    network = read(lambda x, m, i: (x @ x.T * m, i + 0), X, mask, ids)
    assert checked(network).left_out == ()
    (narrow,) = checking.drawn([torch.tensor([-128, 127, 0], dtype=torch.int8)], 1.0) or [None]
    assert narrow is not None and narrow.dtype == torch.int8


def test_drawn_inputs_are_of_the_examples_kind() -> None:
    positive, tokens = X.abs() + 0.1, torch.tensor([[3, 9, 5, 7]])
    kept = [
        torch.tensor([True, False]),
        torch.tensor([0, 1, 1]),
        torch.tensor([0.0, -torch.inf, 0.0]),
        torch.tensor([0.0, -1e4, 0.0]),
        torch.tensor(500.0),
    ]
    drawn = checking.drawn([positive, tokens, torch.zeros(2, 3), *kept], 8.0)
    assert drawn is not None
    values, numbers, zeros, *others = drawn
    assert (values > 0).all() and 4 * positive.min() <= values.max() <= 12 * positive.max()
    assert not torch.equal(values, positive)
    assert 3 <= numbers.min() and numbers.max() <= 9 and numbers.dtype == torch.int64
    assert zeros.std() > 1
    assert all(new is old for new, old in zip(others, kept, strict=True))
    assert checking.drawn(kept, 1.0) is None


def test_what_the_example_does_not_show_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversion that is right up to 4: the example has no larger value."""
    wrong = {
        **operators.CONVERSIONS,
        "tanh.default": lambda node, importer: importer.block_builder.emit(
            relax.op.tanh(
                importer.block_builder.emit(
                    relax.op.clip(importer._retrieve_args(node.args[0]), -0.5, 0.5)
                )
            )
        ),
    }
    monkeypatch.setattr(operators, "CONVERSIONS", wrong)
    small = X / X.abs().max() / 2.1
    network = read(lambda x: (x.relu() * 0.9).tanh().exp(), small)
    with pytest.raises(errors.TuningError) as raised:
        checked(network)
    assert "on inputs " in str(raised.value)
    assert "The first operator that differs is aten.tanh.default (tanh)." in str(raised.value)


def test_a_tuned_program_is_told_from_the_import() -> None:
    network = read(lambda x: x.relu(), X)

    def off(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [each + 1 for each in assembly.untuned_outputs(network, inputs)]

    with pytest.raises(errors.TuningError, match="so a tuned program differs"):
        checking.check(network, off, 0.0)


def test_the_module_and_its_operator_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {
        **operators.CONVERSIONS,
        "gelu.default": lambda node, importer: importer._retrieve_args(node.args[0]),
    }
    monkeypatch.setattr(operators, "CONVERSIONS", wrong)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8))
    network = imported.read(model, (X,), {}, FULL)
    said = differences.explained(network, network.examples)
    assert said == " The first operator that differs is aten.gelu.default (gelu in 1)."


@pytest.mark.parametrize("rows", [4, "rows"])
def test_a_node_of_a_file_is_named(rows: int | str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is an optional extra")
    wrong = {**onnx_operators._OWN, "Elu": lambda node: relax.op.exp(node[0])}
    monkeypatch.setattr(onnx_operators, "_OWN", wrong)
    nodes = [
        models.node("Relu", ["x"], ["a"]),
        models.node("Elu", ["a"], ["b"], name="second"),
        models.node("Neg", ["b"], ["y"]),
    ]
    content = models.model(nodes, inputs=[models.value("x", [rows, 8])]).SerializeToString()
    network = imported.read(content, (X,), {}, FULL, shapes={"x": (4, 8)})
    with pytest.raises(errors.TuningError, match=r"first operator that differs is Elu \(second\)"):
        checking.judged(network)


def test_what_is_not_compared_is_said(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(x: torch.Tensor) -> torch.Tensor:
        return x.relu()

    network = read(refuses, X)
    assert checked(network).left_out == ()
    monkeypatch.setattr(checking, "LEAST_S", 0.0)
    assert all("takes more than 0 s" in each for each in checked(network, 0.0).left_out)
    monkeypatch.undo()
    (why, _) = checked(read(lambda m: m.float() * 2, torch.tensor([[True, False]]))).left_out
    assert "every input is a mask" in why
    chaotic = read(lambda x: (x * 2.0**22).frac(), X)  # what is left of the last bits
    assert any("rounding of its inputs" in each for each in checked(chaotic).left_out)
    half = read(lambda x: x * 3000, (X / X.abs().max() * 20).half())
    assert "element type" in checked(half).left_out[-1]
    fast = networks.optimize(Called(lambda m: m.float() * 2), (torch.ones(2, 2).bool(),), tmp_path)
    assert "not checked: inputs like the examples: every input is a mask" in str(fast.report)
    assert len(fast.report.to_json()["unchecked"]) == 2


def test_halving_finds_the_first() -> None:
    for count in range(1, 12):
        for bad in range(count):
            steps = [lambda n=n, bad=bad: n >= bad for n in range(count)]
            assert differences.first(steps) == bad
    assert differences.first([]) is None
