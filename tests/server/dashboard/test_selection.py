"""The table of jobs, batches and templates: what is done with several jobs, and made of one."""

from __future__ import annotations

import re
from typing import Any

import pytest

from server import states
from server.dashboard.pages import batches
from server.dashboard.pages import jobs as jobs_page
from server.store import control, job_lists, jobs, leases, requests
from tests.server.conftest import GEMM
from tests.server.dashboard.conftest import Pages, words
from tests.support import api_rows, service_fakes

S = states.State


def names(page: str) -> list[str]:
    """The jobs of a table, in its order."""
    return re.findall(r'class="name" href="[^"]*" title="([^"]*)"', page)


def act(pages: Pages, verb: str, *numbers: int, **more: str) -> Any:
    """The response to the form of a selection as a browser sends it."""
    selected = [str(number) for number in numbers]
    form = {"csrf_token": pages.csrf, "verb": verb, "job": selected, **more}
    return pages.client.post("/dashboard/selection", data=form)


def test_the_table_is_sorted_on_the_server_and_paged(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_page, "LIMIT", 10)
    for number in range(13):
        api_rows.queued(pages.service.db, name=f"j{number:02}", priority=number % 5)
    ordered = [f"j{number:02}" for number in range(13)]
    for query, expected in (("", ordered[::-1]), ("?sort=name", ordered)):
        first = pages.get(f"/dashboard{query}")
        assert names(first) == expected[:10]
        assert ('aria-sort="ascending"' in first) == bool(query)
        following = re.search(r'href="([^"]+)" rel="next"', first)
        assert following is not None
        second = pages.get(following[1].replace("&amp;", "&"))
        assert names(second) == expected[10:] and "Older" not in second
    assert names(pages.get("/dashboard?sort=-name"))[0] == "j12"
    assert names(pages.get("/dashboard?sort=priority"))[:2] == ["j09", "j04"]
    assert names(pages.get("/dashboard?sort=nonsense"))[0] == "j12"
    for bad in ("sort=name&after=4", "after=x", "sort=latency&after=4:NaN"):
        pages.get(f"/dashboard?{bad}", 422)


def test_owner_priority_and_the_reason_of_a_failure_are_shown(pages: Pages) -> None:
    service = pages.service
    claim = api_rows.running(service.db, service.keys["admin"].key.id, name="breaks")
    with service.db.write() as tx:
        leases.fail(tx, claim.fence, "wrong_result", "C[0] is 1 <not> 2", None)
    api_rows.queued(service.db, pages.key_id, name="urgent", priority=42)
    text = words(pages.get("/dashboard"))
    assert "wrong result: C[0] is 1 <not> 2" in text
    assert "breaks #1 · gemm wrong result: C[0] is 1 <not> 2 failed admin" in text
    assert "urgent #2 · gemm queued submitter P priority 42" in text


def test_a_selection_is_paused_resumed_and_retried(pages: Pages) -> None:
    db = pages.service.db
    one, two = (api_rows.queued(db, pages.key_id).id for _ in range(2))
    page = pages.get("/dashboard")
    assert 'data-verbs="pause cancel"' in page and "formaction" not in page
    response = act(pages, "pause", one, two, back="/dashboard?sort=name")
    assert response.status_code == 303
    assert response.headers["location"] == "/dashboard?sort=name"
    assert {service_fakes.get(db, number).state for number in (one, two)} == {S.PAUSED}
    act(pages, "resume", two)
    response = act(pages, "pause", one, two, 99)
    text = words(response.text)
    assert response.status_code == 200 and "1 of 3 not paused" in text
    assert "#99 there is no job 99" in text and f"Done: #{one}, #{two}." in text
    assert service_fakes.get(db, two).state is S.PAUSED


def test_what_cannot_be_undone_is_asked_for_first(pages: Pages) -> None:
    db = pages.service.db
    one, two = (api_rows.queued(db, pages.key_id, name=f"<b>{n}</b>").id for n in range(2))
    question = act(pages, "cancel", one, two)
    assert question.status_code == 200 and "Cancel 2 jobs?" in question.text
    assert "<b>0</b>" in words(question.text) and "<b>0</b>" not in question.text
    assert service_fakes.get(db, one).state is S.QUEUED
    act(pages, "cancel", one, two, sure="1")
    assert service_fakes.get(db, one).state is S.CANCELLED
    act(pages, "delete", one, sure="1")
    assert [job.id for job in service_fakes.read(db, job_lists.page).items] == [two]


