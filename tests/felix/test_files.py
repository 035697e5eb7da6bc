"""Files that appear whole or not at all, tensors on disk, names and how they are shown."""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import pathlib
import struct

import pytest
import torch

from felix import client, display, errors, files, names, tensorfile
from felix.cli import main
from felix.cli.remote import connection, jobs
from felix.client import rows
from server import logs
from server.api import examples


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("data", ["größer\n", b"\x00\xff"])
def test_content_is_replaced(tmp_path: pathlib.Path, data: str | bytes, durable: bool) -> None:
    path = tmp_path / "file"
    path.write_text("earlier")
    files.write_atomically(path, data, durable=durable)
    assert path.read_bytes() == (data if isinstance(data, bytes) else data.encode())
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_block_leaves_the_file_as_it_was(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "file"
    path.write_text("earlier")
    with pytest.raises(ValueError, match="for the test"), files.replacing(path) as file:
        file.write(b"half")
        raise ValueError("for the test")
    assert path.read_text() == "earlier" and list(tmp_path.iterdir()) == [path]


def test_mode_follows_the_umask_and_the_caller(tmp_path: pathlib.Path) -> None:
    umask = os.umask(0o027)
    try:
        files.write_atomically(tmp_path / "shared", "")
        files.write_atomically(tmp_path / "private", "", mode=0o600)
    finally:
        os.umask(umask)
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o600


def test_a_temporary_file_vanishes_unless_moved(tmp_path: pathlib.Path) -> None:
    with files.temporary(tmp_path) as (file, part):
        file.write(b"content")
        assert part.exists()
    assert not list(tmp_path.iterdir())
    with files.temporary(tmp_path) as (file, part):
        part.replace(tmp_path / "place")
    assert list(tmp_path.iterdir()) == [tmp_path / "place"]


def test_a_missing_folder_is_an_os_error(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.write_atomically(tmp_path / "missing" / "file", "")


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


BAD = ["", " ", "a\nb", "a\0b", "a\x1b[31m", "a\u202eb", "a\u2066b", "a\ud800", "x" * 201]


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_name_is_refused_in_one_short_printable_line(name: str) -> None:
    with pytest.raises(errors.WorkloadError, match=r"^a name ") as caught:
        names.check("a name", name)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 200


@pytest.mark.parametrize("name", ["x", "gemm 8x8", "Ünïcode ✓ 卷积", "x" * 200])
def test_names_stay_as_they_are(name: str) -> None:
    assert names.check("a name", name) == names.derived(name) == name


@pytest.mark.parametrize("text", [*BAD, "x" * 10**6, "\u202e" * 10**6])
def test_a_derived_name_is_a_name(text: str) -> None:
    assert names.problem(names.derived(text)) is None


def test_a_long_derived_name_ends_with_an_ellipsis() -> None:
    assert names.derived("x" * 300) == "x" * 199 + "…"


@pytest.mark.parametrize("text", ["a; evil()", "1x", "a b", 'a\n#include "/x"', "é", "", "a/b"])
def test_identifiers_are_made_and_stay_apart(text: str) -> None:
    taken: set[str] = set()
    made = [names.identifier(text, taken) for _ in range(3)]
    assert len(set(made)) == 3 and all(map(names.is_identifier, made))
    assert not names.is_identifier(text)


def test_an_identifier_stays_as_it_is() -> None:
    assert names.identifier("conv.weight_1", set()) == "conv.weight_1"
    assert names.is_identifier("x" * 200) and not names.is_identifier("x" * 201)


@pytest.mark.parametrize("text", ["two\nlines\tand\r\nmore", "no-break\xa0space", ""])
def test_texts_of_several_lines(text: str) -> None:
    assert names.text_problem(text) is None


@pytest.mark.parametrize("text", ["a\0", "a\x1b[0m", "\u202eabc", "\ud800"])
def test_texts_without_control_characters(text: str) -> None:
    assert names.text_problem(text) == "has control characters"


def test_quotes_are_short_and_escaped() -> None:
    assert names.quoted("a\nb") == r"'a\nb'"
    assert names.quoted(["x" * 10**6]).endswith("...") and len(names.quoted("é" * 10**6)) < 70


def test_all_texts_of_a_json_value() -> None:
    assert sorted(names.strings({"a": ["b", {"c": 1}], "d": None})) == ["a", "b", "c", "d"]


HEBREW = "שלום 7"
HOSTILE = "ok\x1b[2J\u202egnp.exe\r\n\ud800"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gemm 512×512", "gemm 512×512"),
        (HEBREW, f"\u2068{HEBREW}\u2069"),
        (HOSTILE, "ok\\x1b[2J\\u202egnp.exe\\r\\n\\ud800"),
        ("\u202e" + HEBREW, f"\u2068\\u202e{HEBREW}\u2069"),
        ("\U000e0001", "\\U000e0001"),
    ],
)
def test_names_are_escaped_and_isolated(text: str, expected: str) -> None:
    assert display.printable(text) == expected
    expected.encode()


def test_lists_and_lines_of_the_command_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what is shown is changed: rows are as they came."""
    changes = {"name": HOSTILE, "tags": [HEBREW], "message": HOSTILE, "state": "failed"}
    job = rows.of(client.Job, examples.JOB.model_dump(mode="json") | changes)
    assert job.name == HOSTILE
    connection.show(argparse.Namespace(json=False), [job], ("",) * 9, jobs._cells)
    event = client.Event(
        seq=1,
        at=job.created_at,
        type="warning",
        payload={"message": HOSTILE},
        from_state=None,
        to_state=None,
    )
    texts = [capsys.readouterr().out, jobs.summary(job), jobs.line(event) or ""]

    def refuse(_: object) -> int:
        raise errors.RemoteError(HOSTILE)

    monkeypatch.setattr(jobs, "ls", refuse)
    assert main.main(["ls"]) == 1
    texts.append(capsys.readouterr().err)
    for text in texts:
        assert "\\x1b[2J" in text
        assert not {"\x1b", "\u202e", "\r", "\ud800"} & set(text)
    assert display.isolated(HEBREW) in texts[0]


def test_log_lines_for_people_stay_one_line() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.TextFormatter("%(levelname)s %(message)s"))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    logger.warning("the job %s failed", HOSTILE)
    assert stream.getvalue() == f"WARNING the job {display.escaped(HOSTILE)} failed\n"
