"""The form: fields from a schema, texts read back, errors at their fields, one job a form."""

from __future__ import annotations

import re
from typing import Any

import pytest

from felix.workloads import catalogue
from server import submission
from server.dashboard import formats, job_form
from server.dashboard.pages import job
from server.store import job_lists, jobs
from tests.server.dashboard.conftest import Pages, words
from tests.support import api_rows, service_fakes

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["n", "shape"],
    "properties": {
        "axis": {"type": "integer", "default": -1, "description": "the axis."},
        "n": {"type": "integer", "minimum": 1},
        "batch": {"oneOf": [{"type": "integer", "minimum": 1}, {"type": "null"}], "default": None},
        "kernel": {
            "oneOf": [
                {"type": "integer", "minimum": 1},
                {"type": "array", "items": {"type": "integer", "minimum": 1}},
            ],
            "default": 3,
        },
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 1}},
        "axes": {
            "oneOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}],
            "default": None,
        },
        "flip": {"type": "boolean", "default": False},
        "bias": {"type": "boolean", "default": True},
        "dtype": {"type": "string", "enum": ["float32", "float16"], "default": "float32"},
        "epilogue": {
            "type": "array",
            "items": {"type": "string", "enum": ["bias", "relu"]},
            "default": [],
        },
    },
}


def test_fields_have_the_schema_s_kinds() -> None:
    by_name = {field.name: field for field in job_form.of_schema(SCHEMA)}
    assert [field.name for field in job_form.of_schema(SCHEMA)][:2] == ["n", "shape"]
    assert by_name["n"].kind == "number" and by_name["n"].is_required and by_name["n"].minimum == 1
    assert by_name["axis"].hint == "-1" and by_name["axis"].help == "The axis."
    assert by_name["batch"].kind == "number" and not by_name["batch"].is_required
    assert by_name["kernel"].kind == "text" and by_name["kernel"].hint == "3"
    assert by_name["flip"].kind == "switch"
    assert by_name["dtype"].choices == ("float32", "float16")
    assert "bias, relu" in by_name["epilogue"].help
    assert job_form.defaults(SCHEMA) == {"flip": "", "bias": "on", "dtype": "float32"}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("axis", "-1", -1),
        ("batch", " 4 ", 4),
        ("kernel", "3", 3),
        ("kernel", "3,5", [3, 5]),
        ("shape", "1x56x56", [1, 56, 56]),
        ("shape", "[12, 197]", [12, 197]),
        ("shape", "7", [7]),
        ("axes", "0, 2", [0, 2]),
        ("flip", "on", True),
        ("dtype", "float16", "float16"),
        ("epilogue", "bias relu", ["bias", "relu"]),
    ],
)
def test_texts_become_parameters(name: str, text: str, value: Any) -> None:
    read = job_form.read(SCHEMA, {"n": "8", "shape": "8", "bias": "on", name: text})
    assert not read.wrong and read.params[name] == value


def test_empty_fields_take_the_defaults() -> None:
    read = job_form.read(SCHEMA, {"n": "8", "shape": "2", "bias": "on", "axis": "", "batch": " "})
    assert read.params == {"n": 8, "shape": [2]}
    assert job_form.read(SCHEMA, {"n": "8", "shape": "2"}).params["bias"] is False


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("n", "", "is needed: a whole number"),
        ("n", "0", "must be at least 1"),
        ("n", "eight", "must be a whole number"),
        ("n", "1.5", "must be a whole number"),
        ("shape", "1, x", "must be"),
        ("shape", "4, 0", "must be at least 1"),
        ("kernel", "a", "must be a whole number or whole numbers with commas"),
        ("dtype", "int8", "must be one of float32, float16"),
        ("epilogue", "bias, gelu", "must be one of bias, relu"),
    ],
)
def test_wrong_texts_are_reported_at_their_field(name: str, text: str, message: str) -> None:
    read = job_form.read(SCHEMA, {"n": "8", "shape": "8", name: text})
    if (name, text) == ("shape", "1, x"):  # the x is a separator
        assert read.params["shape"] == [1]
        return
    assert set(read.wrong) == {name} and message in read.wrong[name]


