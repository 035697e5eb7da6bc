"""Every page in process: what it shows, whom it refuses, what it escapes."""

from __future__ import annotations

import html
import json
import re

import pytest

from server.dashboard.pages import job as job_pages
from server.store import artifacts, control, plot_points, progress, trials
from tests.server.dashboard.conftest import TABS, Pages, check_ids, words
from tests.support import api_rows, service_fakes
from tests.support.dashboard import growing

HOSTILE = """<script>alert('1')</script>"><img src=x onerror=alert(2)> & {{ 7*7 }}"""


def test_empty_pages_say_what_to_do(pages: Pages) -> None:
    for address, text in (
        ("", "Submit the first job"),
        ("/submit", "No tuner is alive yet: a job waits until one is"),
        ("/compare", "Tick jobs in the table of jobs"),
        ("/devices", "A device appears when a tuner on its machine starts"),
    ):
        assert text in words(pages.get(f"/dashboard{address}"))


def test_table_shows_figures_and_filters(pages: Pages) -> None:
    service = pages.service
    done = api_rows.finished(service.db, service.blobs, pages.key_id, name="fast one")
    api_rows.queued(service.db, name="slow one", tags=("nightly",), target_key="cuda/sm_90/X")
    text = words(pages.get("/dashboard"))
    assert "fast one" in text and "slow one" in text
    assert "9.09 µs 110×" in text  # best of 100/11 us, unscheduled 1000 us
    for query, names in (
        ("state=succeeded", {"fast one"}),
        ("state=active", {"slow one"}),
        ("q=FAST", {"fast one"}),
        ("tag=nightly", {"slow one"}),
        ("target=cuda", {"slow one"}),
        ("target=llvm", {"fast one"}),
        ("mine=1", {"fast one"}),
        ("q=nothing", set()),
    ):
        page = pages.get(f"/dashboard?{query}")
        listed = {name for name in ("fast one", "slow one") if f">{name}</a>" in page}
        assert listed == names, query
    assert "No job matches" in pages.get("/dashboard?q=nothing")
    assert f"/dashboard/jobs/{done.id}" in pages.get("/dashboard")


def test_pages_of_a_job_at_all_times(pages: Pages) -> None:
    service, key = pages.service, pages.key_id
    cancelled = api_rows.queued(service.db, key)
    service_fakes.write(service.db, control.cancel, cancelled.id)
    made = [
        api_rows.finished(service.db, service.blobs, key),
        api_rows.running(service.db, key, n_tasks=3).job,
        api_rows.queued(service.db, key),
        cancelled,
    ]
    for job in made:
        for tab in TABS:
            page = pages.get(f"/dashboard/jobs/{job.id}{tab}")
            assert f"job {job.id}" in page and 'aria-current="page"' in page


def test_overview_has_figures_tasks_times_and_files(pages: Pages) -> None:
    grows = growing.begun(pages.service.db, 20, pages.key_id, n_tasks=2, trials=64)
    job = grows.finish(pages.service.blobs)
    page = pages.get(f"/dashboard/jobs/{job.id}")
    text = words(page)
    assert "Trials 20 of 64 2 failed" in text
    assert "Search 43 % 22 s 43 %" in text and "Other" in text
    assert "task-0" in text and "task-1" in text and "1.00 MFLOP" in text and "Total" in text
    assert f'href="/v1/jobs/{job.id}/artifacts/felix-job.zip"' in page
    response = pages.client.get(f"/v1/jobs/{job.id}/artifacts/felix-job.zip")
    assert response.content == growing.CONTENT


def test_points_are_the_measured_trials(pages: Pages) -> None:
    claim = api_rows.running(pages.service.db, pages.key_id, n_trials=8)
    response = pages.client.get(f"/dashboard/data/jobs/{claim.job.id}/points?task=0").json()
    assert response["trial"] == [1, 2, 3, 5, 6, 7]
    assert response["latency_us"][0] == 100.0 and response["elapsed_s"][0] == 1.0
    assert pages.client.get("/dashboard/data/jobs/99/points").status_code == 404


def test_trials_page_filters_and_pages(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_pages, "TRIALS_LIMIT", 20)
    grows = growing.begun(pages.service.db, 24, pages.key_id, trials=200)
    at = f"/dashboard/jobs/{grows.claim.job.id}/trials"
    first = pages.get(at)
    assert f"{at}/20" in first and f"{at}/21" not in first and "?after=20" in first
    assert f"{at}/21" in pages.get(f"{at}?after=20")
    failed = pages.get(f"{at}?show=wrong_result")
    assert f'"{at}/15"' in failed and f'"{at}/6"' not in failed
    only_best = pages.get(f"{at}?show=best")
    assert only_best.count("best so far</span>") == only_best.count('data-key="trial-')
    one = words(pages.get(f"{at}/6"))
    assert "Build llvm: register allocation failed" in one and "[5, 2]" in one


