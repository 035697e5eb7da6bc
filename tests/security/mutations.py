"""Seeds and random changes of ONNX models and of targets."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from google.protobuf import message as protobuf

from tests.support.hostile import onnx_models as models

CANARY_FILE = "admin.key"

_INTEGERS = (0, 1, -1, 2, 3, 7, 8, 64, -8, 2**31 - 1, 2**31, -(2**31), 2**62, 10**12, 2**63 - 1)
_TEXTS = ("", "x", "y", "a/b:0", "x" * 300, "\u202e", "\x1b[31m", "n*n", "1//0", CANARY_FILE,
          "/etc/passwd", "../" + CANARY_FILE, "com.microsoft", 'x"; asm("trap;")')  # fmt: skip
_OPERATORS = (
    "Relu Add MatMul Gemm Conv ConvTranspose MaxPool AveragePool Softmax LayerNormalization "
    "Reshape Transpose Concat Split Slice Gather Expand Tile Pad Resize ConstantOfShape "
    "Constant Shape Cast ReduceSum ReduceMean ArgMax TopK OneHot CumSum Where If Loop Scan "
    "Range NonZero Unique Einsum Clip Pow Div Mod Squeeze Unsqueeze Flatten GatherND "
    "ScatterND BatchNormalization Attention DepthToSpace SpaceToDepth Trilu Identity "
    "Dropout QuantizeLinear DequantizeLinear SequenceAt"
).split()


def seeds() -> list[Any]:
    """Small models: one for each kind of structure."""
    node, value, integers = models.node, models.value, models.integers
    ones = models.onnx.numpy_helper.from_array
    weight = ones(models.np.ones((8, 4), "float32"), "w")
    kernel = ones(models.np.ones((2, 3, 3, 3), "float32"), "k")
    scale = ones(models.np.ones((8,), "float32"), "g")
    branches = {
        name: models.graph([node(operator, ["x"], ["y"])], [])
        for name, operator in (("then_branch", "Relu"), ("else_branch", "Exp"))
    }
    return [
        models.model([node("MatMul", ["x", "w"], ["z"]), node("Relu", ["z"], ["y"])], [weight]),
        models.model([node("Conv", ["x", "k"], ["y"], pads=[1, 1, 1, 1], strides=[2, 2])],
                     [kernel], [value("x", [1, 3, 8, 8])]),
        models.model([node("Reshape", ["x", "s"], ["z"]), node("Softmax", ["z"], ["y"], axis=-1)],
                     [integers("s", 2, 16)]),
        models.model([node("ConstantOfShape", ["s"], ["z"]), node("Add", ["x", "z"], ["y"])],
                     [integers("s", 4, 8)]),
        models.model([node("Slice", ["x", "a", "b", "c"], ["z"]),
                      node("Concat", ["z", "z"], ["y"], axis=1)],
                     [integers("a", 0), integers("b", 4), integers("c", 1)]),
        models.model([node("LayerNormalization", ["x", "g"], ["y"], axis=-1)], [scale]),
        models.model([node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2])],
                     inputs=[value("x", [1, 2, 6, 6])]),
        models.model([node("If", ["c"], ["y"], **branches)],
                     inputs=[value("x", [4, 8]), value("c", [], models.BOOL)]),
        models.model([node("Add", ["x", "z"], ["y"])],
                     inputs=[value("x", ["n", 8]), value("z", ["n", "m"])]),
        *(make(CANARY_FILE) for make in models.EXTERNAL.values()),
    ]  # fmt: skip


def onnx_bytes(rng: random.Random, originals: Sequence[Any]) -> bytes:
    """A model with some changes: of its structure mostly, of its bytes at times."""
    changed = type(originals[0])()
    plain = originals[: -len(models.EXTERNAL)]
    changed.CopyFrom(rng.choice(plain if rng.random() < 0.8 else originals))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        _change(rng, changed, originals)
    content: bytes = changed.SerializeToString()
    return _noise(rng, content) if rng.random() < 0.3 else content


def _messages(root: Any) -> list[Any]:
    messages, stack = [], [root]
    while stack:
        item = stack.pop()
        messages.append(item)
        for field, value in item.ListFields():
            if field.message_type is not None:
                stack.extend([value] if isinstance(value, protobuf.Message) else value)
    return messages


def _change(rng: random.Random, root: Any, originals: Sequence[Any]) -> None:
    item = rng.choice(_messages(root))
    kind = item.DESCRIPTOR.name
    if kind == "NodeProto" and rng.random() < 0.4:
        item.op_type = rng.choice(_OPERATORS)
        return
    if kind == "TensorProto" and rng.random() < 0.2:
        item.data_location = rng.choice((0, 1))
        item.external_data.add(key="location", value=rng.choice(_TEXTS))
        return
    if kind == "GraphProto" and rng.random() < 0.3:
        item.node.add(
            op_type=rng.choice(_OPERATORS),
            input=["x"] * rng.randrange(4),
            output=[rng.choice(_TEXTS)],
        )
        return
    field = rng.choice(list(item.DESCRIPTOR.fields))
    if rng.random() < 0.25:
        item.ClearField(field.name)
        return
    value = getattr(item, field.name)
    if field.message_type is not None:
        _change_messages(rng, item, field, value, originals)
    elif hasattr(value, "extend"):
        _change_list(rng, field, value)
    else:
        _set(rng, item, field)


def _change_messages(
    rng: random.Random, item: Any, field: Any, value: Any, originals: Sequence[Any]
) -> None:
    kind = field.message_type.name
    others = [m for m in _messages(rng.choice(originals)) if m.DESCRIPTOR.name == kind]
    if isinstance(value, protobuf.Message):
        if others:
            value.CopyFrom(rng.choice(others))
    elif value and rng.random() < 0.5:
        del value[rng.randrange(len(value))]
    elif others:
        value.add().CopyFrom(rng.choice(others))


def _change_list(rng: random.Random, field: Any, value: Any) -> None:
    scalar = _scalar(rng, field)
    try:
        if value and rng.random() < 0.6:
            value[rng.randrange(len(value))] = scalar
        else:
            value.append(scalar)
    except (ValueError, TypeError):
        return  # the field holds smaller numbers


def _set(rng: random.Random, item: Any, field: Any) -> None:
    try:
        setattr(item, field.name, _scalar(rng, field))
    except (ValueError, TypeError):
        return


def _scalar(rng: random.Random, field: Any) -> Any:
    if field.cpp_type == field.CPPTYPE_STRING:
        text = rng.choice(_TEXTS)
        return text.encode() * rng.choice((1, 5)) if field.type == field.TYPE_BYTES else text
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return rng.choice((0.0, -1.0, 1e30, float("nan"), float("inf")))
    return rng.choice(_INTEGERS) if rng.random() < 0.7 else rng.randrange(20)


def _noise(rng: random.Random, content: bytes) -> bytes:
    data = bytearray(content)
    for _ in range(rng.choice((1, 2, 8))):
        if not data:
            return b""
        position = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                data[position] ^= 1 << rng.randrange(8)
            case 1:
                data[position] = rng.randrange(256)
            case 2:
                del data[position : position + rng.randrange(1, 9)]
            case _:
                data[position:position] = bytes(data[: rng.randrange(1, 33)])
    return bytes(data)


_TARGETS = ("llvm", "cuda", "h100", "a10g", "nvidia/quadro-p4000", "aws/cpu/c5.large",
            "raspberry-pi/4b-aarch64", "metal", "opencl", "c", "llvm -num-cores 2",
            "cuda -arch sm_80", '{"kind":"llvm"}', '{"kind":"cuda","arch":"sm_80"}')  # fmt: skip
_NAMES = ("num-cores", "mcpu", "mattr", "mtriple", "cl-opt", "jit", "libs", "keys", "host", "tag",
          "kind", "arch", "model", "device", "feature.sms", "feature.name", "max_num_threads",
          "max_threads_per_block", "vector-width", "opt-level", "mabi", "fast-math", "from_device",
          "system-lib", "runtime", "target_device_type", "registers_per_block")  # fmt: skip
_VALUES = ("1", "2", "0", "-1", "100000000", "9" * 50, "x", "znver4", "skylake-avx512", "+avx512f",
           "-avx2", "sm_80", "sm_999", "../" + CANARY_FILE, "-o=" + CANARY_FILE, "\u202e", "llvm",
           "-debug", "-info-output-file=" + CANARY_FILE, "aarch64-linux-gnu", "")  # fmt: skip


def target_text(rng: random.Random) -> str:
    """A target as text or JSON, with options by chance."""
    if rng.random() < 0.5:
        text = json.dumps(_object(rng, 3), ensure_ascii=rng.random() < 0.5)
    else:
        options = [
            f"-{rng.choice(_NAMES)}{rng.choice('= ')}{rng.choice(_VALUES)}"
            for _ in range(rng.randrange(4))
        ]
        text = " ".join([rng.choice(_TARGETS), *options])
    if rng.random() < 0.3:
        position = rng.randrange(len(text) + 1)
        text = text[:position] + rng.choice('{}[]",:-= \t\0\u202e9' + "x") + text[position + 1 :]
    return text


def _object(rng: random.Random, depth: int) -> Any:
    config: dict[str, Any] = {"kind": rng.choice(("llvm", "cuda", "cuda", "llvm", "c", "hexagon"))}
    for _ in range(rng.randrange(5)):
        config[rng.choice(_NAMES)] = _json(rng, depth)
    return config


def _json(rng: random.Random, depth: int) -> Any:
    match rng.randrange(6):
        case 0 if depth:
            return _object(rng, depth - 1)
        case 1 if depth:
            return [_json(rng, depth - 1) for _ in range(rng.randrange(4))]
        case 2:
            return rng.choice(_INTEGERS)
        case 3:
            return rng.choice((None, True, False, 1.5))
    return rng.choice(_VALUES)
