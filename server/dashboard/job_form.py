"""The form of a new job as the API has it, and back: texts of its fields, settings of a job.

Fields of parameters of operators begin with `PARAM`; empty fields are left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import pydantic

from server import submission
from server.dashboard import fields
from server.store import rows

#: Fields of the form that all workloads have.
COMMON = ("name", "target", "trials", "seconds", "tags", "priority", "seed", "strategy", "note")
OPTIONS = ("round_size", "patience_rounds")
_OF_FILES = ("kind", "shapes", "file")
PARAM = "p."
#: The switch that is the opposite of `reuse`.
BEGIN_ANEW = "begin_anew"
ALLOW_TF32 = "allow_tf32"
#: The switch that is the opposite of `network`, of an ONNX file.
NO_NETWORK = "no_network"
#: The switch for PyTorch's operators in a network.
PYTORCH = "pytorch"


def settings(texts: Mapping[str, str]) -> dict[str, Any]:
    """What all sources have, as the API has it."""
    chosen: dict[str, Any] = {
        name: texts[name].strip() for name in COMMON if texts.get(name, "").strip()
    }
    if "tags" in chosen:
        chosen["tags"] = [tag.strip() for tag in chosen["tags"].split(",") if tag.strip()]
    if texts.get(BEGIN_ANEW):
        chosen["reuse"] = False
    if texts.get(ALLOW_TF32):
        chosen["allow_tf32"] = True
    options = {name: texts[name].strip() for name in OPTIONS if texts.get(name, "").strip()}
    return chosen | {"options": options}


def of_file(texts: Mapping[str, str]) -> dict[str, Any]:
    """The settings of a file, as the API has them.

    Raises:
        Wrong: the shapes are malformed.
    """
    chosen = settings(texts) | {"kind": texts.get("kind", "onnx")}
    if chosen["kind"] == "onnx":
        chosen["shapes"] = fields.shapes_of(texts.get("shapes", ""))
        if texts.get(NO_NETWORK):
            chosen["network"] = False
        if texts.get(PYTORCH):
            chosen["pytorch"] = True
    return chosen


def params(texts: Mapping[str, str]) -> dict[str, str]:
    """The texts of an operator's parameters, by their names."""
    return {name[len(PARAM) :]: text for name, text in texts.items() if name.startswith(PARAM)}


def of_job(job: rows.Job) -> dict[str, str]:
    """The texts for a job like this one, an operator's."""
    content = {name: getattr(job, name) for name in COMMON}
    if job.strategy == submission.default_strategy(job.target_key):
        del content["strategy"]
    workload = {"params": job.workload.get("params", {})}
    content["allow_tf32"] = job.workload.get("allow_tf32", False)
    return of_request({**content, "options": job.options, "workload": workload})


def of_request(content: Mapping[str, Any]) -> dict[str, str]:
    """The texts for a body of `POST /v1/jobs`."""
    texts = of_params(fields.texts_of(content["workload"].get("params", {})))
    for name in COMMON:
        if content.get(name) is not None:
            texts[name] = fields.text_of(content[name])
    for name, value in content.get("options", {}).items():
        if name in OPTIONS and value is not None:
            texts[name] = str(value)
    if not content.get("reuse", True):
        texts[BEGIN_ANEW] = "on"
    if content.get("allow_tf32"):
        texts[ALLOW_TF32] = "on"
    return texts


def of_params(texts: Mapping[str, str]) -> dict[str, str]:
    """Texts of parameters as fields of the form."""
    return {f"{PARAM}{name}": text for name, text in texts.items()}


def wrong(validation_errors: Any) -> dict[str, str]:
    """What is wrong with a body, by field of the form."""
    return {_place(each["loc"]): words(each["msg"]) for each in validation_errors}


def words(message: str) -> str:
    """A message of the validation for people."""
    message = message.removeprefix("Value error, ").replace("Input should be", "must be")
    return message.split(", unable to parse")[0]


def idempotency_key(body: pydantic.BaseModel, texts: Mapping[str, str]) -> str:
    """An idempotency key: a form that is sent twice unchanged makes one job."""
    sha256 = texts.get("sha256", "")
    identity = f"{texts.get('form_id', '')}\n{body.model_dump_json()}\n{sha256}"
    return f"form-{hashlib.sha256(identity.encode()).hexdigest()[:32]}"


def _place(location: tuple[int | str, ...]) -> str:
    """The field an error belongs to; the choice of the operator, if to none."""
    names = [part for part in location if part in (*COMMON, *OPTIONS, *_OF_FILES)]
    return str(names[-1]) if names else "op"