def test_search_page_judges_the_cost_model(pages: Pages) -> None:
    service = pages.service
    good = api_rows.running(service.db, pages.key_id, n_trials=24)  # predictions in order
    text = words(pages.get(f"/dashboard/jobs/{good.job.id}/search"))
    assert "Rank correlation 1.000 over 18 trials: the cost model orders" in text
    bad = api_rows.running(service.db, pages.key_id, n_trials=0)
    with service.db.write() as tx:
        for number in range(20):
            new = service_fakes.new_trial(number, 10.0 + number, predicted_us=90.0 - number)
            trials.append(tx, bad.fence, new)
    assert "hardly orders" in words(pages.get(f"/dashboard/jobs/{bad.job.id}/search"))


def test_code_is_marked_and_whole(pages: Pages) -> None:
    grows = growing.begun(pages.service.db, 2, pages.key_id)
    job = grows.finish(pages.service.blobs)
    page = pages.get(f"/dashboard/jobs/{job.id}/code")
    assert '<span class="k">def</span>' in page and " style=" not in page
    text = html.unescape(re.sub(r"<[^>]+>", "", page))
    assert growing.SCHEDULE in text and growing.SOURCE in text and "LLVM IR" in text
    assert growing.ASSEMBLY in text and "Assembly 10 lines" in words(page)
    code = pages.client.get(f"/v1/jobs/{job.id}/tasks/0/code").json()
    assert code["assembly"] == growing.ASSEMBLY


def test_ptx_stands_beside_cuda_code(pages: Pages) -> None:
    claim = api_rows.running(pages.service.db, pages.key_id, n_trials=1)
    source, ptx = 'extern "C" __global__ void main_kernel() {}', ".visible .entry main_kernel()\n"
    with pages.service.db.write() as tx:
        code = artifacts.Code(task=0, schedule=growing.SCHEDULE, source=source, assembly=ptx)
        artifacts.store_code(tx, claim.fence, code)
    page = pages.get(f"/dashboard/jobs/{claim.job.id}/code")
    assert "Generated code (CUDA) 1 line PTX 1 line" in words(page)
    assert '<h2 id="h-assembly">PTX</h2>' in page and '<span class="kr">.entry</span>' in page
    code = pages.client.get(f"/v1/jobs/{claim.job.id}/tasks/0/code").json()
    assert (code["source"], code["assembly"]) == (source, ptx)


#: By sketch, of a trace and of a template: the names of decisions, their values and their text.
NAMED: dict[int, list[tuple[str, list[int], str]]] = {
    1: [
        ("tile of i in <gemm>", [8, 4], "8 × 4"),
        ("unroll_explicit", [64], "64"),
        ("location of pad", [-1], "loops of its own"),
    ],
    7: [("generated kernel", [], "gemm-<x>"), ("rows", [128], "128"), ("stages", [4], "4")],
}


def test_decisions_have_names(pages: Pages) -> None:
    claim = api_rows.running(pages.service.db, pages.key_id, n_trials=1)
    where, at = f"/v1/jobs/{claim.job.id}/trials", f"/dashboard/jobs/{claim.job.id}/trials"
    labels = {
        str(sketch): [(name if of else f"{name} {text}", len(of)) for name, of, text in named]
        for sketch, named in NAMED.items()
    }
    service_fakes.write(pages.service.db, progress.opened, claim.fence, 0, 8, 0.1, labels)
    for number, (sketch, named) in enumerate(NAMED.items(), start=2):
        decisions = [value for _, values, _ in named for value in values]
        new = service_fakes.new_trial(9, 9.0, sketch_index=sketch, decisions=tuple(decisions))
        assert service_fakes.add(pages.service.db, claim.fence, new).number == number
        page = words(pages.get(f"{at}/{number}"))
        assert " ".join(f"{name} {text}" for name, _, text in named) in page
        trial = pages.client.get(f"{where}/{number}").json()
        assert trial["decisions"] == decisions
        assert [tuple(each.values()) for each in trial["named_decisions"]] == named
    listed = pages.client.get(where).json()["items"]
    lines = pages.client.get(f"{where}.jsonl").text.splitlines()
    assert listed == [json.loads(line) for line in lines] and listed[number - 1] == trial
    assert set(trial["named_decisions"][0]) == {"name", "values", "text"}
    assert listed[0]["named_decisions"] is None
    older = words(pages.get(f"{at}/1"))
    assert "their names were not stored" in older and "[0, 2]" in older


