"""A child that is asked a question answers, or it is known why not."""

from __future__ import annotations

import os
import pathlib

import pytest

from felix.processes import child

CHILD = """
import os, sys, time
from felix.processes import child
question = child.Question(sys.argv[1])
match question.request:
    case "sleep":
        time.sleep(600)
    case "fail":
        raise ValueError("why")
    case "half":
        question._file.write('{"a": ')
    case "much":
        question._file.write('"' + "a" * child.MAX_ANSWER_BYTES + '"')
    case other:
        question.answer([other, os.environ.get("SOME_TOKEN")])
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "asked_child.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("SOME_TOKEN", "a secret")


def test_an_answer() -> None:
    assert child.ask("asked_child", {"a": 1}, 60) == [{"a": 1}, None]


@pytest.mark.parametrize(
    ("request_text", "said"),
    [("fail", "ValueError: why"), ("half", "no message"), ("much", "no message")],
)
def test_no_answer(request_text: str, said: str) -> None:
    with pytest.raises(child.Unanswered, match=said):
        child.ask("asked_child", request_text, 60)


def test_no_answer_in_time() -> None:
    with pytest.raises(TimeoutError, match="takes more than 1 s"):
        child.ask("asked_child", "sleep", 1)
