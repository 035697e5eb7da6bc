"""What charts draw: of the same moment as the page's figures, and focused on the best."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest

from server.store import plot_points, trials
from tests.server.dashboard.conftest import Pages
from tests.support import api_rows, service_fakes
from tests.support.dashboard import browser, growing
from tests.support.dashboard.browser import until
from tests.support.live_service import Served


def data_of(page: str) -> dict[str, Any]:
    """What a page's charts draw."""
    block = re.search(r'<script type="application/json" id="chart-data">(.*?)</script>', page)
    assert block is not None
    data: dict[str, Any] = json.loads(block[1])
    return data


def test_charts_are_of_the_moment_of_the_figures(pages: Pages) -> None:
    db, key_id = pages.service.db, pages.key_id
    claim = api_rows.running(db, key_id, n_tasks=2, n_trials=6)
    at = f"/dashboard/jobs/{claim.job.id}"
    for number in range(6, 9):
        page = pages.get(at)
        data = data_of(page)
        assert f'data-seq="{data["seq"]}"' in page
        assert data["n_trials"] == number
        search = data_of(pages.get(f"{at}/search"))
        assert search["seq"] == data["seq"] and search["trial"][-1] <= number
        service_fakes.add(db, claim.fence, service_fakes.new_trial(number, 10.0))
    response = pages.client.get(f"/dashboard/data/jobs/{claim.job.id}/points?after=2&up_to=6")
    assert response.json()["trial"] == [3, 5, 6]


def test_each_task_has_its_curve_from_its_first_trial_on(pages: Pages) -> None:
    db = pages.service.db
    claim = api_rows.running(db, pages.key_id, n_tasks=3, n_trials=5)
    with db.read() as tx:
        assert plot_points.curves(tx, [claim.job.id])[claim.job.id] == []
        by_task = plot_points.task_curves(tx, claim.job.id)
        assert by_task == {0: plot_points.curves(tx, [claim.job.id], 0)[claim.job.id]}
    data = data_of(pages.get(f"/dashboard/jobs/{claim.job.id}"))
    assert data["total"]["trial"] == []
    assert data["tasks"][0]["trial"] == [1, 2, 3, 5] and data["tasks"][1]["trial"] == []
    with db.write() as tx:  # measured again: only that counts of it
        trials.remeasure(tx, claim.fence, service_fakes.new_trial(4, 80.0))
        trials.append(tx, claim.fence, service_fakes.new_trial(90, 7.0, task=1))
        trials.append(tx, claim.fence, service_fakes.new_trial(91, 8.0, task=2))
    with db.read() as tx:
        by_task = plot_points.task_curves(tx, claim.job.id)
        for task in range(3):
            assert by_task[task] == plot_points.curves(tx, [claim.job.id], task)[claim.job.id]
        total = plot_points.curves(tx, [claim.job.id])[claim.job.id]
    weighted = sum((task + 1) * by_task[task][-1].best_us for task in range(3))
    assert total[-1].best_us == pytest.approx(weighted)


def test_names_in_a_chart_s_data_are_text(pages: Pages) -> None:
    name = "</script><script>alert(1)</script>"
    claim = api_rows.running(pages.service.db, pages.key_id, name=name)
    page = pages.get(f"/dashboard/compare?job={claim.job.id}")
    assert data_of(page)["jobs"][0]["name"] == name and name not in page
    assert html.escape(name) in page


LAYOUT = "document.getElementById('{}')._fullLayout"


def wait_for(page: Any, chart: str) -> None:
    page.wait_for_selector(f"#{chart}[data-points] .main-svg")