def test_log_is_paged_newest_first(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_pages, "LOG_LIMIT", 20)
    grows = growing.begun(pages.service.db, 23, pages.key_id, trials=400)
    at = f"/dashboard/jobs/{grows.claim.job.id}/log"
    short = pages.get(at)
    assert "event-2" in short and ">trial<" not in short
    newest = pages.get(f"{at}?all=1")
    last = service_fakes.get(pages.service.db, grows.claim.job.id).last_seq
    assert f"event-{last}" in newest and f"event-{last - 19}" in newest
    older = pages.get(f"{at}?all=1&before={last - 19}")
    assert f'"event-{last - 20}"' in older and f'"event-{last - 19}"' not in older
    assert '"event-1"' in older


def test_compare_takes_numbers_in_any_writing(pages: Pages) -> None:
    service = pages.service
    one = api_rows.finished(service.db, service.blobs, pages.key_id, name="first")
    two = api_rows.running(service.db, pages.key_id, name="second").job
    page = pages.get(f"/dashboard/compare?job={one.id}&job=%23{two.id},+77")
    assert f'data-jobs="{one.id},{two.id}"' in page
    assert "There is no job 77" in page and "first" in page and "second" in page
    many = "&".join(f"job={number}" for number in range(1, 50))
    assert "Only the first 32 jobs" in pages.get(f"/dashboard/compare?{many}")
    pages.get("/dashboard/compare?job=99999999999999999999")


def test_devices_tell_who_is_alive_and_what_is_broken(pages: Pages) -> None:
    growing.tuner(pages.service.db, fault="no memory is left", unconfined="304 in cuInit")
    fault = "the noise probe takes 2.1 times as long as it did"
    sick = {"place": "cuda:1", "host": "rack-7", "fault": fault}
    service_fakes.report_device(pages.service.db, sick)
    text = words(pages.get("/dashboard/devices"))
    assert "test cpu 1 tuner" in text and "Peak float32 154 GFLOP/s" in text
    assert "L1 32 KiB" in text and "bench-1" in text and "idle" in text
    assert "cannot be used: no memory is left" in text
    assert "not confined: 304 in cuInit" in text
    assert f"rack-7 cuda:1 measures nothing: {fault} 3" in text
    assert "10 % of 50 1.70 GHz 512 W 550.1" in text


def test_actions_follow_the_state_and_the_key(pages: Pages) -> None:
    service = pages.service
    mine = api_rows.queued(service.db, pages.key_id)
    other = api_rows.queued(service.db, service.keys["admin"].key.id)

    def verbs(job_id: int) -> set[str]:
        page = pages.get(f"/dashboard/jobs/{job_id}")
        return {
            v for v in ("pause", "resume", "stop", "cancel", "retry") if f'data-verb="{v}"' in page
        }

    assert verbs(mine.id) == {"pause", "cancel"}
    assert verbs(other.id) == set()
    csrf = {"csrf_token": pages.csrf}
    response = pages.client.post(f"/dashboard/jobs/{mine.id}/pause", data=csrf)
    assert response.status_code == 303
    assert verbs(mine.id) == {"resume", "cancel"}
    response = pages.client.post(f"/dashboard/jobs/{mine.id}/retry", data=csrf)
    assert response.status_code == 409 and "cannot be retried" in response.text
    response = pages.client.post(f"/dashboard/jobs/{other.id}/cancel", data=csrf)
    assert response.status_code == 403
    assert pages.client.post(f"/dashboard/jobs/{mine.id}/explode", data=csrf).status_code == 404
    assert service_fakes.get(service.db, other.id).state == "queued"


def test_hostile_names_are_text(pages: Pages) -> None:
    service = pages.service
    claim = api_rows.running(
        service.db,
        pages.key_id,
        n_trials=4,
        name=HOSTILE,
        note=HOSTILE,
        tags=(HOSTILE[:60],),
        op=HOSTILE,
        workload={"params": {HOSTILE: HOSTILE}, "left_out": [HOSTILE]},
    )
    with service.db.write() as tx:
        new = service_fakes.new_trial(50, None, message=HOSTILE, error="build", device=HOSTILE)
        number = trials.append(tx, claim.fence, new).number
    at = f"/dashboard/jobs/{claim.job.id}"
    for address in (
        "/dashboard",
        f"/dashboard/compare?job={claim.job.id}",
        f"{at}/trials/{number}",
        "/dashboard?q=%3Cscript%3E%22",
        "/dashboard?tag=%22%3E%3Cscript%3E&target=%3Cscript%3E",
        *(f"{at}{tab}" for tab in TABS),
    ):
        page = pages.get(address)
        assert "<script>alert" not in page and "<img src=x" not in page, address
        assert '"><script>' not in page and "<script>&#34;" not in page, address
    assert "{{ 7*7 }}" in pages.get(at)


