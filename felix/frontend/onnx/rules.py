"""What ONNX's text says of operands and attributes where its schemas do not check it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

#: Extents of an operand; None for one that is left out or of an open shape.
Shape: TypeAlias = Sequence[int] | None

#: Operands of one element.
_NUMBERS: Mapping[str, tuple[int, ...]] = {
    "Clip": (1, 2),
    "CumProd": (1,),
    "CumSum": (1,),
    "Dropout": (1, 2),
    "If": (0,),
    "Loop": (0, 1),
    "OneHot": (1,),
    "Pad": (2,),
    "Range": (0, 1, 2),
    "TopK": (1,),
    "Trilu": (1,),
}
_ANY = ""
#: The least and the most that attributes may be, by the operator, or of any operator.
_RANGES: Mapping[tuple[str, str], tuple[float, float]] = {
    (_ANY, "epsilon"): (0, math.inf),
    ("Attention", "left_window_size"): (-1, math.inf),
    ("Attention", "qk_matmul_output_mode"): (0, 3),
    ("Attention", "right_window_size"): (-1, math.inf),
    ("Attention", "softcap"): (0, math.inf),
    ("GlobalLpPool", "p"): (1, math.inf),
    ("GroupNormalization", "num_groups"): (1, math.inf),
    ("LRN", "size"): (1, math.inf),
    ("LpNormalization", "p"): (1, 2),
    ("LpPool", "p"): (1, math.inf),
    ("RoiAlign", "output_height"): (1, math.inf),
    ("RoiAlign", "output_width"): (1, math.inf),
    ("RoiAlign", "sampling_ratio"): (0, math.inf),
    ("RotaryEmbedding", "num_heads"): (0, math.inf),
    ("RotaryEmbedding", "rotary_embedding_dim"): (0, math.inf),
}
#: Operators with an axis that ONNX's inference lets pass.
_OF_AXIS = frozenset({"LayerNormalization", "LpNormalization", "RMSNormalization", "Scatter"})
#: Recurrent operators -> gates.
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def broken(operator: str, shapes: Sequence[Shape], attributes: Mapping[str, Any]) -> str | None:
    """What of an operator's text a node breaks, as "its ..."; None where it breaks nothing.

    Args:
        operator: of the node.
        shapes: of its operands.
        attributes: by name.
    """
    for index in _NUMBERS.get(operator, ()):
        shape = shapes[index] if index < len(shapes) else None
        if shape is not None and math.prod(shape) != 1:
            return f"its operand {index} has {math.prod(shape)} elements, not one"
    for name, value in attributes.items():
        limits = _RANGES.get((operator, name)) or _RANGES.get((_ANY, name))
        if limits is not None and not limits[0] <= value <= limits[1]:
            return f"its attribute {name!r} is not in the range [{limits[0]:g}, {limits[1]:g}]"
    pads = attributes.get("pads") or ()
    if attributes.get("auto_pad", b"NOTSET") != b"NOTSET" and (
        any(pads) or (pads and operator.startswith("Conv"))
    ):
        return "its attributes 'auto_pad' and 'pads' exclude each other"
    if operator.startswith("Reduce") and _is_no_list(shapes, 1):
        return "its axes are no list"
    if operator in _OF_AXIS and shapes[0] is not None:
        axis, rank = attributes.get("axis", 0 if operator == "Scatter" else -1), len(shapes[0])
        if not -rank <= axis < rank:
            return f"its attribute 'axis' is {axis}, and it has {rank} axes"
    if operator in GATES:
        return _recurrent(GATES[operator], shapes, attributes)
    rule = _RULES.get(operator)
    return None if rule is None else rule(shapes, attributes)


def _is_no_list(shapes: Sequence[Shape], index: int) -> bool:
    """Whether an operand is there and no list."""
    shape = shapes[index] if index < len(shapes) else None
    return shape is not None and len(shape) != 1


def _loss(shapes: Sequence[Shape], attributes: Mapping[str, Any]) -> str | None:
    """Scores [n, c, d...] have a label for each [n, d...], and weights for each c."""
    scores, labels, weights = (*shapes, None)[:3]
    if scores is not None and labels is not None:
        if [*scores[:1], *scores[2:]] != list(labels):
            return "its labels have another shape than its scores without their classes"
        if weights is not None and list(weights) != list(scores[1:2]):
            return "its weights have another number than its classes"
    return None


def _attention(shapes: Sequence[Shape], attributes: Mapping[str, Any]) -> str | None:
    """Keys and values of as many rows; numbers of heads where tensors have no axis of heads."""
    if "num_heads" in attributes:
        return None  # Microsoft's operator of the name
    if attributes.get("scale", 1) <= 0:
        return "its attribute 'scale' is not above 0"
    query, key, value, mask = (*shapes, None, None, None, None)[:4]
    if mask is not None and len(mask) > 4:
        return "its mask has more than four axes"
    if query is None or key is None or value is None:
        return None
    if {len(query), len(key), len(value)} not in ({3}, {4}):
        return "its queries, keys and values are not of three or four axes"
    if key[-2] != value[-2] or query[0] != key[0] or key[0] != value[0]:
        return "its queries, keys and values differ in their batch, or in their number of rows"
    if len(key) == 4 and key[1] != value[1]:
        return "its keys and values differ in their number of heads"
    heads = {"q_num_heads", "kv_num_heads"}
    if len(query) == 4 and not heads.isdisjoint(attributes):
        return "its attributes 'q_num_heads' and 'kv_num_heads' are of tensors of three axes"
    return None


def _place(shapes: Sequence[Shape], attributes: Mapping[str, Any]) -> str | None:
    """Nothing has no largest element."""
    axis, extents = attributes.get("axis", 0), shapes[0] or ()
    is_empty = -len(extents) <= axis < len(extents) and not extents[axis]
    return f"its attribute 'axis' is {axis}, an axis without elements" if is_empty else None


def _rotary(shapes: Sequence[Shape], attributes: Mapping[str, Any]) -> str | None:
    """Cosines and sines are of half of what is rotated."""
    rotated, cosines = attributes.get("rotary_embedding_dim", 0), shapes[1]
    if rotated and cosines is not None and 2 * cosines[-1] != rotated:
        return f"its attribute 'rotary_embedding_dim' is {rotated}, not {2 * cosines[-1]}"
    return None


def _recurrent(gates: int, shapes: Sequence[Shape], attributes: Mapping[str, Any]) -> str | None:
    """X is [s, b, i], W [d, g h, i], R [d, g h, h], B [d, 2 g h], states are [d, b, h]; with the
    layout 1 the batch comes first."""
    x, hidden = shapes[0], attributes.get("hidden_size")
    if hidden is None:
        return "it lacks its attribute 'hidden_size'"
    if x is None or len(x) != 3:
        return "its operand 'X' is not of three axes"
    n = 2 if attributes.get("direction") == b"bidirectional" else 1
    rows, is_first = gates * hidden, bool(attributes.get("layout", 0))
    batch = x[0] if is_first else x[1]
    state = [batch, n, hidden] if is_first else [n, batch, hidden]
    right = [list(x), [n, rows, x[2]], [n, rows, hidden], [n, 2 * rows], [batch], state, state]
    for shape, expected, name in zip(shapes, right, _OF_RECURRENT, strict=False):
        if shape is not None and list(shape) != expected:
            return f"its operand {name!r} is not of the shape {tuple(expected)}"
    return None


_OF_RECURRENT = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c")
_RULES: Mapping[str, Callable[[Sequence[Shape], Mapping[str, Any]], str | None]] = {
    "ArgMax": _place,
    "ArgMin": _place,
    "Attention": _attention,
    "NegativeLogLikelihoodLoss": _loss,
    "RotaryEmbedding": _rotary,
    "SoftmaxCrossEntropyLoss": _loss,
}
