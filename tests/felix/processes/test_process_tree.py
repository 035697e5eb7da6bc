"""Processes that are stopped and continued with all that they started."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil

from felix.processes import process_tree

_CHAIN = """
import subprocess, sys, threading
def start():
    subprocess.run([sys.executable, "-c", "print(flush=True); import time; time.sleep(60)"],
                   start_new_session=True)
threading.Thread(target=start).start()
"""


def _await(every: list[psutil.Process], *states: str) -> None:
    until_s = time.monotonic() + 20.0
    while {each.status() for each in every} - set(states):
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_a_process_and_what_its_threads_started() -> None:
    with subprocess.Popen([sys.executable, "-c", _CHAIN], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        first = psutil.Process(process.pid)
        (second,) = first.children()
        assert set(process_tree.members(process.pid)) == {first.pid, second.pid}
        assert not process_tree.is_still(process.pid)
        process_tree.stop(process.pid)
        _await([first, second], psutil.STATUS_STOPPED)
        assert process_tree.is_still(process.pid)
        second.resume()
        assert not process_tree.is_still(process.pid)
        process_tree.resume(process.pid)
        _await([first, second], psutil.STATUS_SLEEPING, psutil.STATUS_RUNNING)
        second.kill()
    process_tree.stop(process.pid)  # it has ended
    assert process_tree.is_still(process.pid)
