"""First rounds of a run's tasks: each gets one as early as possible.

Their searches need no result of another task, so they do not wait for each other's: many
candidates may be on their way. Where there are few seconds for each task, first rounds are
smaller. Where trials are limited, those of first rounds are kept for them. A task whose turn did
not come before time is up still has the best candidate by the model measured, as long as that
takes no more than a share of the time: what the model picks is mostly far faster than a default
schedule.
"""

from __future__ import annotations

#: Candidates that may be on their way while tasks wait for their first round.
IN_FLIGHT = 48
#: Seconds for each task for which first rounds have their whole size.
WHOLE_S = 2.0
#: First rounds may begin until this multiple of a run's seconds.
OVERRUN = 1.5


def size(whole: int, left_s: float | None, n_fresh: int) -> int:
    """Candidates of a first round.

    Args:
        whole: with time enough.
        left_s: seconds that are left; None: no limit.
        n_fresh: tasks without a first round, of several.
    """
    if left_s is None:
        return whole
    share = left_s / (n_fresh * WHOLE_S)
    return max(1, min(whole, round(whole * share)))


def size_of_trials(whole: int, trials: int, n_tasks: int) -> int:
    """Candidates of a first round of tasks that share so many trials: each task gets its round."""
    return max(1, min(whole, trials // n_tasks))
