"""Dashboard and consoles over a real Prometheus that scrapes a real daemon under load."""

import contextlib
import json
import re
import shutil
import subprocess
from html import unescape

import pytest
from conftest import ROOT, Process, Prometheus
from metrics_page import PAGE, page_rows

DASHBOARD = json.loads((ROOT / "monitoring/grafana/kvtier.json").read_text())
GRID_COLUMNS = 24
BROWSER = shutil.which("chromium")


@pytest.fixture(scope="module")
def prometheus(daemon, request, tmp_path_factory):
    """The ladder fills while Prometheus starts, which takes it some seconds; then the load goes on."""
    with contextlib.ExitStack() as stack:
        started = Prometheus(tmp_path_factory.mktemp("prometheus"), daemon)
        stack.callback(started.stop)
        request.getfixturevalue("loaded_daemon")
        load = Process(daemon.load_arguments("--seconds", "100", "--rate", "40", "--seed", "2"),
                       tmp_path_factory.mktemp("load") / "load.log")
        stack.callback(load.stop)
        started.wait_for_rates()
        yield started


def panels():
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions():
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def in_prometheus(expression):
    """What Grafana fills in, all daemons being chosen."""
    return expression.replace("$__rate_interval", "1m").replace("$instance", ".*")


def test_every_expression_of_the_dashboard_has_series(prometheus):
    empty = [f"{title}: {expression}" for title, expression in expressions()
             if not prometheus.query(in_prometheus(expression))]
    assert empty == []


def test_an_expression_without_series_is_found(prometheus):
    assert prometheus.query(in_prometheus('sum(kvtier_sessions{instance=~"$instance"})'))
    assert not prometheus.query(in_prometheus('sum(kvtier_session{instance=~"$instance"})'))


def test_the_dashboard_is_one_that_grafana_takes():
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(numbers) == len(set(numbers))
    taken = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= GRID_COLUMNS, panel["title"]
        taken |= cells
    for panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
        references = [target["refId"] for target in panel["targets"]]
        assert references and len(references) == len(set(references)), panel["title"]
    assert {variable["name"] for variable in DASHBOARD["templating"]["list"]} == {"datasource", "instance"}


def test_the_dashboard_shows_every_alert_and_uses_metrics_of_the_page():
    known = set(page_rows(PAGE.read_text()))
    known |= {f"{name}_{part}" for name in known for part in ("bucket", "count", "sum")}
    for title, expression in expressions():
        assert set(re.findall(r"\bkvtier_\w+", expression)) <= known, title
        assert 'instance=~"$instance"' in expression, title


def plots(page):
    return [unescape(expression) for expression in re.findall(r'data-expr="([^"]*)"', page)]


def test_consoles_show_numbers_and_every_plot_has_series(prometheus, loaded_daemon):
    overview = prometheus.console("kvtier.html")
    at = f"127.0.0.1:{loaded_daemon.port}"
    (row,) = re.findall(rf"<tr><td>{at}</td><td><span class=\"good\">yes.*?</tr>", overview, re.DOTALL)
    assert re.search(r"\d%</td>", row)
    for tier in loaded_daemon.tiers:
        assert f'href="kvtier-tier.html?tier={tier}"' in overview
        page = prometheus.console(f"kvtier-tier.html?tier={tier}")
        assert f"<h1>Tier {tier}</h1>" in page and at in page
        assert ("Written a second" in page) == (tier == "cold")
        for expression in plots(page):
            assert prometheus.query(expression.replace("$window", "60s")), (tier, expression)
    for expression in plots(overview):
        assert prometheus.query(expression.replace("$window", "60s")), expression


def test_a_console_of_an_unknown_tier_says_so(prometheus):
    assert "No daemon has a tier of this name" in prometheus.console("kvtier-tier.html?tier=tepid")


@pytest.mark.skipif(BROWSER is None, reason="no chromium here to open the consoles")
@pytest.mark.parametrize("page", ["kvtier.html", "kvtier-tier.html?tier=cold"])
def test_a_browser_draws_a_line_in_every_plot(prometheus, page, tmp_path):
    done = subprocess.run([BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}",
                           "--virtual-time-budget=3000", "--dump-dom", f"{prometheus.url}/consoles/{page}"],
                          capture_output=True, text=True, timeout=60)
    figures = re.findall(r"<figure.*?</figure>", done.stdout, re.DOTALL)
    assert len(figures) == len(plots(prometheus.console(page))) > 0
    for figure in figures:
        (lines, legend) = re.findall(r'<polyline points="([^"]+)"', figure), re.findall(r"<span>", figure)
        assert lines and len(lines) == len(legend), figure
