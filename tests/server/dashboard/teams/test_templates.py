"""The page of templates: saved from a job, used in the form of a new job, deleted."""

from __future__ import annotations

import re

import pytest

from server.store import jobs, requests
from tests.server.dashboard.conftest import Pages, words
from tests.support import api_rows

EIGHT = {"m": 8, "n": 8, "k": 8}
PARAMS = {"m": 16, "n": 16, "k": 16, "epilogue": ["bias"]}


def send(pages: Pages, address: str, status: int, **fields: object) -> str:
    """Send a form; the page that comes back, or where it leads."""
    response = pages.client.post(address, data={"csrf_token": pages.csrf, **fields})
    assert response.status_code == status, response.text[:2000]
    return response.headers.get("location", response.text)


def form_of(page: str) -> dict[str, str]:
    """What a browser would send of the inputs of a form of a new job; hidden parts are off."""
    form = page.partition('id="job-form"')[2].partition("</form>")[0]
    form = re.sub(r"<fieldset[^>]*hidden disabled>.*?</fieldset>", "", form, flags=re.S)
    fields = dict(re.findall(r'<input[^>]* name="([^"]+)"[^>]* value="([^"]*)"', form))
    for name in re.findall(r'<input type="checkbox"[^>]* name="([^"]+)" value="on" +[^c]', form):
        fields.pop(name, None)  # not ticked
    return fields


def stored(pages: Pages) -> dict[str, dict[str, object]]:
    """The templates of the key that is logged in, by name."""
    with pages.service.db.read() as tx:
        listed = requests.templates(tx, pages.service.keys["submit"].key.id)
    return {template.name: template.job for template in listed}


def test_a_job_becomes_a_template_and_the_template_a_job(pages: Pages) -> None:
    assert "No templates yet" in pages.get("/dashboard/templates")
    job = api_rows.queued(
        pages.service.db,
        name="mine",
        workload={"params": PARAMS},
        trials=12,
        seed=3,
        tags=("a", "b"),
        options={"round_size": 4},
        target="llvm -num-cores 2",
    )
    assert "Save as a template" in pages.get(f"/dashboard/jobs/{job.id}")
    saved = send(pages, "/dashboard/templates", 303, job=str(job.id), name="nightly")
    assert saved == "/dashboard/templates"
    assert stored(pages) == {
        "nightly": {
            "workload": {"kind": "operator", "name": "gemm", "params": PARAMS},
            "target": "llvm -num-cores 2",
            "trials": 12,
            "seed": 3,
            "tags": ["a", "b"],
            "options": {"round_size": 4},
        }
    }
    page = pages.get("/dashboard/templates")
    assert "nightly gemm m 16 n 16 k 16" in words(page)
    assert 'href="/dashboard/submit?template=nightly"' in page
    fields = form_of(pages.get("/dashboard/submit?template=nightly"))
    assert (fields["p.m"], fields["trials"], fields["tags"]) == ("16", "12", "a, b")
    assert "begin_anew" not in fields
    made = send(pages, "/dashboard/submit", 303, **(fields | {"p.m": "32"}))
    with pages.service.db.read() as tx:
        new = jobs.get(tx, int(made.rsplit("/", 1)[1]))
    assert new.workload["params"] == PARAMS | {"m": 32}
    assert (new.trials, new.seed, new.tags, new.options) == (12, 3, ("a", "b"), {"round_size": 4})
    assert send(pages, "/dashboard/templates/nightly/delete", 303) == "/dashboard/templates"
    assert stored(pages) == {}
    send(pages, "/dashboard/templates/nightly/delete", 404)
    pages.get("/dashboard/submit?template=nightly", 404)


