"""The child of `sandbox`.

The request is [program, target], the answer why the program is refused, or null.
"""

from __future__ import annotations

import json
import os
import sys

from felix import without_torch  # noqa: F401  (before TVM)

import tvm  # isort: skip

from felix import errors
from felix.processes import child, confine, policy
from felix.tir import sandbox, validate

CHILD_BYTES = 8 * 2**30
CHILD_OUTPUT_BYTES = 2**20


def main(folder: str) -> None:
    """Try the program, confined."""
    question = child.Question(folder)
    text, target_text = question.request
    confine.confine(
        policy.Policy(
            folder=folder,
            file_bytes=CHILD_OUTPUT_BYTES,
            address_bytes=CHILD_BYTES,
            cpu_s=sandbox.CHILD_SECONDS,
        ),
        question.descriptors,
    )
    try:
        func = validate.normalise(sandbox.load(text))
        sandbox.rehearse(func, tvm.target.Target(json.loads(target_text)))
    except errors.WorkloadError as error:
        question.answer(str(error))
    else:
        question.answer(None)


if __name__ == "__main__":
    main(sys.argv[1])
    os._exit(0)