def test_a_type_that_may_be_left_out_has_an_empty_choice(pages: Pages) -> None:
    schema = catalogue.OPERATORS["gemm"].schema
    by_name = {field.name: field for field in job_form.of_schema(schema)}
    assert by_name["out_dtype"].choices[:2] == ("", "float32")
    assert by_name["dtype"].choices[0] == "float32"
    texts = {"m": "8", "n": "8", "k": "8", "dtype": "int8", "out_dtype": ""}
    assert "out_dtype" not in job_form.read(schema, texts).params
    read = job_form.read(schema, texts | {"dtype": "bfloat16", "out_dtype": "float32"})
    assert (read.params["out_dtype"], read.wrong) == ("float32", {})
    assert '<option value="" selected>default</option>' in pages.get("/dashboard/submit?op=gemm")


def test_parameters_survive_a_form() -> None:
    params = {"n": 8, "shape": [1, 2], "flip": True, "bias": False, "dtype": "float16"}
    texts = job_form.texts_of(params)
    assert job_form.read(SCHEMA, texts).params == params


def program_of(pages: Pages, job_id: int) -> bytes:
    return service_fakes.read(pages.service.db, jobs.programs, job_id)[0].encode()


def filled(pages: Pages, **more: str) -> dict[str, str]:
    """A form as a browser sends it."""
    page = pages.get("/dashboard/submit?op=gemm")
    form_id = re.search(r'name="form_id" value="([^"]+)"', page)
    assert form_id is not None
    texts = {
        "csrf_token": pages.csrf,
        "form_id": form_id.group(1),
        "op": "gemm",
        "p.m": "16",
        "p.n": "16",
        "p.k": "16",
        "p.dtype": "float32",
    }
    return texts | more


def test_a_form_makes_one_job(pages: Pages) -> None:
    form = filled(
        pages, **{"p.epilogue": "bias, relu", "trials": "12", "tags": "a, b", "seed": "3"}
    )
    response = pages.client.post("/dashboard/submit", data=form)
    assert response.status_code == 303, words(response.text)
    again = pages.client.post("/dashboard/submit", data=form)
    assert again.headers["location"] == response.headers["location"]
    made = pages.job(response.headers["location"])
    assert len(service_fakes.read(pages.service.db, job_lists.page).items) == 1
    params = {"m": 16, "n": 16, "k": 16, "epilogue": ["bias", "relu"], "dtype": "float32"}
    assert made.workload["params"] == params
    assert (made.trials, made.tags, made.seed) == (12, ("a", "b"), 3)
    assert made.key_id == pages.key_id
    other = pages.client.post("/dashboard/submit", data=form | {"p.m": "32"})
    assert other.headers["location"] != response.headers["location"]
    like = pages.get(f"/dashboard/submit?like={made.id}")
    assert 'value="bias, relu"' in like and 'value="12"' in like and 'value="a, b"' in like


def test_a_job_like_another_has_the_default_of_its_own_target(pages: Pages) -> None:
    """A strategy that nobody chose is not carried over to a form where the target may change."""
    form = filled(pages)
    strategies, likes = [], []
    for chosen in ({}, {"strategy": ""}, {"strategy": "local"}):
        anew = form | chosen | {"begin_anew": "on"}
        made = pages.job(pages.send("/dashboard/submit", 303, **anew))
        strategies.append(made.strategy)
        like = pages.get(f"/dashboard/submit?like={made.id}")
        likes.append(re.findall(r"<option selected>(\w+)<", like))
    assert strategies == ["gradient", "gradient", "local"]
    assert [set(like) & {*strategies} for like in likes] == [set(), set(), {"local"}]


