"""ONNX's recurrent operators (LSTM, GRU, RNN), unrolled to a product a step.

The products of the inputs, of all steps at once, come first; a step multiplies the state alone.
Formulas are those of ONNX's operator definitions.

Notation: s steps, b batch, i input size, h hidden size, d directions, g gates (4, 3, 1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from felix import errors
from felix.frontend import layers
from felix.frontend.layers import dtype_of, shape_of
from felix.frontend.onnx import constants
from felix.frontend.onnx.node import Node
from felix.frontend.rewriting import results_of_call

#: Steps of all recurrent operators of a model, of both directions.
MAX_STEPS = 4096
_ACTIVATIONS: Mapping[str, Callable[[Any], Any]] = {
    "sigmoid": relax.op.sigmoid,
    "tanh": relax.op.tanh,
    "relu": relax.op.nn.relu,
}
_DEFAULTS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
#: Positions of inputs: W and R have the gates below each other, B those of W and then of R.
_X, _W, _R, _B, _LENGTHS, _H, _C, _P = range(8)


@dataclass(frozen=True, slots=True)
class _Direction:
    """What a direction has, as Relax expressions."""

    #: [s][b, g * h], with the biases that may be added before a step
    projected: Sequence[Any]
    #: [h, g * h]
    weights: Any
    #: [1, g * h]
    bias: Any
    #: [b, h]
    state: Any
    cell: Any
    functions: Sequence[Callable[[Any], Any]]


class Unroller:
    """Unrolls the recurrent nodes of one model."""

    def __init__(self, importer: Any) -> None:
        self._emit = importer.bb.emit
        self._builder = importer.bb
        self._n_steps = 0

    def convert(self, node: Node) -> Any:
        """The outputs Y, Y_h and of an LSTM Y_c of a node, as a tuple.

        Raises:
            WorkloadError: inputs or attributes that are not supported, or more than MAX_STEPS.
        """
        x, lengths, peepholes = (node[position] for position in (_X, _LENGTHS, _P))
        if peepholes is not None and node.operator == "LSTM":
            raise errors.WorkloadError("peepholes are not supported")
        is_batch_first = bool(node.get("layout", 0))
        if is_batch_first:
            x = self._emit(relax.op.permute_dims(x, [1, 0, 2]))
        s = shape_of(x)[0]
        known = constants.known(lengths, node.tables)
        if lengths is not None and (known is None or not np.all(known == s)):
            raise errors.WorkloadError("sequences of different lengths are not supported")
        names = _direction_names(node.get("direction", "forward"))
        self._n_steps += s * len(names)
        if self._n_steps > MAX_STEPS:
            raise errors.WorkloadError(f"more than {MAX_STEPS} steps")
        results = []
        for index, name in enumerate(names):
            one = self._direction(node, x, index, len(names))
            results.append(self._run(node, one, name == "reverse"))
        return self._joined(results, is_batch_first)

    def _product(self, left: Any, right: Any) -> Any:
        return layers.product(self._emit, left, right)

    def _of(self, tensor: Any, index: int, axis: int = 0) -> Any:
        """A slice without its axis."""
        if int(tensor.ty.shape[axis]) > 1:
            one = relax.op.strided_slice(tensor, [axis], [index], [index + 1])
            tensor = self._emit(one)
        return self._emit(relax.op.squeeze(tensor, [axis]))

    def _direction(self, node: Node, x: Any, index: int, count: int) -> _Direction:
        w, r = (self._of(node[position], index) for position in (_W, _R))
        (s, b, i), (rows, h), dtype = shape_of(x), shape_of(r), dtype_of(x)
        biases = self._biases(node[_B], index, rows, dtype)
        flat = self._emit(relax.op.reshape(x, [s * b, i]))
        product = self._product(flat, relax.op.permute_dims(w))
        product = self._emit(relax.op.add(product, biases[0]))
        functions = _functions(node.operator, node.get("activations"), index, count)
        axis, has_cell = (1 if node.get("layout", 0) else 0), node.operator == "LSTM"

        def start(position: int) -> Any:
            if node[position] is None:
                return relax.const(np.zeros((b, h), dtype), dtype)
            return self._of(node[position], index, axis)

        return _Direction(
            projected=self._parts(product, s, axis=0),
            weights=self._emit(relax.op.permute_dims(r)),
            bias=biases[1],
            state=start(_H),
            cell=start(_C) if has_cell else None,
            functions=functions,
        )

    def _biases(self, bias: Any, index: int, rows: int, dtype: str) -> list[Any]:
        """Those of the inputs and of the state, [1, rows] each."""
        if bias is None:
            return [relax.const(np.zeros((1, rows), dtype), dtype)] * 2
        both = self._emit(relax.op.reshape(self._of(bias, index), [1, 2 * rows]))
        return self._parts(both, 2)

    def _parts(self, tensor: Any, count: int, axis: int = -1) -> list[Any]:
        """Equal parts along an axis, the last one if it is not given."""
        if count == 1:
            return [tensor]
        return results_of_call(self._builder, relax.op.split(tensor, count, axis=axis), count)

    def _run(self, node: Node, one: _Direction, backwards: bool) -> tuple[list[Any], Any, Any]:
        """States after all steps, in the order of the inputs, and the last state and cell."""
        states: list[Any] = [None] * len(one.projected)
        state, cell = one.state, one.cell
        order = range(len(states))
        for step in reversed(order) if backwards else order:
            if node.operator == "LSTM":
                state, cell = self._lstm(one, one.projected[step], state, cell)
            elif node.operator == "GRU":
                before = bool(node.get("linear_before_reset", 0))
                state = self._gru(one, one.projected[step], state, before)
            else:
                total = relax.op.add(one.projected[step], self._of_state(one, state))
                state = self._emit(one.functions[0](self._emit(total)))
            states[step] = state
        return states, state, cell

    def _of_state(self, one: _Direction, state: Any) -> Any:
        product = self._product(state, one.weights)
        return self._emit(relax.op.add(product, one.bias))

    def _lstm(self, one: _Direction, projected: Any, state: Any, cell: Any) -> tuple[Any, Any]:
        """Gates in the order i, o, f, c: C' = f * C + i * c; H' = o * h(C')."""
        f, g, h = one.functions
        total = self._emit(relax.op.add(projected, self._of_state(one, state)))
        parts = self._parts(total, 4)
        entry, out, forget = (self._emit(f(part)) for part in parts[:3])
        kept = self._emit(relax.op.multiply(forget, cell))
        added = self._emit(relax.op.multiply(entry, self._emit(g(parts[3]))))
        new = self._emit(relax.op.add(kept, added))
        return self._emit(relax.op.multiply(out, self._emit(h(new)))), new

    def _gru(self, one: _Direction, projected: Any, state: Any, before: bool) -> Any:
        """Gates in the order z, r, h: H' = (1 - z) * g(h) + z * H.

        `before`: r scales the product of the state and its bias, not the state.
        """
        f, g = one.functions
        given, whole = self._parts(projected, 3), self._parts(self._of_state(one, state), 3)
        z, r = (self._emit(f(self._emit(relax.op.add(given[n], whole[n])))) for n in (0, 1))
        if before:
            inner = relax.op.multiply(r, whole[2])
        else:
            weights, bias = self._parts(one.weights, 3)[2], self._parts(one.bias, 3)[2]
            scaled = self._emit(relax.op.multiply(r, state))
            inner = relax.op.add(self._product(scaled, weights), bias)
        hidden = self._emit(g(self._emit(relax.op.add(given[2], self._emit(inner)))))
        kept = self._emit(relax.op.multiply(z, self._emit(relax.op.subtract(state, hidden))))
        return self._emit(relax.op.add(hidden, kept))

    def _joined(self, results: Sequence[tuple[list[Any], Any, Any]], batch_first: bool) -> Any:
        """Y [s, d, b, h] and the last states [d, b, h]; with layout 1 the batch comes first."""
        by_step = [
            self._emit(relax.op.stack(list(states), axis=0))
            for states in zip(*(states for states, _, _ in results), strict=True)
        ]
        y = self._emit(relax.op.stack(by_step, axis=0))
        last = [self._emit(relax.op.stack([state for _, state, _ in results], axis=0))]
        if results[0][2] is not None:
            last.append(self._emit(relax.op.stack([cell for _, _, cell in results], axis=0)))
        if batch_first:
            y = self._emit(relax.op.permute_dims(y, [2, 0, 1, 3]))
            last = [self._emit(relax.op.permute_dims(each, [1, 0, 2])) for each in last]
        return relax.Tuple([y, *last])


def _direction_names(direction: str) -> list[str]:
    if direction not in ("forward", "reverse", "bidirectional"):
        raise errors.WorkloadError("the direction is unknown")
    return ["forward", "reverse"] if direction == "bidirectional" else [direction]


def _functions(
    operator: str, given: Sequence[bytes] | None, index: int, count: int
) -> list[Callable[[Any], Any]]:
    """The activations of a direction."""
    names = [each.decode() for each in given or ()]
    default = _DEFAULTS[operator]
    names = names or default * count
    if len(names) != len(default) * count:
        raise errors.WorkloadError("the activations do not fit the operator")
    own = names[index * len(default) : (index + 1) * len(default)]
    unknown = [name for name in own if name.lower() not in _ACTIVATIONS]
    if unknown:
        raise errors.WorkloadError(f"the activation {unknown[0]} is not supported")
    return [_ACTIVATIONS[name.lower()] for name in own]
