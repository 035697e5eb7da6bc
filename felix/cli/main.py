"""The command line: `felix tune | features | compile | devices`, and the service's commands.

Results go to stdout, progress and errors to stderr; `--json` makes the result machine-readable.

`main` parses the arguments and runs the command's function: of `felix.cli.commands`, which work on
this machine, or of `felix.cli.remote`, which talk to a service.

Exit codes: 0 done; 1 a `FelixError`, in one line `felix: error: ...`; 2 wrong usage;
130 interrupted (what the run has by then is still reported and written).
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from felix import display, errors, version
from felix.cli import interrupts, values
from felix.cli.comparison import libraries
from felix.search import strategies

#: New objects after which Python looks for garbage: after its own 700, that takes a fifth of the
#: time in which TVM and torch load.
_COLLECT_AFTER = 10_000

_EPILOG = """\
WORKLOAD is an operator with its parameters, or a file with a task or TIR function as JSON:
  gemm:512,512,512,epilogue=bias+relu   conv2d:1,56,56,64,64,3,padding=1   softmax:512x1000
  path/to/task.json
`felix tune` also takes a whole network: net.onnx, or net.pt2 of torch.export.save.
TARGET is llvm (this CPU), cuda, a GPU such as h100, or any TVM target, e.g. "llvm -num-cores 4".
exit codes: 0 done, 1 error, 2 wrong usage, 130 interrupted
"""


_TF32 = "products of float32 may be computed in TF32 on a GPU: faster, with 10 bits of mantissa"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    options = _parser().parse_args(arguments)
    gc.set_threshold(_COLLECT_AFTER)
    try:
        module, _, function = options.run.rpartition(".")
        command = getattr(importlib.import_module(module), function)
        with interrupts.Interrupts(signal.SIGTERM):
            return int(command(options))
    except errors.FelixError as error:
        message = display.printable(" ".join(str(error).split()))
        print(f"felix: error: {message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("felix: interrupted", file=sys.stderr)
        return interrupts.EXIT_CODE
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="felix",
        description="Tune tensor programs for CPUs and NVIDIA GPUs, on stock Apache TVM.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"felix {version.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (text, run, options) in _COMMANDS.items():
        command = commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            epilog=_EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(run=f"felix.cli.{run}")
        options(command)
        if run.startswith("remote."):
            _connection(command)
        if name not in ("serve", "tuner", "worker"):
            command.add_argument("--json", action="store_true", help="result as JSON")
    return parser


def _tune(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "workload",
        metavar="WORKLOAD",
        nargs="*",
        default=[],
        help="one or several (tuned together)",
    )
    what.add_argument(
        "--queued",
        action="store_true",
        help='tune what torch.compile(..., backend="felix") met unknown',
    )
    add("--target", help="what to tune for (default: llvm, this CPU, or what a file says)")
    add(
        "--trials",
        **_COUNT,
        help="candidates to measure (default: 64 a workload, or until --seconds; a network: "
        "until 300 seconds)",
    )
    add(
        "--seconds",
        type=values.positive(float),
        metavar="S",
        help="how long the call takes; of a network import, tuning and build together",
    )
    add(
        "--seed",
        type=values.natural,
        default=0,
        help="everything random follows from it (default 0)",
    )
    add(
        "--strategy",
        choices=strategies.NAMES,
        help="how to search (default: gradient); local takes no gradients",
    )
    add("--model", metavar="PATH", help="cost-model checkpoint (default: shipped or analytic)")
    add("--round", **_COUNT, default=24, help="candidates a round")
    add("--patience", **_ROUNDS)
    add(
        "--devices",
        type=values.devices,
        metavar="GPUS",
        help="GPUs of one model to measure on: numbers joined by commas, or all (default: 0)",
    )
    add(
        "--cluster",
        metavar="HOST:PORT",
        help="measure on the workers of this Ray cluster instead (`felix worker`)",
    )
    add(
        "--tracker",
        metavar="HOST:PORT",
        help="measure on boards of this TVM RPC tracker instead; --target says their CPU",
    )
    add(
        "--key",
        action="append",
        default=[],
        metavar="KEY",
        help="of a board; several boards of one kind: once for each",
    )
    add(
        "--priority",
        **_NATURAL,
        default=1,
        help="of requests for boards; larger ones come first (default 1)",
    )
    add("--out", default="out", metavar="DIR", help="artifact and session (default: out)")
    add(
        "--database",
        metavar="DIR",
        help="measure the schedules of this MetaSchedule database first",
    )
    add("--resume", action="store_true", help="go on with the session in DIR, if there is one")
    add("--shape", action="append", metavar="NAME=1x3x224x224", help="of an open ONNX input")
    add("--value", action="append", metavar="NAME=[1,2]", help="of an ONNX input, in every call")
    add(
        "--compare",
        type=values.libraries,
        default=libraries.DEFAULT,
        metavar="LIBRARIES",
        help="what the best schedules are compared with: torch, inductor (torch.compile), joined "
        "by +, or none (default: torch)",
    )
    add(
        "--no-pytorch", action="store_true", help="of a network: no group runs PyTorch's operators"
    )
    add("--improve", action="store_true", help="of a network: tune known tasks further")
    add(
        "--fusion",
        choices=("rules", "planned"),
        help="how the operators of a network are grouped: by fixed rules, or by what groups cost, "
        "with norms folded into products and products merged where that is cheaper (default: "
        "planned on a GPU, rules on a CPU)",
    )
    add("--allow-tf32", action="store_true", help=_TF32)
    add("--quiet", action="store_true", help="no progress")


def _known(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", metavar="DIR", help="folder of the database")
    parser.add_argument(
        "--known-results",
        metavar="FILE",
        help="of known results (default: $FELIX_KNOWN_RESULTS, else that of the cache folder)",
    )


def _worker(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--address",
        metavar="HOST:PORT",
        help="head of the Ray cluster; a service that asks for keys of machines gets this one's "
        "from FELIX_WORKER_KEY",
    )
    add(
        "--devices",
        type=values.worker_devices,
        default="all",
        metavar="GPUS",
        help="GPUs to measure on: numbers joined by commas, or all (default); cpu: this CPU; "
        "none: build only",
    )
    add("--builders", **_NATURAL, help="programs to build at a time (default: one a core)")
    add(
        "--tracker",
        metavar="HOST:PORT",
        help="be a board of this TVM RPC tracker instead: run what is sent, on this CPU",
    )
    add("--key", metavar="KEY", help="of the board at the tracker, its own")
    add(
        "--host",
        metavar="ADDRESS",
        help="of this machine, where the board listens (default: as the tracker sees it)",
    )
    add("--port", **_NATURAL, default=9090, help="first port that the board tries (default 9090)")


def _features(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("workload", metavar="WORKLOAD")
    add("--target", help="what the program is scheduled for (default: llvm, or what a file says)")
    add("--sketch", type=values.natural, metavar="I", help="only this sketch")
    add(
        "--samples",
        **_COUNT,
        default=1,
        help="random legal schedules to show of each sketch (default 1)",
    )
    add("--seed", type=values.natural, default=0, help="of the random schedules (default 0)")
    add("--all", action="store_true", help="show features that are zero everywhere, too")


def _compile(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("source", metavar="OUTDIR_OR_RECORDS", help="folder of a run, or its records.jsonl")
    add("--out", metavar="DIR", help="where the artifact goes (default: the folder of the run)")


def _serve(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--upgrade", action="store_true", help="bring the database to this version's schema first")
    add("--no-tuner", action="store_true", help="no tuner on this machine")


def _tuner(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--name", metavar="NAME", help="how people know this tuner (default: host and process)")
    add("--jobs", **_COUNT, help="end after so many jobs")
    add("--with-parent", action="store_true", help="end when the process that started it ends")


def _db(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["upgrade"], help="bring it to this version's schema")


def _connection(parser: argparse.ArgumentParser) -> None:
    """Of what talks to a service that runs somewhere; see `felix.cli.remote.connection`."""
    add = parser.add_argument
    add("--url", help="the service (default: FELIX_URL, else this machine's, at FELIX_PORT)")
    add("--key-file", metavar="PATH", help="file with an API key (default: FELIX_API_KEY)")


def _watch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", type=values.natural)


def _control(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", type=values.natural, nargs="+")


def _submit(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("workload", metavar="WORKLOAD", help="as for tune, or an ONNX file")
    add("--target", help="what to tune for (default: llvm)")
    add("--trials", **_COUNT, help="candidates to measure")
    add(
        "--seconds",
        type=values.positive(float),
        metavar="S",
        help="how long the job takes from the start of its run to its artifacts",
    )
    add("--seed", type=values.natural, help="everything random follows from it (default 0)")
    add("--strategy", choices=strategies.NAMES, help="how to search")
    add("--round", **_COUNT, help="candidates a round")
    add("--patience", **_ROUNDS)
    add("--name", help="how people know the job")
    add("--tag", action="append", metavar="TAG", help="may be given several times")
    add("--priority", type=int, help="higher goes first (default 0)")
    add("--shape", action="append", metavar="NAME=1x3x224x224", help="of an open ONNX input")
    add("--value", action="append", metavar="NAME=[1,2]", help="of an ONNX input, in every call")
    add(
        "--no-network",
        dest="network",
        action="store_false",
        help="tune the programs of an ONNX file, but do not build the network",
    )
    add(
        "--pytorch",
        action="store_true",
        help="PyTorch's operators run groups of the network where they are faster",
    )
    add("--allow-tf32", action="store_true", help=_TF32)
    add(
        "--no-reuse",
        dest="reuse",
        action="store_false",
        help="begin anew, whatever earlier jobs measured of this workload",
    )
    add("--idempotency-key", metavar="KEY", help="repeating the command makes no second job")
    add("--watch", action="store_true", help="show progress until the job has ended")


def _ls(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--state", action="append", metavar="STATE", help="queued, running, ...; several: any")
    add("--tag", action="append", metavar="TAG", help="several: all of them")
    add("--q", metavar="TEXT", help="part of name or operator")
    add("--mine", action="store_true", help="only jobs of this key")
    add("--limit", **_COUNT, default=20, help="newest N (default 20)")


def _get(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("job", type=values.natural)
    add("--out", default=".", metavar="DIR", help="where it goes (default: here)")
    add("--name", help="of the artifact (default: the bundle)")
    add("--network", action="store_true", help="the network that the job built")
    add("--list", action="store_true", help="list the artifacts instead")


def _keys(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("action", choices=["ls", "create", "revoke"])
    add("subject", nargs="?", metavar="NAME_OR_ID", help="name of a new key, or which to revoke")
    add(
        "--scope",
        action="append",
        choices=["read", "submit", "priority", "worker", "admin"],
        help="of a new key; may be given several times (default: read)",
    )
    add(
        "--device-kind",
        action="append",
        metavar="KIND",
        dest="device_kinds",
        help="what a key with the scope worker may measure on, as `felix worker` says it (h200); "
        "may be given several times",
    )
    add("--project", metavar="NAME", help="whose jobs a new key sees (default: default)")
    add("--max-running-jobs", **_NATURAL, help="quota of a new key")
    add("--max-trials", **_COUNT, help="quota of a new key")
    add("--max-upload-bytes", **_NATURAL, help="quota of a new key")
    add(
        "--expires-s",
        type=values.positive(float),
        metavar="S",
        help="a new key ends after this long",
    )
    add("--local", action="store_true", help="write to this machine's database, without the API")


def _projects(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("action", choices=["ls", "create", "limit"], help="limit replaces all limits")
    add("name", nargs="?", metavar="NAME", help="of the project; permanent")
    add("--max-running-jobs", **_NATURAL, help="unfinished jobs of all its keys")
    add("--max-trials", **_COUNT, help="of one job")
    add("--max-bytes", type=values.size, metavar="N", help="of its uploads and artifacts")
    add(
        "--retention-days",
        **_COUNT,
        help="files of ended jobs are removed after so long, unless tagged keep",
    )


def _webhooks(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("action", choices=["ls", "create", "delete", "test", "deliveries"])
    add("subject", nargs="?", metavar="URL_OR_ID", help="address of a new webhook, or which one")
    add(
        "--state",
        action="append",
        metavar="STATE",
        help="what a new webhook reports; several: each (default: all but queued)",
    )
    add("--limit", **_COUNT, default=20, help="newest N (default 20)")


#: Numbers from 1 and from 0 on, and rounds to wait for an improvement.
_COUNT: dict[str, Any] = {"type": values.positive(int), "metavar": "N"}
_NATURAL: dict[str, Any] = {"type": values.natural, "metavar": "N"}
_ROUNDS: dict[str, Any] = {
    "type": values.positive(int),
    "metavar": "ROUNDS",
    "help": "stop after so many rounds without an improvement of 1 %%",
}

#: Command -> what it does, the function of `felix.cli` that runs it, its options.
_COMMANDS: dict[str, tuple[str, str, Callable[[argparse.ArgumentParser], None]]] = {
    "tune": ("find a fast schedule and write the artifact", "commands.tune.run", _tune),
    "features": ("show the features of a program", "commands.features.run", _features),
    "compile": ("build the best schedule of an earlier run", "commands.compile.run", _compile),
    "known": (
        "write what is known of networks as a MetaSchedule database",
        "commands.network.known",
        _known,
    ),
    "worker": (
        "build and measure for a cluster, or be a board",
        "measuring.worker_command",
        _worker,
    ),
    "devices": ("list what this machine can tune for", "commands.devices.run", lambda _: None),
    "serve": ("run the service: API, dashboard and a tuner", "commands.service.run_serve", _serve),
    "tuner": ("work on jobs of the service", "commands.service.run_tuner", _tuner),
    "db": ("look after the service's database", "commands.service.run_db", _db),
    "submit": ("give the service a job", "remote.jobs.submit", _submit),
    "ls": ("list jobs of the service", "remote.jobs.ls", _ls),
    "watch": ("show the progress of a job", "remote.jobs.watch", _watch),
    "pause": ("put jobs down; they keep everything measured", "remote.jobs.control", _control),
    "resume": ("go on with paused jobs", "remote.jobs.control", _control),
    "cancel": ("drop jobs", "remote.jobs.control", _control),
    "stop": ("end jobs early, with their artifacts", "remote.jobs.control", _control),
    "retry": ("go on with failed or cancelled jobs", "remote.jobs.control", _control),
    "get": ("download what a job made", "remote.jobs.get", _get),
    "keys": ("list, make and revoke API keys", "remote.teams.keys_command", _keys),
    "projects": ("list, make and limit projects", "remote.teams.projects_command", _projects),
    "webhooks": ("report changes of jobs to others", "remote.teams.webhooks_command", _webhooks),
}