def test_begin_anew_is_the_api_s_reuse_false(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = []
    from_json = submission.from_json
    monkeypatch.setattr(
        submission,
        "from_json",
        lambda caller, body, key: (bodies.append(body), from_json(caller, body, key))[1],
    )
    form = filled(pages)
    page = pages.get("/dashboard/submit")
    assert 'name="begin_anew" value="on"  aria' in page and "Measure everything again" in page
    anew = form | {"begin_anew": "on"}
    places = [pages.send("/dashboard/submit", 303, **each) for each in (form, anew, anew)]
    assert [body.reuse for body in bodies] == [True, False, False]
    assert places[0] != places[1] == places[2]
    refused = pages.send("/dashboard/submit", 422, **form, begin_anew="on", trials="0")
    assert 'name="begin_anew" value="on" checked' in refused


def test_tf32_is_allowed_by_a_switch(pages: Pages) -> None:
    form = filled(pages)
    assert 'name="allow_tf32" value="on"  aria' in pages.get("/dashboard/submit")
    each = form, form | {"allow_tf32": "on"}
    places = [pages.send("/dashboard/submit", 303, **one) for one in each]
    assert places[0] != places[1]
    made = [pages.job(place) for place in places]
    assert [job.workload.get("allow_tf32", False) for job in made] == [False, True]
    like = pages.get(f"/dashboard/submit?like={made[1].id}")
    assert 'name="allow_tf32" value="on" checked' in like
    file = {"file": ("soft.json", program_of(pages, made[0].id), "application/json")}
    form = filled(pages, source="file", kind="tir", allow_tf32="on")
    sent = pages.client.post("/dashboard/submit", data=form, files=file)
    job = pages.job(sent.headers["location"])
    assert job.kind == "tir" and job.workload["allow_tf32"] is True


def test_what_is_wrong_stands_at_its_field_and_the_rest_stays(pages: Pages) -> None:
    form = filled(
        pages,
        **{
            "p.m": "",
            "p.k": "0",
            "trials": "many",
            "name": "my <name>",
            "strategy": "guess",
            "round_size": "1000",
        },
    )
    response = pages.client.post("/dashboard/submit", data=form)
    assert response.status_code == 422
    page, text = response.text, words(response.text)
    for name in ("p.m", "p.k", "trials", "strategy", "round_size"):
        assert f'id="f-{name}-wrong"' in page, name
        assert re.search(rf'id="f-{re.escape(name)}"[^>]*aria-invalid="true"', page), name
    assert 'id="f-p.n-wrong"' not in page and 'value="my &lt;name&gt;"' in page
    assert "5 fields need a correction" in text
    assert not service_fakes.read(pages.service.db, job_lists.page).items


@pytest.mark.parametrize(
    ("op", "more", "field", "message"),
    [
        ("gemm", {"target": "no-such-target"}, "target", "no-such-target"),
        ("gemm", {"trials": "999999"}, "trials", "may ask for"),
        ("softmax", {"p.shape": "4, 4", "p.axis": "7"}, "p.axis", "axis must lie in"),
        (
            "conv2d",
            {"p.n": "1", "p.h": "8", "p.w": "8", "p.ci": "4", "p.co": "4", "p.groups": "3"},
            "p.groups",
            "groups must divide",
        ),
    ],
)
def test_what_the_engine_refuses_stands_at_its_field(
    pages: Pages, op: str, more: dict[str, str], field: str, message: str
) -> None:
    page = pages.send("/dashboard/submit", 422, **filled(pages, op=op, **more))
    assert message in words(page) and 'id="problem"' in page
    assert f'id="f-{field}-wrong"' in page, words(page)
    assert re.search(rf'id="f-{re.escape(field)}"[^>]*aria-invalid="true"', page)


def test_a_file_comes_in_by_the_same_form(pages: Pages) -> None:
    form = filled(pages, source="file", kind="tir", trials="9", tags="x, y")
    file = {"file": ("soft.json", b"{}", "application/json")}
    refused = pages.client.post("/dashboard/submit", data=form, files=file)
    assert refused.status_code == 422 and 'id="f-file-wrong"' in refused.text
    assert 'name="source" value="file"' in refused.text and 'value="x, y"' in refused.text
    for changes, field in (
        ({"kind": "onnx", "shapes": "what"}, "shapes"),
        ({"kind": "exe"}, "kind"),
        ({"trials": "-1"}, "trials"),
    ):
        refused = pages.client.post("/dashboard/submit", data=form | changes, files=file)
        assert refused.status_code == 422 and f'id="f-{field}-wrong"' in refused.text, field
    without = pages.client.post("/dashboard/submit", data=form)
    assert 'id="f-file-wrong"' in without.text
    program = program_of(
        pages, pages.job(pages.send("/dashboard/submit", 303, **filled(pages))).id
    )
    file = {"file": ("soft.json", program, "application/json")}
    sent = pages.client.post("/dashboard/submit", data=form, files=file)
    assert sent.status_code == 303, words(sent.text)
    again = pages.client.post("/dashboard/submit", data=form, files=file)
    assert again.headers["location"] == sent.headers["location"]
    job = pages.job(sent.headers["location"])
    assert (job.kind, job.op, job.trials, job.tags) == ("tir", "soft.json", 9, ("x", "y"))


@pytest.mark.parametrize(
    ("text", "shapes"),
    [("", {}), ("x: 1, 3\n\n y.0 = 2x2 ", {"x": [1, 3], "y.0": [2, 2]}), ("a:b: 4", {"a:b": [4]})],
)
def test_shapes_are_read_a_line_each(text: str, shapes: dict[str, list[int]]) -> None:
    assert job_form.shapes_of(text) == shapes
    with pytest.raises(job_form.Wrong, match="one input a line"):
        job_form.shapes_of(f"{text}\nwhat")


def test_every_operator_has_a_form(pages: Pages) -> None:
    listed = pages.client.get("/v1/operators").json()
    assert "gemm" in listed
    for name, schema in listed.items():
        page = pages.get(f"/dashboard/submit?op={name}")
        for parameter in schema["properties"]:
            assert f'name="p.{parameter}"' in page, (name, parameter)


def test_time_parts_add_up() -> None:
    parts = job.time_parts({"search_s": 6.0, "measure_s": 3.0, "total_s": 10.0}, 10.0)
    assert [label for label, _, _ in parts] == ["Search", "Checking and timing", "Other"]
    assert sum(share for _, _, share in parts) == pytest.approx(1.0)
    assert job.time_parts(None, 5.0) == [] and job.time_parts({"search_s": 0}, 5.0) == []


@pytest.mark.parametrize(
    ("formatted", "text"),
    [
        (formats.latency(None), "–"),
        (formats.latency(0.5), "500 ns"),
        (formats.latency(9.094), "9.09 µs"),
        (formats.latency(1441.2), "1.44 ms"),
        (formats.latency(2.5e6), "2.50 s"),
        (formats.duration(0.42), "0.4 s"),
        (formats.duration(12.4), "12 s"),
        (formats.duration(200), "3 min 20 s"),
        (formats.duration(7500), "2 h 5 min"),
        (formats.duration(90000), "1 d 1 h"),
        (formats.ratio(3.254), "3.25×"),
        (formats.flops(268435456), "268 MFLOP"),
        (formats.size(1_400_000), "1.40 MB"),
        (formats.memory(32768), "32 KiB"),
        (formats.percent(0.034), "3.4 %"),
        (formats.percent(0.5), "50 %"),
        (formats.count(12345), "12\u202f345"),
    ],
)
def test_numbers_in_words(formatted: str, text: str) -> None:
    assert formatted == text


def test_a_form_from_a_file_s_job_is_an_empty_one(pages: Pages) -> None:
    model = api_rows.queued(pages.service.db, kind="onnx", op="net.onnx", workload={"file": "x"})
    assert "Parameters of gemm" in pages.get(f"/dashboard/submit?like={model.id}")
