"""ONNX's LSTM, GRU and RNN, run on the CPU against PyTorch and ONNX's definitions."""

from __future__ import annotations

import io

import pytest

pytest.importorskip("onnx", reason="onnx is an optional extra")

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import nn

from felix import errors, frontend
from felix.frontend.onnx import recurrent, rules
from tests.felix.frontend.test_networks import assert_agrees, run
from tests.support import share
from tests.support.hostile import onnx_models

STEPS, BATCH, INPUTS, HIDDEN = 4, 2, 3, 5


def exported(module: nn.Module, args: tuple[torch.Tensor, ...]) -> bytes:
    """A module as torch exports it: the operator itself."""
    buffer = io.BytesIO()
    torch.onnx.export(module.eval(), args, buffer, dynamo=False)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("options", "kind"),
    share.of(
        share.crossed(
            [{}, {"batch_first": True}, {"bidirectional": True, "num_layers": 2}, {"bias": False}],
            [nn.LSTM, nn.GRU, nn.RNN],
        ),
        3,
    ),
)
def test_modules_of_pytorch(kind: type[nn.RNNBase], options: dict[str, object]) -> None:
    torch.manual_seed(0)
    module, x = kind(INPUTS, HIDDEN, **options), torch.randn(STEPS, BATCH, INPUTS)
    content = exported(module, (x,))
    operators = {node.op_type for node in onnx.load_from_string(content).graph.node}
    assert kind.__name__ in operators
    imported = frontend.import_onnx(content)
    output, state = module(x)
    states = state if isinstance(state, tuple) else (state,)
    assert_agrees(run(imported, frontend.lowered(imported), [x]), (output, *states), 2e-5)


def values(operator: str, directions: int = 1) -> dict[str, np.ndarray]:
    """Inputs of a node by the names of the operator's definition."""
    rng, rows = np.random.default_rng(0), rules.GATES[operator] * HIDDEN
    shapes = {
        "X": (STEPS, BATCH, INPUTS),
        "W": (directions, rows, INPUTS),
        "R": (directions, rows, HIDDEN),
        "B": (directions, 2 * rows),
        "initial_h": (directions, BATCH, HIDDEN),
    } | ({"initial_c": (directions, BATCH, HIDDEN)} if operator == "LSTM" else {})
    return {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}


def model(
    operator: str,
    given: dict[str, np.ndarray],
    lengths: list[int] | None = None,
    names: tuple[str, ...] = ("X", "W", "R", "B", "lengths", "initial_h", "initial_c"),
    **attributes: object,
) -> bytes:
    """A node of which X is the input; its outputs are the model's."""
    outputs = ["Y", "Y_h", "Y_c"][: 3 if operator == "LSTM" else 2]
    present = [name if name in given or (name == "lengths" and lengths) else "" for name in names]
    present = present if operator == "LSTM" else present[:6]
    node = onnx_models.node(operator, present, outputs, hidden_size=HIDDEN, **attributes)
    constants = [numpy_helper.from_array(given[name], name) for name in given if name != "X"]
    if lengths:
        constants.append(numpy_helper.from_array(np.asarray(lengths, "int32"), "lengths"))
    inputs = [onnx_models.value("X", given["X"].shape)]
    content: bytes = onnx_models.model([node], constants, inputs, outputs).SerializeToString()
    return content


def ran(content: bytes, x: np.ndarray) -> tuple[torch.Tensor, ...]:
    imported = frontend.import_onnx(content)
    return run(imported, frontend.lowered(imported), [torch.from_numpy(x).clone()])


CASES = [
    ("LSTM", {}),
    ("LSTM", {"activations": ["Sigmoid", "Relu", "Tanh"]}),
    ("GRU", {"linear_before_reset": 0}),
    ("GRU", {"linear_before_reset": 1}),
    ("RNN", {}),
    ("RNN", {"activations": ["Relu"]}),
]


@pytest.mark.parametrize(("operator", "attributes"), share.of(CASES, 2))
def test_nodes_with_states(operator: str, attributes: dict[str, object]) -> None:
    given = values(operator)
    content = model(operator, given, [STEPS] * BATCH, **attributes)
    before = bool(attributes.get("linear_before_reset"))
    expected = by_formula(operator, given, "activations" in attributes, before)
    assert_agrees(ran(content, given["X"]), tuple(map(torch.from_numpy, expected)), 2e-5)


