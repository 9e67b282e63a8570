"""Rules are valid, every alert is tested both ways and has a runbook entry, and all speak of metrics that there are."""

import re
import subprocess

import yaml
from metrics_page import PAGE, ROOT, page_rows

MONITORING = ROOT / "monitoring"
UNIT_TESTS = ROOT / "tests/monitoring/rules_test.yml"
METRIC = re.compile(r"(?<!:)\bkvtier_\w+\b(?!:)")
RECORDED = re.compile(r"\b\w+:\w+:\w+\b")
SEVERITIES = {"critical", "warning", "info"}


def rules(file):
    return [rule for group in yaml.safe_load((MONITORING / "rules" / file).read_text())["groups"] for rule in group["rules"]]


def promtool(*arguments):
    done = subprocess.run(["promtool", *map(str, arguments)], text=True, capture_output=True, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_configuration_and_rules():
    promtool("check", "config", MONITORING / "prometheus.yml")
    promtool("check", "rules", MONITORING / "rules/recording.yml", MONITORING / "rules/alerts.yml")


def test_the_unit_tests_of_the_rules_pass():
    promtool("test", "rules", UNIT_TESTS)


def minutes(time):
    parts = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", time).groups()
    return int(parts[0] or 0) + int(parts[1] or 0) / 60


def test_every_alert_fires_clears_and_is_silent_on_a_healthy_daemon():
    fired, cleared, silent = set(), set(), set()
    for number, case in enumerate(yaml.safe_load(UNIT_TESTS.read_text())["tests"]):
        first = {}
        for check in case.get("alert_rule_test", []):
            name, time = check["alertname"], minutes(check["eval_time"])
            if check.get("exp_alerts"):
                first.setdefault(name, time)
            elif number == 0:
                silent.add(name)
            elif time > first.get(name, float("inf")):
                cleared.add(name)
        fired |= first.keys()
    alerts = {rule["alert"] for rule in rules("alerts.yml")}
    assert (alerts - fired, alerts - cleared, alerts - silent) == (set(), set(), set())


def test_every_recorded_series_is_tested():
    tested = UNIT_TESTS.read_text()
    for rule in rules("recording.yml"):
        assert re.search(r"expr: .*" + re.escape(rule["record"]), tested), rule["record"]


def test_every_alert_has_a_severity_a_summary_and_a_runbook_entry():
    text = (MONITORING / "RUNBOOK.md").read_text()
    entries = dict(re.findall(r"^### (\w+)\n(.*?)(?=^### |\Z)", text, re.MULTILINE | re.DOTALL))
    alerts = {rule["alert"]: rule for rule in rules("alerts.yml")}
    assert entries.keys() == alerts.keys()
    for name, entry in entries.items():
        for part in ("**Symptom:**", "**Meaning:**", "**Do:**"):
            assert entry.count(part) == 1, name
        assert alerts[name]["labels"]["severity"] in SEVERITIES, name
        assert "$labels.instance" in alerts[name]["annotations"]["summary"], name


def test_rules_and_runbook_speak_of_metrics_that_there_are():
    known = set(page_rows(PAGE.read_text()))
    known |= {f"{name}_{part}" for name in known for part in ("bucket", "count", "sum")}
    recorded = {rule["record"] for rule in rules("recording.yml")}
    texts = [rule["expr"] for file in ("recording.yml", "alerts.yml") for rule in rules(file)]
    pages = [(MONITORING / "RUNBOOK.md").read_text(), (ROOT / "deploy/docs/OPERATE.md").read_text()]
    alerts = {rule["alert"] for rule in rules("alerts.yml")}
    for page in pages:
        assert set(re.findall(r"\bKvtier[A-Z]\w+", page)) <= alerts
    texts += pages
    for text in texts:
        assert set(METRIC.findall(text)) <= known, text
        assert set(RECORDED.findall(text)) <= recorded, text
