"""Whole networks by seconds since the call: Felix beside PyTorch and others.

    python -m benchmarks.networks.compare [--networks resnet50 ...] [--dtypes float32 bfloat16]
    python -m benchmarks.networks.compare --seconds 60 --ways optimize backend --again
    python -m benchmarks.networks.compare --small --target llvm --seconds 8 --out networks-cpu.json

A case is a network with a batch and an element type, the seconds that Felix has, and the way in
which it gets the model: `optimize`, where `felix.optimize(model, inputs, seconds=...)` bounds its
whole call (import, tuning, comparing, building), or `backend`, where `torch.compile` queues the
tasks, which are tuned for the rest of the time, and compiles again. Each case has a process of its
own (`benchmarks.networks.case`) with empty caches, in which peers are prepared after Felix, and
all are timed in turns. With `--again` one more process makes Felix's side anew of what is known.

The results file is rewritten after each case. The same command goes on where it was ended: a case
that has results of the same sources of Felix is not run again. One that fails is tried again.
Durations are in seconds, latencies in microseconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from benchmarks.networks import case as cases
from benchmarks.networks import catalogue, peers, public, results
from benchmarks.support import common

#: Fields by which a case is known.
_KEY = tuple(field.name for field in dataclasses.fields(cases.Case))
#: Results of cases by the values of these fields.
Runs: TypeAlias = dict[tuple[Any, ...], dict[str, Any]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases that are missing; returns 1 if one failed."""
    args = _arguments(argv)
    runs = _taken_over([*args.restore, args.out])
    end = time.monotonic() + args.limit_s
    has_failed = False
    for each in _cases(args):
        digest, fields = state(), dataclasses.asdict(each)
        before = runs.get(_key(fields), {})
        if before.get("state") == digest and "failure" not in before:
            continue
        if time.monotonic() > end:
            print("time is up; the same command goes on")
            break
        print(
            f"{common.now()} {results.label(fields)}, {each.way}, {each.seconds:g} s", flush=True
        )
        run = {**fields, "state": digest, **_run(each, args)}
        print(f"  {results.sentence(run)}", flush=True)
        has_failed |= "failure" in run
        runs[_key(run)] = run
        _write(args.out, runs)
    if runs:
        print(results.render(_write(args.out, runs)))
    return int(has_failed)


# ---------------------------------------------------------------- cases and what is known of them


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = f"of the catalogue ({', '.join(catalogue.EVERY)}), or {cases.PUBLIC}NAME"
    add = parser.add_argument
    add("--networks", nargs="+", default=list(catalogue.EVERY), metavar="NAME", help=names)
    add("--dtypes", nargs="+", choices=catalogue.DTYPES, default=catalogue.DTYPES)
    add("--batches", nargs="+", type=int, help="instead of each network's own")
    add("--small", action="store_true", help="the networks' small variants")
    add("--target", default="cuda", help="what Felix builds for, as `felix.optimize` takes it")
    add("--seconds", nargs="+", type=float, default=[30.0, 60.0, 120.0], help="that Felix has")
    add("--ways", nargs="+", choices=list(cases.WAYS), default=["optimize"])
    add("--peers", nargs="+", help="by default the fast ones of PyTorch")
    add("--turns", type=int, default=100, help="at most, of all contenders")
    add("--turns-s", type=float, default=10.0, help="no further turn after so long")
    add("--again", action="store_true", help="make Felix's side once more of what is known")
    add("--limit-s", type=float, default=float("inf"), help="start no further case after so long")
    add("--case-limit-s", type=float, default=600.0, help="end a case after so long")
    out = common.RESULTS / "networks" / "networks-h200.json"
    add("--out", type=pathlib.Path, default=out)
    add("--restore", nargs="+", type=pathlib.Path, default=[], help="take over these files' cases")
    args = parser.parse_args(argv)
    known = [*catalogue.EVERY, *(f"{cases.PUBLIC}{name}" for name in public.NETWORKS)]
    if unknown := set(args.networks) - set(known):
        parser.error(f"there is no network {', '.join(sorted(unknown))}")
    kind = args.target.partition(" ")[0]
    if kind not in peers.EVERY:
        parser.error(f"the target is one of {', '.join(peers.EVERY)}, got {args.target}")
    asked = args.peers or peers.DEFAULT[kind]
    if unknown := set(asked) - set(peers.EVERY[kind]):
        parser.error(f"there is no peer {', '.join(sorted(unknown))} on {kind}")
    args.peers = [name for name in peers.EVERY[kind] if name in asked]
    if min(*args.seconds, *(args.batches or [1]), args.turns_s, args.turns) <= 0:
        parser.error("seconds, batches and turns must be positive")
    return args


def _cases(args: argparse.Namespace) -> Iterator[cases.Case]:
    for dtype in args.dtypes:
        for way in args.ways:
            for seconds in args.seconds:
                for name in args.networks:
                    for batch in _batches(name, args.batches):
                        yield cases.Case(
                            name=name,
                            batch=batch,
                            dtype=dtype,
                            small=args.small or batch is None,
                            target=args.target,
                            seconds=seconds,
                            way=way,
                        )


