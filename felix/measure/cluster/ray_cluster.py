"""A Ray cluster: its nodes are named actors that `felix worker` keeps, a tuner calls them.

Ray starts an actor again whose process died, and says when one cannot be reached. Actors belong
to the worker that made them and end with it. Whoever may talk to the cluster may run code on it,
so nothing here connects to one that asks for no token.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import threading
from collections.abc import Sequence
from typing import Any

import ray
import tvm

from felix import errors, version
from felix.builder import payload as payloads
from felix.measure import work
from felix.measure.cluster import messages, node, pool, remote, tls
from felix.tir import grammar

NAMESPACE = "felix"
#: Seconds that any request may take: builds, references and batches have limits of their own.
CALL_S = 300.0
#: Seconds that a node may take to say that it is there, and between two questions.
_ANSWER_S, _AGAIN_S = 10.0, 1.0
#: And all nodes, to say how they are.
_STATUS_S = 2.0
_TOKEN_FILE = pathlib.Path("~/.ray/auth_token")


def connect(address: str) -> RayCluster:
    """Connect this process to a cluster that has a node on this machine.

    Args:
        address: of its head, "HOST:PORT".

    Raises:
        MeasureError: there is none, it asks for no token, or only one of us uses TLS.
    """
    require_token()
    if not ray.is_initialized():
        tls.check(address)
        try:
            ray.init(
                address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR
            )
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise errors.MeasureError(
                f"cannot reach the cluster at {address}: {grammar.first_line(error)}. This "
                f"machine has to be a node of it: ray start --address={address} --num-cpus=0"
            ) from error
    return RayCluster(address)


def require_token() -> None:
    """Raise `MeasureError` if this process would talk to a cluster without a token."""
    says = [name for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH") if os.environ.get(name)]
    has_token = bool(says) or _TOKEN_FILE.expanduser().exists()
    if os.environ.get("RAY_AUTH_MODE") != "token" or not has_token:
        raise errors.MeasureError(
            "clusters are used with a token only: on all machines set RAY_AUTH_MODE=token, make a "
            "token with `ray get-auth-token --generate`, copy ~/.ray/auth_token to them, and "
            "start Ray again"
        )


def versions() -> dict[str, Any]:
    """What has to be the same on all machines."""
    return {
        "felix": version.__version__,
        "tvm": tvm.__version__,
        "payload": payloads.VERSION,
        "version": messages.VERSION,
    }


def start_node(name: str, settings: node.Settings, kind: str, here: str) -> Any:
    """Make the actor of a node; its handle, which keeps it alive.

    Args:
        name: of the actor.
        settings: of the node.
        kind: of its device; empty: it has none.
        here: a resource that this machine alone has.
    """
    actor = ray.remote(node.Node).options(
        name=name,
        namespace=NAMESPACE,
        num_cpus=0,
        resources={here: 0.001} | ({messages.resource(kind): 1} if kind else {}),
        max_restarts=-1,
        max_task_retries=0,
        max_concurrency=settings.builders + 3,  # builds, a run, an interrupt, a question
    )
    return actor.remote(settings)


class RayCluster(pool.Cluster):
    """The nodes of a Ray cluster."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._known: dict[str, pool.Member] = {}

    def members(self) -> Sequence[pool.Member]:
        """All nodes that answer; each process is asked once."""
        listed = [
            each["name"]
            for each in ray.util.list_named_actors(all_namespaces=True)
            if each["namespace"] == NAMESPACE
        ]
        found = []
        for name in listed:
            try:
                actor = ray.get_actor(name, namespace=NAMESPACE)
            except ValueError:  # it has ended since
                continue
            key = f"{name}:{actor._actor_id.hex()}"
            if key not in self._known:
                try:
                    facts = messages.read(ray.get(actor.facts.remote(), timeout=_ANSWER_S))
                except (ray.exceptions.RayError, errors.MeasureError) as error:
                    found.append(pool.Member(key, 0, None, "", unfit=grammar.first_line(error)))
                    continue
                self._known[key] = pool.from_facts(key, facts, versions())
            found.append(self._known[key])
        return found

    def statuses(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """What nodes say of themselves now (`Node.status`); who does not answer is left out."""
        asked = {}
        for name in names:
            try:
                asked[self._actor(name).status.remote()] = name
            except ValueError:  # it has ended since
                continue
        if not asked:
            return {}
        answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_STATUS_S)
        said = {}
        for reference in answered:
            with contextlib.suppress(ray.exceptions.RayError, errors.MeasureError):
                said[asked[reference]] = messages.read(ray.get(reference))
        return said

    def link(self, member: pool.Member, closed: threading.Event) -> RayLink:
        """The way to a node."""
        return RayLink(self._actor(member.name), closed)

    def _actor(self, member_name: str) -> Any:
        return ray.get_actor(member_name.rpartition(":")[0], namespace=NAMESPACE)


class RayLink(remote.Link):
    """Calls of an actor."""

    def __init__(self, actor: Any, closed: threading.Event) -> None:
        self._actor, self._closed = actor, closed

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the node."""
        try:
            return ray.get(getattr(self._actor, method).remote(*args), timeout=CALL_S)
        except ray.exceptions.RayTaskError as error:  # the node's own answer
            raise errors.MeasureError(grammar.first_line(error.cause)) from None
        except ray.exceptions.RayError as error:
            raise work.WorkerGone(grammar.first_line(error)) from None

    def await_return(self) -> bool:
        """Wait until the node answers; False: it never will, or the pool is closed."""
        while not self._closed.is_set():
            answers = self.answers()
            if answers is not False:
                return bool(answers)
            self._closed.wait(_AGAIN_S)
        return False

    def answers(self) -> bool | None:
        """Whether the node answers now; None: it never will again."""
        try:
            ray.get(self._actor.facts.remote(), timeout=_ANSWER_S)
        except ray.exceptions.ActorDiedError:
            return None
        except ray.exceptions.RayError:
            return False
        return True