def test_a_template_of_a_program_is_submitted_with_other_settings(pages: Pages) -> None:
    first = pages.client.post(
        "/v1/jobs",
        json={
            "workload": {"kind": "operator", "name": "gemm", "params": {"m": 8, "n": 8, "k": 8}}
        },
        headers=pages.service.auth("submit"),
    ).json()
    with pages.service.db.read() as tx:
        program = jobs.programs(tx, first["id"])[0]
    workload = {"kind": "tir", "name": "soft.json", "program": program}
    with pages.service.db.write() as tx:
        key_id = pages.service.keys["submit"].key.id
        requests.save_template(
            tx, key_id, "soft", {"workload": workload, "reuse": False, "trials": 5}
        )
    page = pages.get("/dashboard/submit?template=soft")
    fields = form_of(page)
    assert (fields["source"], fields["template"], fields["trials"]) == ("template", "soft", "5")
    assert re.search(r'name="begin_anew" value="on" checked', page)
    wrong = send(pages, "/dashboard/submit", 422, **(fields | {"trials": "0"}))
    assert 'id="f-trials-wrong"' in wrong and 'name="template" value="soft"' in wrong
    made = send(pages, "/dashboard/submit", 303, **(fields | {"trials": "7"}))
    number = int(made.rsplit("/", 1)[1])
    with pages.service.db.read() as tx:
        job = jobs.get(tx, number)
        assert jobs.programs(tx, number) == [program]
    assert (job.kind, job.op, job.trials) == ("tir", "soft.json", 7)
    send(pages, "/dashboard/templates", 303, job=str(number), name="again")
    again = stored(pages)["again"]
    assert again == {"workload": workload, "trials": 7}
    send(pages, "/dashboard/submit", 404, **(fields | {"template": "none"}))


@pytest.mark.parametrize("name", ["", "a b", "../x", "-a", "a" * 101])
def test_a_name_that_is_none_is_refused(pages: Pages, name: str) -> None:
    job = api_rows.queued(pages.service.db)
    page = send(pages, "/dashboard/templates", 422, job=str(job.id), name=name)
    assert "The name of a template has letters" in page and stored(pages) == {}


def test_a_strategy_that_left_is_shown_and_refused(pages: Pages) -> None:
    sentence = "here is no strategy 'random': use gradient or local"
    job = api_rows.queued(pages.service.db, workload={"params": PARAMS}, strategy="random")
    assert "random" in words(pages.get(f"/dashboard/jobs/{job.id}"))
    refused = send(pages, "/dashboard/templates", 422, job=str(job.id), name="x")
    assert sentence in words(refused) and stored(pages) == {}
    page = pages.get(f"/dashboard/submit?like={job.id}")
    assert "<option selected>random</option>" in page
    again = send(pages, "/dashboard/submit", 422, **form_of(page), strategy="random")
    assert sentence in words(again)


def test_what_is_no_template_and_who_may_not(pages: Pages) -> None:
    model = api_rows.queued(pages.service.db, kind="onnx", op="a.onnx", workload={"file": "a"})
    assert "Save as a template" not in pages.get(f"/dashboard/jobs/{model.id}")
    refused = send(pages, "/dashboard/templates", 422, job=str(model.id), name="x")
    assert "Only jobs of operators and of TIR programs" in words(refused)
    for job in ("99", "x", "", "9" * 20):
        send(pages, "/dashboard/templates", 404, job=job, name="x")
    job_id = api_rows.queued(pages.service.db).id
    form = {"csrf_token": "x", "job": str(job_id), "name": "x"}
    for address in ("/dashboard/templates", "/dashboard/templates/x/delete"):
        assert pages.client.post(address, data=form).status_code == 403
    pages.log_in("read")
    assert "Save as a template" not in pages.get(f"/dashboard/jobs/{job_id}")
    assert "/dashboard/templates" not in pages.get("/dashboard")
    pages.get("/dashboard/templates", 403)
    for address in ("/dashboard/templates", "/dashboard/templates/x/delete"):
        send(pages, address, 403, job=str(job_id), name="x")
    assert stored(pages) == {}
