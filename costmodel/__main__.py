"""Command line: `python -m costmodel` and a subcommand, from `collect` to `compact`.

Results go to stdout, progress and errors to stderr. Exit codes: 0 done, 1 could not be done
(one line says why), 2 wrong usage, 130 interrupted; what was measured before that stays.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence

from costmodel.cli import collect, commands
from felix import errors
from felix.features.kind import FeatureKind


def parser() -> argparse.ArgumentParser:
    """All subcommands and options."""
    top = argparse.ArgumentParser(prog="python -m costmodel", description=__doc__)
    commands_of = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, fill, text in (
        ("collect", _collect, "measure schedules into a data set"),
        ("train", _train, "train a model, score it, write its card"),
        ("evaluate", _evaluate, "score a model and the baselines"),
        ("compare", _compare, "Felix's features against TVM's"),
        ("ablate", _ablate, "score trainings without groups of features"),
        ("compact", _compact, "copy a data set into one part per table"),
    ):  # an option has one spelling: what is written about a command is read by its options
        fill(commands_of.add_parser(name, help=text, allow_abbrev=False))
    return top


def _compact(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("source", nargs="+", help="data set folders")
    sub.add_argument("folder", help="new folder")
    sub.set_defaults(run=commands.compact)


def _collect(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--target", default="llvm", help="llvm, cuda, a tag or JSON (%(default)s)")
    sub.add_argument("--out", required=True, help="data set folder; continued if it exists")
    sub.add_argument(
        "--workloads",
        default="builtin",
        help="file of workload lines, builtin, or few-channels: the built-in convolutions with "
        "few channels alone",
    )
    sub.add_argument("--per-workload", type=_positive, default=80, metavar="N")
    sub.add_argument("--seconds", type=_seconds, help="stop after this long")
    sub.add_argument("--seed", type=int, default=0)
    sub.add_argument(
        "--model",
        help="checkpoint that chooses half of the schedules (llvm) or "
        "that is descended on (cuda; default: what tuning would use)",
    )
    sub.add_argument(
        "--near",
        type=_share,
        default=0.3,
        metavar="SHARE",
        help="without a model, share of neighbours of the fastest so far (%(default)s)",
    )
    sub.add_argument(
        "--descend",
        type=_share,
        default=0.3,
        metavar="SHARE",
        help="cuda: share of schedules proposed by descent (%(default)s)",
    )
    sub.add_argument(
        "--tournament",
        type=_positive,
        default=3,
        metavar="N",
        help="cuda: a random schedule is the best predicted of N (%(default)s)",
    )
    sub.add_argument("--turn", type=_positive, default=16, help="schedules between workloads")
    sub.add_argument(
        "--sketches",
        type=_positive,
        metavar="N",
        help="use N sketches of a workload at random, those of variants among them (default: all)",
    )
    sub.add_argument(
        "--gpus", type=_positive, default=1, help="that the --jobs are spread over (%(default)s)"
    )
    sub.add_argument("--builders", type=_positive, help="build workers (default: one a core)")
    shares = sub.add_mutually_exclusive_group()
    shares.add_argument(
        "--jobs",
        type=_positive,
        default=1,
        help="collector processes, each with a share of the workloads (%(default)s)",
    )
    shares.add_argument(
        "--part",
        type=_part,
        default=(0, 1),
        metavar="I/N",
        help="only the I-th of N shares of the workloads, counted from 0 (default: all)",
    )
    _kind(sub, "template: generated kernels, for cuda")
    sub.set_defaults(run=collect.collect)


def _kind(sub: argparse.ArgumentParser, text: str) -> None:
    sub.add_argument(
        "--kind",
        choices=[str(kind) for kind in FeatureKind],
        default=str(FeatureKind.TRACE),
        help=f"of sketches and their features (%(default)s). {text}",
    )


def _split_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--data", required=True, nargs="+", help="data set folders")
    sub.add_argument("--cache", help="folder for computed features")
    sub.add_argument(
        "--jobs",
        type=_positive,
        default=1,
        help="processes that compute features into the cache, and of compare those that train "
        "side by side (%(default)s)",
    )
    sub.add_argument("--split", choices=("workload", "operator"), default="workload")
    sub.add_argument("--validation", type=float, default=0.15, help="share (%(default)s)")
    sub.add_argument("--test", type=float, default=0.15, help="share (%(default)s)")
    sub.add_argument("--seed", type=int, default=0)
    sub.add_argument("--threads", type=_positive, default=1)


def _train(sub: argparse.ArgumentParser) -> None:
    _split_options(sub)
    sub.add_argument("--out", required=True, help="checkpoint to write")
    sub.add_argument(
        "--scores",
        metavar="FOLDER",
        help="for the scores and, with --final, the weights scored (default: beside the model)",
    )
    _training(sub)
    _calibrating(sub)
    _kind(sub, "Each kind has a model of its own")
    sub.add_argument(
        "--replay",
        type=int,
        default=720,
        metavar="N",
        help="schedules stored beside the checkpoint for fine-tuning, 0 for none (%(default)s)",
    )
    sub.add_argument(
        "--final", action="store_true", help="after scoring, train again on all workloads"
    )
    sub.set_defaults(run=commands.train)


def _training(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--epochs", type=_positive, default=20)
    sub.add_argument("--patience", type=_positive, default=30)
    sub.add_argument("--lr", type=float, default=2e-3)
    sub.add_argument("--weight-decay", type=float, default=1e-4, help="AdamW's (%(default)s)")
    sub.add_argument("--hidden", type=_positive, default=128)
    sub.add_argument("--blocks", type=_positive, default=2)
    sub.add_argument(
        "--prior",
        metavar="FEATURE",
        help="holds an analytic latency in us, or none (none; of templates analytic_us)",
    )
    sub.add_argument("--rank-weight", type=float, default=0.5)
    sub.add_argument(
        "--drop",
        nargs="+",
        default=(),
        metavar="PATTERN",
        help="features to leave out, for ablations (with * and ?)",
    )
    sub.add_argument("--failures", choices=("exclude", "slow"), default="exclude")


def _calibrating(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--calibrate", action="store_true", help="by a line fitted on the validation workloads"
    )


def _compare(sub: argparse.ArgumentParser) -> None:
    _split_options(sub)
    _training(sub)
    _calibrating(sub)
    sub.add_argument(
        "--folds", type=_folds, help="score every workload, by one of so many trainings; no --test"
    )
    sub.add_argument("--out", help="JSON file to write")
    sub.set_defaults(run=commands.compare, kind=str(FeatureKind.TRACE))


def _ablate(sub: argparse.ArgumentParser) -> None:
    _split_options(sub)
    _training(sub)
    _calibrating(sub)
    _kind(sub, "Each kind has variants of its own")
    sub.add_argument("--variants", nargs="+", metavar="NAME", help="only these")
    sub.add_argument("--seeds", type=_positive, default=1)
    sub.add_argument("--out", help="JSON file to write")
    sub.set_defaults(run=commands.ablate)


def _evaluate(sub: argparse.ArgumentParser) -> None:
    _split_options(sub)
    _kind(sub, "Each kind has a model of its own")
    sub.add_argument("--model", help="checkpoint; only the baselines when left out")
    sub.add_argument("--part", choices=("test", "validation", "all"), default="test")
    sub.add_argument("--baselines", action="store_true", help="also analytic and trees")
    sub.add_argument("--per-task", action="store_true", help="table per workload")
    sub.add_argument(
        "--measured",
        type=_positive,
        nargs="+",
        default=[],
        metavar="N",
        help="also the model corrected by N measurements of each workload, on its other schedules",
    )
    sub.add_argument(
        "--sources",
        nargs="+",
        choices=("random", "model", "neighbour", "descent"),
        help="score only schedules that were chosen in one of these ways (all)",
    )
    sub.add_argument("--out", help="JSON file to write")
    sub.set_defaults(run=commands.evaluate)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return value


def _folds(text: str) -> int:
    value = int(text)
    if value < 2:
        raise argparse.ArgumentTypeError(f"{text} is fewer than 2 folds")
    return value


def _part(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not int(match[1]) < int(match[2]):
        raise argparse.ArgumentTypeError(f"{text} is not I/N with I from 0 to N-1")
    return int(match[1]), int(match[2])


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share in [0, 1)")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not a positive time")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit code."""
    options = parser().parse_args(argv)
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        options.run(options, " ".join(["python -m costmodel", *arguments]))
    except errors.FelixError as error:
        print(f"costmodel: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("costmodel: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
