"""monitoring/METRICS.md is what a loaded daemon exports, no less and no more, and keeps to Prometheus' conventions."""

import re
import subprocess

import pytest
from metrics_page import PAGE, exposition, page_rows

UNITS_IN_NAMES = {"bytes", "seconds", "ratio", "blocks"}


@pytest.fixture(scope="module")
def scrape(loaded_daemon):
    return loaded_daemon.metrics()


@pytest.fixture(scope="module")
def exported(scrape):
    return exposition(scrape)


@pytest.fixture(scope="module")
def page():
    return page_rows(PAGE.read_text())


def differences(page, exported):
    yield from (f"{name}: on the page only" for name in sorted(page.keys() - exported.keys()))
    yield from (f"{name}: exported only" for name in sorted(exported.keys() - page.keys()))
    for name in sorted(page.keys() & exported.keys()):
        mine, theirs = page[name], exported[name]
        if mine.type != theirs.type:
            yield f"{name}: {mine.type} on the page, exported as {theirs.type}"
        if mine.meaning != theirs.meaning:
            yield f"{name}: the page says '{mine.meaning}', HELP '{theirs.meaning}'"
        if mine.labels.keys() != theirs.labels.keys():
            yield f"{name}: labels {sorted(mine.labels)} on the page, {sorted(theirs.labels)} exported"
            continue
        for label, values in mine.labels.items():
            if values is not None and values != theirs.labels[label]:
                yield f"{name}: {label} is one of {sorted(values)} on the page, {sorted(theirs.labels[label])} exported"


def test_the_page_and_the_daemon_say_the_same(page, exported):
    assert list(differences(page, exported)) == []


def test_a_difference_of_any_kind_is_found(exported):
    def found(line, replacement):
        text = PAGE.read_text()
        assert text.count(line) == 1, line
        return list(differences(page_rows(text.replace(line, replacement)), exported))

    row = "| `kvtier_models` | gauge | | models | Models known. |"
    assert len(found(row, "")) == 1
    assert len(found(row, row.replace("kvtier_models", "kvtier_modules"))) == 2
    assert len(found(row, row.replace("gauge", "counter"))) == 1
    assert len(found(row, row.replace("known", "unknown"))) == 1
    assert len(found(row, row.replace("| |", "| `tier` |"))) == 1
    assert len(found("`operation`: read write", "`operation`: read")) == 1


def test_labels_are_bounded_and_every_series_is_there_from_the_start(loaded_daemon, page, exported):
    """One series for each combination of the label values, whatever clients did."""
    values = {"tier": set(loaded_daemon.tiers), "to": set(loaded_daemon.tiers), "from": {"put", *loaded_daemon.tiers}}
    for name, family in page.items():
        expected = 1
        for label, listed in family.labels.items():
            if label == "version":
                continue
            assert exported[name].labels[label] == (listed or values[label]), name
            expected *= len(listed or values[label])
        if "from" in family.labels:
            expected -= len(loaded_daemon.tiers)  # none stays where it is
        seen = {tuple(sorted(labels.items())) for labels, _ in exported[name].samples}
        assert len(seen) == expected, name


def test_names_end_with_their_unit_and_flags_are_flags(page, exported):
    for name, family in page.items():
        assert re.fullmatch(r"kvtier_[a-z0-9_]+", name)
        assert (family.type == "counter") == name.endswith("_total"), name
        unit = name.removesuffix("_total").rsplit("_", 1)[1]
        if unit in UNITS_IN_NAMES:
            assert family.unit == unit, name
        assert not (family.unit in {"bytes", "seconds"} and unit != family.unit), name
        if family.unit == "flag":
            assert {value for _, value in exported[name].samples} <= {0, 1}, name
        assert family.decision, name


def test_promtool_accepts_the_exposition(scrape):
    def check(text):
        done = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True, timeout=20)
        return done.returncode, done.stdout + done.stderr

    assert check(scrape) == (0, "")
    assert check(scrape.replace("kvtier_lookups_total", "kvtier_lookups"))[0] != 0
