"""Names of others in terminals and logs do nothing to what stands around them."""

from __future__ import annotations

import io
import logging

import pytest

from felix import client, display, errors
from felix.cli import main
from felix.cli.remote import jobs, watch
from felix.client import rows
from server import logs
from server.api import examples

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


def test_lists_and_lines_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Only what is shown is changed: rows are as they came."""
    changes = {"name": HOSTILE, "tags": [HEBREW], "message": HOSTILE, "state": "failed"}
    job = rows.of(client.Job, examples.JOB.model_dump(mode="json") | changes)
    assert job.name == HOSTILE
    jobs._show_jobs([job])
    event = client.Event(
        seq=1,
        at=job.created_at,
        type="warning",
        payload={"message": HOSTILE},
        from_state=None,
        to_state=None,
    )
    texts = [
        capsys.readouterr().out,
        watch.summary(job),
        watch.line(event) or "",
        main._one_line(errors.RemoteError(HOSTILE)),
    ]
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