def _batches(name: str, asked: Sequence[int] | None) -> Sequence[int | None]:
    if name.startswith(cases.PUBLIC):
        return [None]
    return asked or [catalogue.EVERY[name].batch]


def state() -> str:
    """A digest of Felix's sources."""
    digest, folder = hashlib.sha256(), common.ROOT / "felix"
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def _key(run: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(run[name] for name in _KEY)


def _taken_over(paths: Iterable[pathlib.Path]) -> Runs:
    """The cases of files; of several results of one those that did not fail, then the latest."""
    every = [
        run for path in paths if path.exists() for run in json.loads(path.read_text())["runs"]
    ]
    every.sort(key=lambda run: ("failure" not in run, run["measured_on"]["date"]))
    return {_key(run): run for run in every}


def _write(path: pathlib.Path, runs: Runs) -> dict[str, Any]:
    """Write the results file; its head is that of the latest case."""
    order = {name: number for number, name in enumerate(catalogue.EVERY)}
    every = sorted(
        runs.values(),
        key=lambda run: (
            run["dtype"] != "float32",
            run["way"] != "optimize",
            order.get(run["name"], len(order)),
            run["name"],
            run["batch"] or 0,
            run["seconds"],
        ),
    )
    where = sorted((run["measured_on"] for run in every), key=lambda one: str(one["date"]))
    commits = dict.fromkeys(str(one["commit"]) for one in where)
    latest = [one for one in where if "device" in one] or where  # it failed without
    head = {**latest[-1], "command": _command(every), "commit": ", ".join(commits)}
    data = {"benchmark": "networks", **head, "runs": every}
    common.write(path, data)
    return data


def _command(runs: Sequence[Mapping[str, Any]]) -> str:
    """The one that runs these cases, be it in several parts."""
    command = "python -m benchmarks.networks.compare"
    options = {"target": "target", "dtypes": "dtype", "seconds": "seconds", "ways": "way"}
    if {run["name"] for run in runs} != set(catalogue.EVERY):
        options = {"networks": "name", **options}
    for option, field in options.items():
        values = dict.fromkeys(run[field] for run in runs)
        texts = [f"{each:g}" if isinstance(each, float) else str(each) for each in values]
        command += f" --{option} {shlex.join(texts)}"
    return command + " --small" * any(run["small"] for run in runs)


# ---------------------------------------------------------------- processes


def _run(case: cases.Case, args: argparse.Namespace) -> dict[str, Any]:
    """What was measured of a case, or `failure`, why it was not; where and when."""
    measured_on = common.header("networks")
    del measured_on["benchmark"], measured_on["command"]
    end = time.monotonic() + args.case_limit_s
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = pathlib.Path(name)
        request = {
            "case": dataclasses.asdict(case),
            "known_results": str(folder / "known.sqlite"),
            "folder": str(folder / "stock"),
            "peers": args.peers,
            "turns": max(args.turns, cases.LEAST_TURNS),
            "turns_s": args.turns_s,
            "again": False,
        }
        found = _in_process(request, folder, end)
        if "failure" not in found:
            measured_on["device"] = found.pop("device")
            found["felix"]["again_s"] = None
            if args.again:
                again = _in_process({**request, "again": True, "peers": []}, folder, end)
                if "failure" in again:
                    return {"measured_on": measured_on, "failure": f"again: {again['failure']}"}
                found["felix"]["again_s"] = again["felix"]["took_s"]
    return {"measured_on": measured_on, **found}


def _in_process(request: Mapping[str, Any], folder: pathlib.Path, end: float) -> dict[str, Any]:
    """What a process found whose caches are in a folder; `failure` where it ended without."""
    paths = [folder / "request.json", folder / "result.json"]
    paths[0].write_text(json.dumps(request))
    paths[1].unlink(missing_ok=True)
    caches = {"FELIX_CACHE_DIR": "felix", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
    environment = os.environ | {key: str(folder / place) for key, place in caches.items()}
    command = [sys.executable, "-m", "benchmarks.networks.case", *map(str, paths)]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            cwd=common.ROOT,
            env=environment,
            start_new_session=True,
        ) as process,
    ):
        try:
            process.wait(max(0.0, end - time.monotonic()))
            why = f"the process ended with {process.returncode}"
        except subprocess.TimeoutExpired:
            why = "it was ended for its time"
        finally:
            _end(process)
    if paths[1].exists():
        found: dict[str, Any] = json.loads(paths[1].read_text())
        return found
    lines = (folder / "log").read_text(errors="replace").strip().splitlines()
    print("\n".join(lines[-20:]), file=sys.stderr)
    return {"failure": f"{why}: {lines[-1]}"[:300] if lines else why}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and those that it began."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    sys.exit(main())
