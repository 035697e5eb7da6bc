"""An engine that a client's program has taken over: it runs the code that is its job's option."""

from __future__ import annotations

from server.tuner import engine
from tests.support import engine_fakes

FACTORY = "tests.support.hostile.taken_engine:TakenEngine"


class TakenEngine(engine_fakes.Engine):
    """Runs `job.options["code"]`, whose list `outcomes` is in the job's event `started`."""

    def run(self, claimed: engine.JobAccess) -> engine.Outcome:
        """See `engine.Engine`."""
        outcomes: list[str] = []
        claimed.begin("llvm/test", "resolved")
        exec(str(claimed.job.options["code"]), {"outcomes": outcomes})
        claimed.started(["key"], {"outcomes": outcomes})
        return engine.Outcome(reason="trials", failure=None, result=None)
