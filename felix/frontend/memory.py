"""What a model that needs too much memory is told: the limit, and what to do."""

from __future__ import annotations

import resource

from felix.target import memory


def is_short(error: BaseException) -> bool:
    """Whether an error says that there is no memory; TVM's C++ says it in words."""
    return isinstance(error, MemoryError) or "bad_alloc" in str(error)


def message() -> str:
    """The rest of a sentence that begins with what needs the memory."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        most = f"the {memory.machine_bytes() >> 20:,} MiB of this machine"
    else:
        most = f"the {limit >> 20:,} MiB that this process may take"
    return (
        f"needs more memory than {most}: use smaller shapes, a part of the model at a time, or a "
        "larger limit"
    )
