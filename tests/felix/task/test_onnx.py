"""ONNX models that attack who reads them: other files, sizes, nesting, names."""

from __future__ import annotations

import logging
import os
import pathlib
import resource
import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is an optional extra")

import onnx

from felix import errors, frontend, names
from felix.frontend.onnx import reader
from tests.support.hostile import onnx_models as models


def refusal(model: Any, **options: Any) -> str:
    """The message of the refusal, which is one short printable line without paths."""
    content = model if isinstance(model, bytes) else model.SerializeToString()
    with pytest.raises(errors.WorkloadError) as caught:
        frontend.extract_tasks_onnx(content, **options)
    message = str(caught.value)
    assert message.isprintable() and len(message) < 2000
    assert "site-packages" not in message and "/home" not in message and "/tmp" not in message
    return message


@pytest.fixture
def secret(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A file with a secret in the working folder, and a link to it."""
    path = tmp_path / "admin.key"
    path.write_text(models.SECRET)
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path)
    return path


@pytest.mark.parametrize("place", models.EXTERNAL)
def test_data_of_other_files_are_refused_wherever_they_are(
    secret: pathlib.Path, place: str, capfd: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    watching = True

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event == "open" and "admin.key" in str(arguments[0]):
            opened.append(str(arguments[0]))

    sys.addaudithook(audit)
    try:
        for location in ("admin.key", str(secret), "inside/../admin.key", "link"):
            message = refusal(models.EXTERNAL[place](location))
            assert "external data" in message or "sparse" in message
            assert not models.tells_secret(message)
    finally:
        watching = False
    assert opened == [] and not models.tells_secret("".join(capfd.readouterr()))


def test_data_beside_a_local_file_are_read_from_its_folder(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "w.bin").write_bytes(bytes(4 * 8))
    path = folder / "net.onnx"
    path.write_bytes(models.EXTERNAL["initializer"]("w.bin").SerializeToString())
    monkeypatch.chdir(tmp_path)
    assert [task.flops for task in frontend.extract_tasks_onnx(path)] == [4 * 8]
    (tmp_path / "w.bin").write_bytes(bytes(4 * 8))
    for location in ("../w.bin", str(tmp_path / "w.bin"), "absent"):
        path.write_bytes(models.EXTERNAL["initializer"](location).SerializeToString())
        with pytest.raises(errors.WorkloadError, match="must be files in its folder"):
            frontend.extract_tasks_onnx(path)


def test_messages_quote_no_contents_of_tensors(capfd: pytest.CaptureFixture[str]) -> None:
    number = 7235421890146
    reshape = [models.node("Reshape", ["x", "s"], ["y"], name="here")]
    message = refusal(models.model(reshape, [models.integers("s", -5, number)]))
    assert "'here' (operator 'Reshape')" in message and str(number) not in message
    assert str(number) not in "".join(capfd.readouterr())


RELU = models.node("Relu", ["x"], ["y"])


def test_tensors_have_the_data_that_they_declare() -> None:
    add = [models.node("Add", ["x", "w"], ["y"])]
    for dims in ([10**6, 10**6], [2**62, 2**62], [-1, 8], [-(10**6), -(10**6)]):
        tensor = models.onnx.TensorProto(name="w", data_type=models.FLOAT, dims=dims)
        tensor.raw_data = bytes(32)
        message = refusal(models.model(add, [tensor]))
        assert "'w'" in message and ("fewer elements" in message or "negative" in message)


@pytest.mark.parametrize("extents", [(10**12,), (10**6, 10**6), (2**40, 2**40)])
def test_a_constant_that_would_fill_memory_is_refused(extents: tuple[int, ...]) -> None:
    nodes = [models.node("ConstantOfShape", ["s"], ["z"]), models.node("Relu", ["z"], ["y"])]
    message = refusal(models.model(nodes, [models.integers("s", *extents)]))
    assert "memory" in message or "bytes; " in message or "ConstantOfShape" in message


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("std::bad_alloc")])
@pytest.mark.parametrize("place", ["from_onnx", "_parse_graph_input"])
def test_a_lack_of_memory_is_called_so(
    monkeypatch: pytest.MonkeyPatch, error: Exception, place: str
) -> None:
    importer = reader.onnx_frontend.ONNXGraphImporter

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(importer, place, fail)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (300 << 20, 300 << 20))
    message = refusal(models.model([RELU]))
    assert "needs more memory than the 300 MiB that this process may take" in message
    assert "smaller shapes" in message and "does not accept" not in message
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert "MiB of this machine" in refusal(models.model([RELU]))


def test_what_tvm_does_not_accept_is_no_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise KeyError("x")

    monkeypatch.setattr(reader.onnx_frontend.ONNXGraphImporter, "from_onnx", fail)
    message = refusal(models.model([RELU]))
    assert "TVM does not accept its inputs or tensors" in message and "memory" not in message


def test_cycles_and_unknown_values_are_refused() -> None:
    cycle = [models.node("Relu", ["b"], ["a"]), models.node("Relu", ["a"], ["b"], name="n")]
    assert "reads 'b', which nothing computes before it" in refusal(
        models.model(cycle, outputs=["b"])
    )
    assert "reads 'q'" in refusal(models.model([models.node("Relu", ["q"], ["y"])]))
    assert "nothing computes the output 'z'" in refusal(models.model([RELU], outputs=["z"]))


@pytest.mark.parametrize(
    ("operator", "inputs", "opset", "lacks"),
    [
        ("Clip", [], 1, "its input 'input'"),  # native code of TVM reads it
        ("Clip", [""], 13, "its input 'input'"),
        ("Add", ["x"], 13, "its input 'B'"),
        ("Add", ["x", ""], 13, "its input 'B'"),
        ("Concat", ["x", ""], 13, "its input 'inputs'"),
        ("LayerNormalization", ["x"], 1, "its input 'Scale'"),  # younger than the model
        ("FastGelu", [], 13, "its input '1'"),  # of no schema
        ("Resize", [], 13, "its input 'X'"),
    ],
)
def test_nodes_have_the_inputs_that_their_operators_need(
    operator: str, inputs: list[str], opset: int, lacks: str
) -> None:
    made = models.model([models.node(operator, inputs, ["y"])])
    made.opset_import[0].version = opset
    assert f"(operator '{operator}') of the ONNX model lacks {lacks}" in refusal(made)


def test_inputs_that_may_be_left_out_may() -> None:
    clip = models.node("Clip", ["x", "", "high"], ["y"])
    made = models.model([clip], [onnx.numpy_helper.from_array(np.float32(6.0), "high")])
    (task,) = frontend.extract_tasks_onnx(made.SerializeToString())
    assert "minimum" in task.name and "maximum" not in task.name


def test_operators_of_other_domains_are_refused() -> None:
    other = models.node("Relu", ["x"], ["y"], domain="evil")
    assert "unsupported operators 'evil.Relu'" in refusal(models.model([other]))
    many = [models.node(f"Op{i}" + "x" * 999, ["x"], [f"y{i}"]) for i in range(500)]
    assert "480 more" in refusal(models.model(many, outputs=["y0"]))


def test_deep_nesting_is_refused() -> None:
    content = b"\x0a\x02\x08\x01"
    for _ in range(5000):  # a graph in an attribute of a node of a graph ...
        attribute = b"\x32" + _varint(len(content)) + content
        inner = b"\x2a" + _varint(len(attribute)) + attribute
        content = b"\x0a" + _varint(len(inner)) + inner
    assert "nested too deeply" in refusal(b"\x08\x08\x3a" + _varint(len(content)) + content)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def test_too_many_nodes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from felix.frontend.onnx import reader

    monkeypatch.setattr(reader, "MAX_NODES", 9)
    chain = [models.node("Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(10)]
    long = models.model(chain, inputs=[models.value("v0", [4])], outputs=["v10"])
    assert "has 10 nodes; 9 are allowed" in refusal(long)


def test_shapes_fit_the_model() -> None:
    two = models.model(
        [models.node("Add", ["x", "z"], ["y"])],
        inputs=[models.value("x", ["n", 8]), models.value("z", ["n", 8])],
    )
    assert "has no input 'w'; its inputs are 'x', 'z'" in refusal(two, shapes={"w": (4, 8)})
    assert "'n' is 4 in the input 'x' and 5 in 'z'" in refusal(
        two, shapes={"x": (4, 8), "z": (5, 8)}
    )
    assert "the input 'x' has 2 extents, not 3" in refusal(two, shapes={"x": (4, 8, 1)})
    tasks = frontend.extract_tasks_onnx(two.SerializeToString(), shapes={"x": (4, 8), "z": (4, 8)})
    assert [task.flops for task in tasks] == [32]
    for parameter in ("1//0", "n" * 10**6, "a\u202eb", "*" * 150):
        odd = models.model([RELU], inputs=[models.value("x", [parameter, 8])])
        assert len(refusal(odd)) < 300
    negative = models.model([RELU], inputs=[models.value("x", [-4, 8])])
    assert "negative extent" in refusal(negative)


def test_open_extents_need_shapes() -> None:
    made = models.model([RELU], inputs=[models.value("x", [4, "batch"])])
    assert (
        "the input 'x' of the ONNX model leaves extent 1 ('batch') open: give the shape of this "
        "input in `shapes`"
    ) in refusal(made)
    nameless = models.model([RELU], inputs=[models.value("x", [None, 8])])
    assert "leaves extent 0 open" in refusal(nameless)
    unread = models.model([RELU], inputs=[models.value("x", [4]), models.value("w", ["n"])])
    assert len(frontend.extract_tasks_onnx(unread.SerializeToString())) == 1


@pytest.mark.parametrize(
    "name", ['x; asm("trap;")', 'x\n#include "/etc/passwd"\n', "\u202e", "x" * 10**6, "1", "a/b:0"]
)
def test_names_of_values_become_identifiers(name: str) -> None:
    """They are the buffers' names, which TVM writes into CUDA source as they are."""
    made = models.model(
        [models.node("Add", [name, name + "w"], [name + "y"], name=name)],
        [models.onnx.numpy_helper.from_array(models.np.ones((1, 8), "float32"), name + "w")],
        inputs=[models.value(name, ["n", 8])],
        outputs=[name + "y"],
    )
    (task,) = frontend.extract_tasks_onnx(made.SerializeToString(), shapes={name: (4, 8)})
    buffers = [str(parameter.name) for parameter in task.func.params]
    assert all(map(names.is_identifier, buffers)) and len(set(buffers)) == 3
    assert names.problem(task.name) is None


@pytest.mark.parametrize(
    ("text", "field"),
    [(b"Relu", "op_type"), (b"a node", "name"), (b"a graph", "name"), (b"a value", "name")],
)
def test_texts_that_are_not_utf8_are_refused(text: bytes, field: str) -> None:
    """protobuf gives them as bytes, of which reading died with a TypeError."""
    made = models.model(
        [models.node("Relu", ["x"], ["a value"], name="a node")],
        inputs=[models.value("x", [4, 8])],
        outputs=["a value"],
    )
    made.graph.name = "a graph"
    broken = made.SerializeToString().replace(text, b"\xff" + text[1:])
    assert f"the field {field} of a " in refusal(broken)


def test_what_is_left_out_is_said_without_words_of_tvm(caplog: pytest.LogCaptureFixture) -> None:
    counted = models.node("NonZero", ["x"], ["indices"])
    transposed = models.node("Transpose", ["indices"], ["y"])
    made = models.model([counted, transposed], kind=onnx.TensorProto.INT64)
    with caplog.at_level(logging.WARNING, "felix.frontend"):
        assert frontend.extract_tasks_onnx(made.SerializeToString()) == []
    (record,) = caplog.records
    assert "dynamic shape" in record.getMessage() and os.sep not in record.getMessage()
