"""States of cases, the processes that find them, and the files that keep them.

A case is, from the worst to the best,

- *wrong*: it ran, and an output differs;
- *failed*: an error that is not Felix's own, a crash, or no end in its seconds;
- *unclear*: refused by a sentence that does not say what it is about;
- *refused*: refused by a sentence;
- *pytorch*: nothing of it was converted, so PyTorch runs it;
- *right*.
"""

from __future__ import annotations

import collections
import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from benchmarks.support import forked
from felix import errors

Value = TypeVar("Value")

#: From the worst to the best.
STATES = ("wrong", "failed", "unclear", "refused", "pytorch", "right")
#: What sentences that say nothing of the model have.
_UNCLEAR = ("with these inputs and attributes", "does not accept its inputs or tensors")


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """A case's state.

    Attributes:
        state: of `STATES`; the worst one, where a case is several samples.
        sentence: what was said of it.
        counts: samples by state; None of a case that is one sample.
    """

    state: str
    sentence: str = ""
    counts: Mapping[str, int] | None = None

    @classmethod
    def worst(cls, samples: Sequence[Found]) -> Found:
        """What several samples are together; the first of the worst says why."""
        first = min(samples, key=lambda each: STATES.index(each.state))
        return cls(first.state, first.sentence, collections.Counter(s.state for s in samples))


#: Finds the state of the case of a name.
Judge: TypeAlias = Callable[[str], Found]


def judged(run: Callable[[], Found]) -> Found:
    """The state of a case, whatever running it raises."""
    found, error = attempted(run)
    if found is not None:
        return found
    return refused(error) if isinstance(error, errors.FelixError) else failed(error)


def attempted(run: Callable[[], Value]) -> tuple[Value, None] | tuple[None, Exception]:
    """What a call gives, or what it raises: code of others raises anything; suites go on."""
    try:
        return run(), None
    except Exception as error:
        return None, error


def refused(error: errors.FelixError) -> Found:
    """The state of a case that Felix refuses: by a sentence, or one that says too little."""
    sentence = " ".join(str(error).split())
    is_unclear = any(words in sentence for words in _UNCLEAR)
    return Found("unclear" if is_unclear else "refused", sentence)


def failed(error: Exception) -> Found:
    """The state of a case with an error that is not Felix's own."""
    return Found("failed", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")


def found(judge: Judge, names: Sequence[str], limit_s: float, processes: int) -> dict[str, Found]:
    """The states of cases, found in so many processes.

    Args:
        judge: of the cases.
        names: of the cases.
        limit_s: seconds that a case may take.
        processes: how many work side by side.
    """
    return {
        name: Found("failed", each.why) if isinstance(each, forked.Ended) else each
        for name, each in forked.results(judge, names, processes, limit_s)
    }


def report(path: pathlib.Path, states: Mapping[str, Found], update: bool, about: str = "") -> bool:
    """Print what is worse than a ledger says, or write what was found there.

    Args:
        path: of the ledger.
        states: what was found.
        update: whether it is written.
        about: what the ledger has to say of itself; another one is not compared.

    Returns:
        Whether something is worse and nothing was written.
    """
    of_another = path.exists() and head(path) != about
    if of_another:
        print(f"{path.name} is of {head(path)}, here is {about}: not compared")
    known = {} if of_another else read(path)
    print(f"{path.stem}: {', '.join(f'{n} {state}' for state, n in counts(states).items())}")
    lost = worse(known, states)
    for each in lost:
        print(f"{each}: {states[each].state}, was {known[each].state}: {states[each].sentence}")
    if update:
        write(path, {**known, **states}, about)
    return bool(lost) and not update


def counts(states: Mapping[str, Found]) -> dict[str, int]:
    """Samples by state."""
    number: collections.Counter[str] = collections.Counter()
    for each in states.values():
        number.update({each.state: 1} if each.counts is None else each.counts)
    return {each: number[each] for each in STATES}


def worse(known: Mapping[str, Found], states: Mapping[str, Found]) -> list[str]:
    """Names of cases whose state is worse than what is known of them."""
    both = [name for name in states if name in known]
    return [n for n in both if STATES.index(states[n].state) < STATES.index(known[n].state)]


def head(path: pathlib.Path) -> str:
    """What a ledger says of itself; "" where there is nothing."""
    text = path.read_text() if path.exists() else ""
    return text.partition("\n")[0].removeprefix("# ") if text.startswith("# ") else ""


def read(path: pathlib.Path) -> dict[str, Found]:
    """The states of a ledger; none where there is no file."""
    lines = path.read_text().splitlines() if path.exists() else []
    parts = (line.split("\t") for line in lines if not line.startswith("#"))
    return {name: Found(state, sentence) for name, state, sentence in parts}


def write(path: pathlib.Path, states: Mapping[str, Found], head: str = "") -> None:
    """Write a ledger: a line a case, with its state and what was said of it.

    Args:
        head: what it says of itself in its first line.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (f"{name}\t{each.state}\t{each.sentence}\n" for name, each in sorted(states.items()))
    path.write_text("".join((f"# {head}\n" if head else "", *lines)))
