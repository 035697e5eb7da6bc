"""Tensors on disk: what is written comes back, what is damaged is refused."""

from __future__ import annotations

import json
import pathlib
import struct

import pytest
import torch

from felix import errors, tensorfile


def test_tensor_types_scalars_and_metadata_survive(tmp_path: pathlib.Path) -> None:
    tensors = {
        "f": torch.tensor(1.5),
        "d": torch.rand(2, 3, dtype=torch.float64),
        "h": torch.rand(3).half(),
        "i": torch.arange(4),
        "b": torch.tensor([True, False]),
        "e": torch.zeros(0, 2),
    }
    tensorfile.write(tmp_path / "deep" / "t", tensors, {"k": "ü"})
    read, metadata = tensorfile.read(tmp_path / "deep" / "t")
    assert metadata == {"k": "ü"} and read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype and torch.equal(read[name], tensor)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["t"]


def test_views_and_shared_tensors_are_stored(tmp_path: pathlib.Path) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    tensors = {"whole": whole, "same": whole, "row": whole[1], "turned": whole.T}
    tensorfile.write(tmp_path / "t", tensors, {})
    read, metadata = tensorfile.read(tmp_path / "t")
    assert metadata == {} and all(torch.equal(read[name], t) for name, t in tensors.items())


def test_nothing_is_a_file_too(tmp_path: pathlib.Path) -> None:
    tensorfile.write(tmp_path / "t", {}, {})
    assert tensorfile.read(tmp_path / "t") == ({}, {})


def test_read_tensors_do_not_change_with_the_file(tmp_path: pathlib.Path) -> None:
    tensorfile.write(tmp_path / "t", {"a": torch.ones(4096)}, {})
    read, _ = tensorfile.read(tmp_path / "t")
    (tmp_path / "t").write_bytes(b"")
    assert torch.equal(read["a"], torch.ones(4096))


def _file(header: object, body: bytes) -> bytes:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def test_files_of_other_writers_are_read(tmp_path: pathlib.Path) -> None:
    """Metadata first and tensors in any order, as version 0.1 wrote them."""
    header = {
        "__metadata__": {"felix": "session"},
        "weights": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "count": {"dtype": "I64", "shape": [], "data_offsets": [8, 16]},
    }
    (tmp_path / "t").write_bytes(_file(header, struct.pack("<ffq", 1.5, -2.0, 7)))
    read, metadata = tensorfile.read(tmp_path / "t")
    assert metadata == {"felix": "session"}
    assert read["weights"].tolist() == [1.5, -2.0] and read["count"].item() == 7


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        b"\xff" * 64,
        _file([1], b""),
        _file({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"\0" * 4),
        _file({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"\0" * 4),
        _file({"a": {"dtype": "PICKLE", "shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4),
        _file({"__metadata__": {"a": 1}}, b""),
    ],
    ids=["empty", "text", "huge header", "list", "cut", "wrong size", "unknown type", "number"],
)
def test_damage_is_a_checkpoint_error_of_one_line(content: bytes, tmp_path: pathlib.Path) -> None:
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(errors.CheckpointError, match="not a checkpoint or is damaged") as caught:
        tensorfile.read(tmp_path / "t")
    assert "\n" not in str(caught.value)


def test_folders_that_cannot_be_used(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.OutputError, match="cannot write"):
        tensorfile.write(tmp_path / "file" / "t", {}, {})
    with pytest.raises(errors.CheckpointError, match="cannot read"):
        tensorfile.read(tmp_path / "none")
