"""What runs tests: which ones for a change, the share of long ones, programs that are forks."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys

import execnet
import pytest
from execnet import gateway_io

from tests.support import share, touched, warm


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("felix/measure/local.py", "tests/felix/measure/test_local.py"),
        ("felix/measure/locks.py", "tests/felix/measure"),
        ("felix/search/selection.py", "tests/felix/search/test_selection.py"),
        ("costmodel/models/segment_mlp.py", "tests/costmodel/test_models.py"),
        ("tests/felix/search/test_rounding.py", "tests/felix/search/test_rounding.py"),
        ("tests/support/synthetic.py", None),
        ("felix/errors.py", None),
        ("README.md", None),
    ],
)
def test_a_file_leads_to_its_nearest_tests(path: str, tests: str | None) -> None:
    assert (touched.ROOT / path).exists()
    assert touched.tests_of(path) == tests


def test_a_file_is_not_named_beside_its_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = ["felix/measure/local.py", "felix/measure/locks.py", "README.md"]
    monkeypatch.setattr(touched, "changed", lambda revision: paths)
    touched.main()
    assert capsys.readouterr().out.split() == ["tests/felix/measure"]


def test_without_a_change_the_core_is_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(touched, "changed", lambda revision: [])
    touched.main()
    assert tuple(capsys.readouterr().out.split()) == touched.CORE
    assert all((touched.ROOT / tests).exists() for tests in touched.CORE)


@pytest.mark.parametrize(
    ("count", "values"),
    [(1, [0]), (2, [0, 9]), (4, [0, 3, 6, 9]), (10, list(range(10))), (99, list(range(10)))],
)
def test_a_share_is_spread_evenly(count: int, values: list[int]) -> None:
    assert share.of(range(10), count, everything=False) == values
    assert share.of(range(10), count, everything=True) == list(range(10))
    assert [share.rounds(count, 500, everything) for everything in (False, True)] == [count, 500]


def test_combinations_have_each_value_of_the_first_once() -> None:
    some = share.crossed("abcde", [1, 2], "xy", everything=False)
    assert some == [("a", 1, "x"), ("b", 2, "x"), ("c", 1, "y"), ("d", 2, "y"), ("e", 1, "x")]
    assert len(share.crossed("abcde", [1, 2], "xy", everything=True)) == 20


@pytest.mark.parametrize("reasons", [(), ("",), ("a matrix of all targets",)])
def test_slow_says_why(request: pytest.FixtureRequest, reasons: tuple[str, ...]) -> None:
    item = pytest.Function.from_parent(request.node.parent, name="x", callobj=lambda: None)
    item.add_marker(pytest.mark.slow(*reasons))
    assert share.without_reason([item]) == ([] if any(reasons) else [item.nodeid])


_PROGRAM = """
import json, os, sys
print(json.dumps([sys.argv, os.getcwd(), os.environ["HERE"], os.getppid(), os.getsid(0)]))
print(sys.stdin.read(), file=sys.stderr)
sys.exit("torch" not in sys.modules or 7)
"""


def test_a_fork_is_the_program_that_is_asked_for(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_PROGRAM)
    for command in (["-c", _PROGRAM], [str(script)]):
        process = warm.Popen(
            [sys.executable, *command, "option"],
            warm=True,
            cwd=tmp_path,
            env=os.environ | {"HERE": "here"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        said, errors = process.communicate("asked", timeout=60)
        argv = [command[0], "option"]
        expected = [argv, str(tmp_path), "here", os.getpid(), process.pid]
        assert (json.loads(said), errors, process.returncode) == (expected, "asked\n", 7)


def test_a_fork_is_ended_as_any_child() -> None:
    # what a shell starts with & ignores interrupts, and so would the child
    text = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_DFL)"
    command = [sys.executable, "-c", f"{text}; print(1, flush=True); time.sleep(99)"]
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        process = warm.Popen(command, warm=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        with process:
            assert process.stdout is not None and process.stdout.readline() == b"1\n"
            assert process.poll() is None
            process.send_signal(number)
        assert process.returncode == -number


def test_only_modules_of_ours_are_forked() -> None:
    assert warm.is_warm([sys.executable, "-m", "felix", "tune"])
    assert warm.is_warm([sys.executable, *gateway_io.popen_args(execnet.XSpec("popen"))[1:]])
    assert not warm.is_warm([sys.executable, "-m", "ray"])
    assert not warm.is_warm([sys.executable, "-c", "import felix"])
    assert not warm.is_warm("felix")
    here = dict(os.environ)
    assert warm.forks.can_be(here) and not warm.forks.can_be(here | {"LD_PRELOAD": "x.so"})


@pytest.mark.fresh_processes
def test_a_test_may_start_everything_anew() -> None:
    assert not warm.forks.can_be(dict(os.environ))
