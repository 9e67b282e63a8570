"""Reads monitoring/METRICS.md and the text format of a daemon."""

import pathlib
import re
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "monitoring/METRICS.md"
PRECISIONS = re.compile(r"^\| `precision` \| (.*) \|$", re.MULTILINE)
SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass
class Family:
    type: str
    meaning: str
    labels: dict = field(default_factory=dict)  # name: set of values; None where the page leaves them open
    unit: str = ""
    decision: str = ""
    samples: list = field(default_factory=list)  # (labels, value)


def page_rows(text):
    """{name: Family} of every table on the page; a name given twice is an error."""
    families = {}
    shared = {"precision": set(PRECISIONS.search(text)[1].split(", "))}
    for line in text.splitlines():
        if not line.startswith("| `kvtier_"):
            continue
        name, kind, labels, unit, meaning, decision = (cell.strip() for cell in line.strip("|").split("|"))
        family = Family(kind, meaning, unit=unit, decision=decision)
        for label in filter(None, labels.split(", ")):
            label, _, values = label.partition(":")
            label = label.strip("`")
            family.labels[label] = set(values.split()) or shared.get(label)
        if families.setdefault(name.strip("`"), family) is not family:
            raise AssertionError(f"{name} is on the page twice")
    return families


def exposition(text):
    """{name: Family} of a scrape; the series of a histogram under its own name, `le` not among its labels."""
    families = {}
    for line in text.splitlines():
        if line.startswith("# HELP "):
            _, _, name, meaning = line.split(" ", 3)
            families[name] = Family("", meaning)
        elif line.startswith("# TYPE "):
            _, _, name, families[name].type = line.split(" ", 3)
        elif line:
            name, labels, value = SAMPLE.fullmatch(line).groups()
            name = name if name in families else re.sub("_(bucket|sum|count)$", "", name)
            labels = dict(LABEL.findall(labels or ""))
            labels.pop("le", None)
            families[name].samples.append((labels, float(value)))
            for label, label_value in labels.items():
                families[name].labels.setdefault(label, set()).add(label_value)
    return families