def by_formula(
    operator: str, given: dict[str, np.ndarray], has_relu: bool, before: bool
) -> list[np.ndarray]:
    """ONNX's definitions; with a Relu where the new value's Tanh was."""
    f, g = (lambda a: 1 / (1 + np.exp(-a))), (lambda a: np.maximum(a, 0)) if has_relu else np.tanh
    w, r, h, ys = given["W"][0].T, given["R"][0].T, given["initial_h"][0], []
    of_inputs, of_state = np.split(given["B"][0], 2)
    c = given["initial_c"][0] if operator == "LSTM" else None
    for x in given["X"]:
        a, b = x @ w + of_inputs, h @ r + of_state
        if operator == "LSTM":
            i, o, forget, new = np.split(a + b, 4, axis=1)
            c = f(forget) * c + f(i) * g(new)
            h = f(o) * np.tanh(c)
        elif operator == "GRU":
            (az, ar, ah), (bz, br, bh) = np.split(a, 3, axis=1), np.split(b, 3, axis=1)
            z, reset = f(az + bz), f(ar + br)
            own = np.split(r, 3, axis=1)[2], np.split(of_state, 3)[2]
            h = (1 - z) * g(ah + (reset * bh if before else (reset * h) @ own[0] + own[1])) + z * h
        else:
            h = g(a + b)
        ys.append(h[None])
    return [np.stack(ys), h[None], *([] if c is None else [c[None]])]


@pytest.mark.parametrize("operator", share.of(rules.GATES, 1))
def test_batch_first_and_reverse(operator: str) -> None:
    """The layout 1 is that of 0 with axes swapped; reversed is forward on reversed inputs."""
    given = values(operator)
    swapped = {
        name: value.swapaxes(0, 1) if name in ("X", "initial_h", "initial_c") else value
        for name, value in given.items()
    }
    x = np.ascontiguousarray(swapped["X"])
    y, *states = ran(model(operator, swapped | {"X": x}, layout=1), x)
    plain, *plain_states = ran(model(operator, given), given["X"])
    assert_agrees(
        (y, *states), (plain.permute(2, 0, 1, 3), *(s.swapaxes(0, 1) for s in plain_states)), 1e-5
    )
    backwards = np.ascontiguousarray(given["X"][::-1])
    y, *states = ran(model(operator, given, direction="reverse"), backwards)
    assert_agrees((y, *states), (plain.flip(0), *plain_states), 1e-5)


REFUSED = [
    {"clip": 1.0},
    {"activations": ["Sigmoid", "Softsign", "Tanh"]},
    {"direction": "sideways"},
    {"activations": ["Sigmoid"]},
    {"input_forget": 1},
]


@pytest.mark.parametrize("attributes", REFUSED, ids=lambda each: "-".join(each))
def test_what_is_not_supported_is_refused(attributes: dict[str, object]) -> None:
    with pytest.raises(errors.WorkloadError, match="LSTM"):
        frontend.import_onnx(model("LSTM", values("LSTM"), **attributes))


def test_sequences_of_different_lengths_are_refused() -> None:
    with pytest.raises(errors.WorkloadError, match="LSTM"):
        frontend.import_onnx(model("LSTM", values("LSTM"), [STEPS, STEPS - 1]))


def test_peepholes_and_wrong_weights_are_refused() -> None:
    given = values("LSTM")
    peepholes = given | {"P": np.zeros((1, 3 * HIDDEN), "float32")}
    names = ("X", "W", "R", "B", "", "initial_h", "initial_c", "P")
    wrong = given | {"R": given["R"][:, 1:]}
    for content in (model("LSTM", peepholes, names=names), model("LSTM", wrong)):
        with pytest.raises(errors.WorkloadError, match="LSTM"):
            frontend.import_onnx(content)


def test_a_model_has_a_limit_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    content = model("RNN", values("RNN"))
    monkeypatch.setattr(recurrent, "MAX_STEPS", STEPS)
    frontend.import_onnx(content)
    monkeypatch.setattr(recurrent, "MAX_STEPS", STEPS - 1)
    with pytest.raises(errors.WorkloadError, match="RNN"):
        frontend.import_onnx(content)