@pytest.mark.parametrize(
    "address",
    [
        "/dashboard/jobs/99",
        "/dashboard/jobs/99/trials",
        "/dashboard/jobs/x",
        "/dashboard/jobs/1/trials/999",
        "/dashboard/jobs/1/code?task=9",
        "/dashboard/nothing",
        "/dashboard/submit?op=nothing",
        "/dashboard/submit?like=99",
        "/dashboard/jobs/99999999999999999999",
    ],
)
def test_missing_things_are_pages(pages: Pages, address: str) -> None:
    api_rows.queued(pages.service.db, pages.key_id)
    page = pages.get(address, 404)
    assert (
        "<h1>Not found</h1>" in page and 'href="/dashboard"' in page and "<!doctype html>" in page
    )


def test_pages_forbid_foreign_content(pages: Pages) -> None:
    response = pages.client.get("/dashboard")
    policy = response.headers["content-security-policy"]
    scripts = next(part for part in policy.split("; ") if part.startswith("script-src"))
    assert "unsafe" not in scripts and "'self'" in scripts
    assert response.headers["cache-control"] == "no-store"
    page = response.text
    assert "http://" not in page.replace("http://testserver", "") and "https://" not in page
    assert "onclick=" not in page and "javascript:" not in page


def test_assets_are_cached_by_browsers_and_packed(logged_out: Pages) -> None:
    page = logged_out.get("/dashboard/login")
    address = page.split('stylesheet" href="')[1].split('"')[0]
    response = logged_out.client.get(address)
    assert response.status_code == 200 and "immutable" in response.headers["cache-control"]
    assert response.headers["content-type"].startswith("text/css")
    assert response.headers["content-encoding"] == "gzip" and ":root" in response.text
    plotly = logged_out.client.get(address.replace("base.css", "plotly.min.js"))
    assert plotly.status_code == 200 and "plotly.js v" in plotly.text[:200]
    old = logged_out.client.get("/dashboard/assets/0123/base.css")
    assert old.status_code == 200 and old.headers["cache-control"] == "no-cache"
    for name in ("routers.py", "..%2frouters.py", "nothing.js"):
        response = logged_out.client.get(f"/dashboard/assets/0123/{name}")
        assert response.status_code in (303, 404)


def test_ids_are_unique_and_fields_have_labels(pages: Pages) -> None:
    api_rows.running(pages.service.db, pages.key_id, n_tasks=2)
    for address in ("/dashboard", "/dashboard/submit", "/dashboard/jobs/1"):
        check_ids(pages.get(address))
    pages.log_in("admin")
    for address in ("/dashboard/keys", "/dashboard/audit"):
        check_ids(pages.get(address))
    check_ids(pages.send("/dashboard/keys", 422, name="", scope=[]))


def test_a_job_is_changed_and_deleted_by_its_owner(pages: Pages) -> None:
    service = pages.service
    mine = api_rows.finished(service.db, service.blobs, pages.key_id, name="before")
    other = api_rows.queued(service.db, service.keys["admin"].key.id)
    at, csrf = f"/dashboard/jobs/{mine.id}", {"csrf_token": pages.csrf}
    form = {**csrf, "name": "after", "tags": "b, a,", "priority": "7", "note": "why <b>"}
    assert pages.client.post(f"{at}/change", data=form).status_code == 303
    changed = service_fakes.get(service.db, mine.id)
    assert (changed.name, changed.tags, changed.priority) == ("after", ("a", "b"), 7)
    assert "why &lt;b&gt;" in pages.get(at)
    wrong = pages.client.post(f"{at}/change", data=form | {"priority": "high"})
    assert wrong.status_code == 422 and "Priority: " in words(wrong.text)
    there = f"/dashboard/jobs/{other.id}"
    assert "Change name" not in pages.get(there)
    assert pages.client.post(f"{there}/change", data=form).status_code == 403
    assert pages.client.post(f"{there}/delete", data=csrf).status_code == 403
    response = pages.client.post(f"{at}/delete", data=csrf)
    assert response.status_code == 303 and response.headers["location"] == "/dashboard"
    pages.get(at, 404)
    running = api_rows.running(service.db, pages.key_id).job
    response = pages.client.post(f"/dashboard/jobs/{running.id}/delete", data=csrf)
    assert response.status_code == 409 and "cancel it first" in words(response.text).lower()


def test_of_many_trials_a_share_is_drawn_and_all_improvements(pages: Pages) -> None:
    claim = api_rows.running(pages.service.db, pages.key_id, n_trials=0)
    with pages.service.db.write() as tx:
        for number in range(40):
            new = service_fakes.new_trial(number, 50.0 if number == 36 else 100.0 + number)
            trials.append(tx, claim.fence, new)
    with pages.service.db.read() as tx:
        every = plot_points.points(tx, claim.job.id)
        some = plot_points.points(tx, claim.job.id, most=10)
        late = plot_points.points(tx, claim.job.id, after=38)
    assert [point[0] for point in every] == list(range(1, 41))
    assert [point[0] for point in some] == [1, *range(4, 37, 4), 37, 40]
    assert [point[0] for point in late] == [39, 40]