@pytest.mark.slow("a browser draws, as in others")
@browser.only
def test_outliers_leave_the_axis_to_the_best(page: Any, site: Served) -> None:
    claim = api_rows.running(site.db, n_trials=0, trials=64)
    for number in range(40):
        latency_us = 1e6 if number % 8 == 3 else 100.0 + number % 7
        service_fakes.add(site.db, claim.fence, service_fakes.new_trial(number, latency_us))
    page.goto(f"/dashboard/jobs/{claim.job.id}")
    wait_for(page, "convergence")
    layout = LAYOUT.format("convergence")
    top_us = 10 ** page.evaluate(f"{layout}.yaxis.range[1]")
    assert 106 < top_us < 200
    figures = "document.getElementById('convergence').data"
    assert page.evaluate(f"{figures}.filter(t => t.name === 'slower trial')[0].x.length") == 5
    ticks = page.evaluate(
        "[...document.querySelectorAll('#convergence .xtick text')].map(t => t.textContent)"
    )
    assert (
        len(ticks) > 3
        and all(tick.isdecimal() for tick in ticks)
        and len(set(ticks)) == len(ticks)
    )
    page.get_by_label("Slowest trials").check()
    until(page, f"{layout}.yaxis.range[1] > Math.log10(999)")  # a second; the unit may be ms
    page.evaluate("Plotly.relayout('convergence', {'xaxis.range': [1.2, 3.4]})")
    until(page, f"{layout}.xaxis.dtick === 1")


@pytest.mark.slow("tunes a network before a browser")
@browser.only
def test_a_network_is_seen_from_its_first_task_on(page: Any, site: Served) -> None:
    grows = growing.begun(site.db, 5, n_tasks=3, trials=64)
    page.goto(f"/dashboard/jobs/{grows.claim.job.id}")
    wait_for(page, "convergence")
    names = "document.getElementById('convergence').data.map(trace => trace.name)"
    assert page.evaluate(names) == ["task-0", "sum of 1 of 3"]
    grows.step(19)
    until(page, f"{names}.includes('all 3 tasks')")
    last = "document.getElementById('convergence').data.at(-1).x.at(-1)"
    tiles = "document.querySelector('.tiles').textContent"
    until(page, f"{tiles}.replace(/\\s+/g, ' ').includes(`${{{last}}} of 64`)")


@pytest.mark.slow("another page with charts in a browser")
@browser.only
def test_shares_end_at_100_percent_and_never_pass_it(page: Any, site: Served) -> None:
    for factor in (1.0, 1.3):
        claim = api_rows.running(site.db, n_trials=4, name=f"times {factor}")
        lucky = service_fakes.new_trial(2, 50.0 * factor)  # measured again: twice as long
        service_fakes.write(site.db, trials.remeasure, claim.fence, lucky)
    page.goto("/dashboard/compare?job=1&job=2")
    wait_for(page, "curves")
    for choice in ("% of each job's best", "% of the best of all"):
        page.locator("#compare-y").select_option(choice)
        until(page, f"{LAYOUT.format('curves')}.yaxis.title.text.startsWith('%')")
        page.wait_for_timeout(200)
        ys = page.evaluate("document.getElementById('curves').data.map(trace => trace.y)")
        assert max(max(y) for y in ys) == 100 == ys[0][-1]
        assert page.evaluate(f"{LAYOUT.format('curves')}.yaxis.range[1]") >= 100


@pytest.mark.slow("another page with charts in a browser")
@browser.only
def test_the_toolbar_shares_nothing_and_has_the_page_s_colours(page: Any, site: Served) -> None:
    claim = api_rows.running(site.db, n_trials=8)
    page.emulate_media(color_scheme="light")
    page.goto(f"/dashboard/jobs/{claim.job.id}")
    wait_for(page, "convergence")
    titles = page.evaluate(
        "[...document.querySelectorAll('.modebar-btn')].map(b => b.getAttribute('data-title'))"
    )
    assert len(titles) == 6
    assert not [title for title in titles if re.search("plotly|cloud|share|edit", title, re.I)]
    assert "plotly.com" not in page.content()
    fill = "getComputedStyle(document.querySelector('.modebar-btn path')).fill"
    light = page.evaluate(fill)
    page.emulate_media(color_scheme="dark")
    until(page, f"{fill} !== '{light}'")