def test_a_selection_is_refused_as_single_jobs_are(pages: Pages) -> None:
    db = pages.service.db
    mine = api_rows.queued(db, pages.key_id).id
    foreign = api_rows.queued(db, pages.service.keys["admin"].key.id).id
    response = act(pages, "pause", mine, foreign)
    assert "1 of 2 not paused" in words(response.text) and "another key" in response.text
    assert service_fakes.get(db, foreign).state is S.QUEUED
    assert act(pages, "explode", mine).status_code == 404
    away = act(pages, "resume", mine, back="https://evil.example/")
    assert away.headers["location"] == "/dashboard"
    assert "there is no job" in act(pages, "pause", 999999999, sure="1").text
    assert "No job is selected" in act(pages, "delete").text
    compared = act(pages, "compare", mine, foreign)
    assert compared.headers["location"] == f"/dashboard/compare?job={mine}&job={foreign}"


PROBLEM = {
    "title": "Invalid request",
    "status": 422,
    "detail": "not <valid>",
    "errors": [{"where": "#/trials", "message": "too few"}],
}


def batch_of(pages: Pages, *job_ids: int, scope: str = "submit", n_refused: int = 0) -> int:
    """A batch of a key with these jobs."""
    items = [{"job_id": number} for number in job_ids] + [{"problem": PROBLEM}] * n_refused
    with pages.service.db.write() as tx:
        return requests.create_batch(tx, pages.service.keys[scope].key.id, items, None).id


def test_a_batch_shows_its_jobs_and_what_was_refused(pages: Pages) -> None:
    assert "A batch is what one request submits" in words(pages.get("/dashboard/batches"))
    db, key_id = pages.service.db, pages.key_id
    done = api_rows.finished(db, pages.service.blobs, key_id, name="done <b>")
    waits, gone = (api_rows.queued(db, key_id, name=name).id for name in ("waits", "gone"))
    number = batch_of(pages, done.id, waits, gone, n_refused=1)
    service_fakes.write(db, control.cancel, gone)
    service_fakes.write(db, control.delete, gone)
    text = words(pages.get("/dashboard/batches"))
    assert "Batch 1 3 jobs 1 queued , 1 succeeded 2 / 3 1 submitter" in text
    page = pages.get(f"/dashboard/batches/{number}")
    text = words(page)
    assert "1 queued 1 succeeded 1 refused by submitter" in text
    assert f"done <b> #{done.id} succeeded" in text and f"#{gone} deleted since" in text
    assert "Item 4 refused not <valid> #/trials too few" in text and "done <b>" not in page
    assert f'href="/dashboard/compare?job={done.id},{waits}"' in page
    assert 'data-verbs="pause cancel"' in page and 'data-verbs="delete"' in page


def test_a_batch_is_cancelled_after_a_question(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_page, "LIMIT", 5)
    db, key_id = pages.service.db, pages.key_id
    jobs = [api_rows.queued(db, key_id).id for _ in range(9)]  # more than a page of jobs
    number = batch_of(pages, *jobs)
    page = pages.get(f"/dashboard/batches/{number}").partition('<form method="post" action="/dash')
    form = page[2].partition("board/selection")[2].partition("</form>")[0]
    fields = re.findall(r'name="(\w+)" value="([^"]*)"', form)
    data: dict[str, list[str]] = {}
    for name, value in fields:
        data.setdefault(name, []).append(value)
    assert "Cancel 9 unfinished" in form and len(data["job"]) == 9
    question = pages.client.post("/dashboard/selection", data=data)
    assert "Cancel 9 jobs?" in question.text
    assert service_fakes.get(db, jobs[0]).state is states.State.QUEUED
    answer = pages.client.post("/dashboard/selection", data=data | {"sure": ["1"]})
    assert answer.headers["location"] == f"/dashboard/batches/{number}"
    assert {service_fakes.get(db, each).state for each in jobs} == {states.State.CANCELLED}
    assert "unfinished" not in words(pages.get(f"/dashboard/batches/{number}"))


