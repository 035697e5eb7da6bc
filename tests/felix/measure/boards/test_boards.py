"""Boards over TVM's RPC: the contract, crashes, servers that vanish, refusals, other machines."""

from __future__ import annotations

import pathlib
import re
import shutil
import sys
from collections.abc import Callable, Iterator

import pytest
import tvm

from felix import errors, workloads
from felix.builder import build
from felix.cli import main
from felix.measure import device_thread
from felix.measure.boards import pool, tracker
from felix.measure.measurer import Measurer
from felix.runner import protocol
from tests.felix.measure import contract
from tests.felix.measure.boards import board_fixture
from tests.support import cluster_machines, run_py, share, waiting, warm
from tests.support import pool_programs as programs

AARCH64 = "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72 -num-cores=4"
GEMM = tvm.IRModule({"main": programs.gemm})
needs_linker = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("aarch64-linux-gnu-ld", "ld.lld")),
    reason="needs a linker for AArch64: binutils-aarch64-linux-gnu or lld",
)


@pytest.fixture(scope="module")
def boards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[board_fixture.Boards]:
    made = board_fixture.Boards(tmp_path_factory.mktemp("boards"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def board(boards: board_fixture.Boards) -> pool.Board:
    return boards.add("first")


@pytest.mark.parametrize("holds", share.of(contract.EVERY, 1))
def test_contract(holds: Callable[[Measurer], None], board: pool.Board) -> None:
    with pool.BoardPool(contract.task(), [board], programs.OPTIONS) as measurer:
        holds(measurer)


@pytest.mark.slow("waits for a board that does not answer")
def test_a_board_that_vanishes_loses_no_candidate(
    boards: board_fixture.Boards, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MAX_DIFFERENCE", "MAX_PRIMARY_DIFFERENCE"):  # cores of a machine that is busy
        monkeypatch.setattr(device_thread, name, 0.99)
    two = [boards.add("vanishes"), boards.add("stays")]
    with pool.BoardPool(contract.task(), two, programs.OPTIONS) as measurer:
        assert measurer.submit(GEMM).result(60).ok
        futures = [measurer.submit(GEMM) for _ in range(12)]
        boards.kill("vanishes")
        assert all(future.result(120).ok for future in futures)
        waiting.until(lambda: measurer.n_devices == 1)
        boards.add("vanishes")
        waiting.until(lambda: measurer.n_devices == 2)
        assert measurer.submit(GEMM).result(60).ok
    boards.kill("vanishes")
    boards.kill("stays")


@pytest.mark.slow("boards start and end, which others do, too")
def test_sessions_end_with_their_board(boards: board_fixture.Boards) -> None:
    dies = boards.add("dies")
    board = boards.boards["dies"].pid
    before = _children(board)
    with pool.BoardPool(contract.task(), [dies], programs.OPTIONS) as measurer:
        assert measurer.submit(GEMM).result(60).ok
        (session,) = _children(board) - before
        boards.kill("dies")
        waiting.until(lambda: not pathlib.Path(f"/proc/{session}").exists())


@pytest.mark.slow("waits for a session's end")
def test_a_session_is_given_back_in_time(board: pool.Board) -> None:
    """Two pools share a board: each has it for at most `lease_s` while the other waits."""
    with (
        pool.BoardPool(contract.task(), [board], programs.OPTIONS) as one,
        pool.BoardPool(contract.task(), [board], programs.OPTIONS) as other,
    ):
        futures = [each.submit(GEMM) for _ in range(12) for each in (one, other)]
        assert all(future.result(120).ok for future in futures)


@pytest.mark.slow("another board, with a run that has to be cut")
def test_interrupting_ends_what_runs(board: pool.Board) -> None:
    with pool.BoardPool(contract.task(), [board], programs.OPTIONS) as measurer:
        assert measurer.submit(GEMM).result(60).ok
        hangs = measurer.submit(tvm.IRModule({"main": programs.hang}))
        waiting.until(lambda: measurer._runners[0].is_called)
        measurer.interrupt()
        assert hangs.cancelled() or not hangs.result(60).ok
        assert measurer.submit(GEMM).result(60).ok


def test_a_run_measures_on_a_board(board: pool.Board, tmp_path: pathlib.Path) -> None:
    where = ["--trials=4", "--round=4", f"--out={tmp_path}"]
    options = [f"--tracker={board.tracker}", f"--key={board.key}", "--strategy=local", *where]
    tuned = warm.run([sys.executable, "-m", "felix", "tune", "gemm:32,32,32", *options])
    assert tuned.returncode == 0, tuned.stderr
    assert re.search(r"gemm_32x32x32 +4 +0 ", tuned.stdout)
    run = run_py.run(tmp_path, "--repeats=2")
    assert run.returncode == 0, run.stdout + run.stderr


class TestRefusals:
    """Each says what to do."""

    def test_no_tracker(self) -> None:
        nobody = tracker.Tracker("127.0.0.1", cluster_machines.free_port())
        with pytest.raises(errors.MeasureError, match=r"does not answer.*rpc_tracker"):
            nobody.keys()

    def test_what_is_no_tracker(self) -> None:
        with pytest.raises(errors.MeasureError, match=r"no tracker of TVM|does not answer"):
            tracker.Tracker("127.0.0.1", 5432).keys()

    @pytest.mark.parametrize("text", ["", "host", "host:", ":9190", "host:0", "host:99999", "h:x"])
    def test_addresses(self, text: str) -> None:
        with pytest.raises(errors.MeasureError, match="HOST:PORT"):
            tracker.Tracker.parse(text)

    @pytest.mark.parametrize(
        ("keys", "message"),
        [
            (["other"], r"no board other, it has .*first.*worker"),
            (["first", "first"], "once"),
            # what follows a blank would be an option of TVM's protocol
            (["first -timeout=1"], "a board's key"),
            ([], "at least one"),
        ],
    )
    def test_keys(self, board: pool.Board, keys: list[str], message: str) -> None:
        named = [pool.Board(tracker=board.tracker, key=key) for key in keys]
        with pytest.raises(errors.MeasureError, match=message):
            pool.BoardPool(contract.task(), named)

    def test_two_servers_with_a_key(self, board: pool.Board) -> None:
        with pytest.raises(errors.MeasureError, match="a key of its own"):
            tracker.serve(board.tracker, "first", "127.0.0.1", 0)

    def test_a_gpu(self, board: pool.Board) -> None:
        task = workloads.gemm(32, 32, 32, target="cuda -arch sm_80")
        with pytest.raises(errors.MeasureError, match="not for cuda"):
            pool.BoardPool(task, [board])

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            (["tune", "gemm:8,8,8", "--tracker=h:1"], "--tracker HOST:PORT and --key KEY"),
            (["tune", "gemm:8,8,8", "--key=k"], "--tracker HOST:PORT and --key KEY"),
            (["tune", "gemm:8,8,8", "--tracker=h:1", "--cluster=h:1"], "not both"),
            (["worker"], "--address of a Ray cluster or --tracker"),
            (["worker", "--tracker=h:1"], "--key KEY"),
        ],
    )
    def test_options(
        self, options: list[str], says: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main.main(options) == 1
        assert says in capsys.readouterr().err


class TestOtherMachines:
    """Programs for boards that are no machine like this one."""

    @needs_linker
    def test_a_program_is_linked_for_the_board(self, tmp_path: pathlib.Path) -> None:
        task = workloads.parse("softmax:16x64", target=AARCH64)
        path = build.build(task.mod, task.target, str(tmp_path / "kernel"))
        header = pathlib.Path(path).read_bytes()[:20]
        assert header[:4] == b"\x7fELF" and int.from_bytes(header[18:20], "little") == 183

    def test_without_a_linker_it_says_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(build.shutil, "which", lambda name: None)
        with pytest.raises(ValueError, match=r"lld or binutils-aarch64-linux-gnu"):
            build.cross_linker("aarch64")

    @needs_linker
    def test_what_the_board_cannot_load_is_the_candidates_error(self, board: pool.Board) -> None:
        """The confined builder links for AArch64, which this board is not."""
        task = workloads.parse("softmax:16x64", target=AARCH64)
        with pool.BoardPool(task, [board], programs.OPTIONS) as measurer:
            measured = measurer.submit(task.mod).result(60)
        assert measured.error is protocol.ErrorClass.LAUNCH
        assert "load" in measured.message and measured.build_s > 0


def _children(pid: int) -> set[int]:
    """Processes that any thread of a process has started."""
    threads = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return {int(child) for each in threads for child in (each / "children").read_text().split()}