def test_batches_are_of_a_key(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = batch_of(pages), batch_of(pages, scope="admin")
    listed = pages.get("/dashboard/batches")
    assert f"/batches/{mine}" in listed and f"/batches/{other}" not in listed
    pages.get(f"/dashboard/batches/{other}", 404)
    pages.log_in("admin")
    monkeypatch.setattr(batches, "LIMIT", 1)
    newest = pages.get("/dashboard/batches")
    assert f"/batches/{other}" in newest and f'href="?after={other}" rel="next"' in newest
    assert f"/batches/{mine}" in pages.get(f"/dashboard/batches?after={other}")
    pages.get(f"/dashboard/batches/{mine}")


EIGHT = {"m": 8, "n": 8, "k": 8}
PARAMS = {"m": 16, "n": 16, "k": 16, "epilogue": ["bias"]}


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
    listed = service_fakes.read(pages.service.db, requests.templates, pages.key_id)
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
    saved = pages.send("/dashboard/templates", 303, job=str(job.id), name="nightly")
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
    made = pages.send("/dashboard/submit", 303, **(fields | {"p.m": "32"}))
    new = pages.job(made)
    assert new.workload["params"] == PARAMS | {"m": 32}
    assert (new.trials, new.seed, new.tags, new.options) == (12, 3, ("a", "b"), {"round_size": 4})
    assert pages.send("/dashboard/templates/nightly/delete", 303) == "/dashboard/templates"
    assert stored(pages) == {}
    pages.send("/dashboard/templates/nightly/delete", 404)
    pages.get("/dashboard/submit?template=nightly", 404)


def test_a_template_of_a_program_is_submitted_with_other_settings(pages: Pages) -> None:
    first = pages.client.post("/v1/jobs", json=GEMM, headers=pages.service.auth("submit")).json()
    program = service_fakes.read(pages.service.db, jobs.programs, first["id"])[0]
    workload = {"kind": "tir", "name": "soft.json", "program": program}
    with pages.service.db.write() as tx:
        job_of_template = {"workload": workload, "reuse": False, "trials": 5}
        requests.save_template(tx, pages.key_id, "soft", job_of_template)
    page = pages.get("/dashboard/submit?template=soft")
    fields = form_of(page)
    assert (fields["source"], fields["template"], fields["trials"]) == ("template", "soft", "5")
    assert re.search(r'name="begin_anew" value="on" checked', page)
    wrong = pages.send("/dashboard/submit", 422, **(fields | {"trials": "0"}))
    assert 'id="f-trials-wrong"' in wrong and 'name="template" value="soft"' in wrong
    made = pages.send("/dashboard/submit", 303, **(fields | {"trials": "7"}))
    number = int(made.rsplit("/", 1)[1])
    job = service_fakes.read(pages.service.db, jobs.get, number)
    assert service_fakes.read(pages.service.db, jobs.programs, number) == [program]
    assert (job.kind, job.op, job.trials) == ("tir", "soft.json", 7)
    pages.send("/dashboard/templates", 303, job=str(number), name="again")
    again = stored(pages)["again"]
    assert again == {"workload": workload, "trials": 7}
    pages.send("/dashboard/submit", 404, **(fields | {"template": "none"}))


@pytest.mark.parametrize("name", ["", "a b", "../x", "-a", "a" * 101])
def test_a_name_that_is_none_is_refused(pages: Pages, name: str) -> None:
    job = api_rows.queued(pages.service.db)
    page = pages.send("/dashboard/templates", 422, job=str(job.id), name=name)
    assert "The name of a template has letters" in page and stored(pages) == {}


def test_a_strategy_that_left_is_shown_and_refused(pages: Pages) -> None:
    sentence = "here is no strategy 'random': use gradient or local"
    job = api_rows.queued(pages.service.db, workload={"params": PARAMS}, strategy="random")
    assert "random" in words(pages.get(f"/dashboard/jobs/{job.id}"))
    refused = pages.send("/dashboard/templates", 422, job=str(job.id), name="x")
    assert sentence in words(refused) and stored(pages) == {}
    page = pages.get(f"/dashboard/submit?like={job.id}")
    assert "<option selected>random</option>" in page
    again = pages.send("/dashboard/submit", 422, **form_of(page), strategy="random")
    assert sentence in words(again)


def test_what_is_no_template_and_who_may_not(pages: Pages) -> None:
    model = api_rows.queued(pages.service.db, kind="onnx", op="a.onnx", workload={"file": "a"})
    assert "Save as a template" not in pages.get(f"/dashboard/jobs/{model.id}")
    refused = pages.send("/dashboard/templates", 422, job=str(model.id), name="x")
    assert "Only jobs of operators and of TIR programs" in words(refused)
    for job in ("99", "x", "", "9" * 20):
        pages.send("/dashboard/templates", 404, job=job, name="x")
    job_id = api_rows.queued(pages.service.db).id
    pages.log_in("read")
    assert "Save as a template" not in pages.get(f"/dashboard/jobs/{job_id}")
