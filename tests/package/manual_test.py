"""The manual pages: sound roff, and all that programs and configuration have stands in them, and nothing else."""

import re
import subprocess
import tomllib

import pytest

from ctl_commands import commands
from programs import BUILD, ROOT, run

MANUAL = ROOT / "deploy/man"
PAGES = ("kvtierctl.1", "kvtier.toml.5", "kvtierd.8")
# Sections of a kvtier.toml with all that a section may have of its own, as they are written there and in the manual.
SECTIONS = ("[server]", "[tier.hot]", "[tier.warm]", "[[tier.cold]]", "[[tenant]]", "[admin]", "[limits]", "[metrics]")


def source(page):
    """Without what roff needs and readers do not see."""
    text = (MANUAL / page).read_text()
    text = re.sub(r'^\.\\".*\n', "", text, flags=re.MULTILINE)
    return text.replace(r"\-", "-").replace(r"\(dq", '"').replace(r"\fR", "").replace(r"\fB", "").replace(r"\fI", "")


def options_in(text):
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text))


def titled(text, macro):
    """What stands under each heading: [(heading, text)]."""
    parts = re.split(rf"^\.{macro} (.*)\n", text, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2]))


def keys_in(text):
    """Keys that are described, with their defaults: {"workers": "0", "capacity": None}."""
    tagged = re.findall(r"^\.T[PQ]\n\.B (.*)$", text, re.MULTILINE)
    return dict((tag.split(" = ", 1) + [None])[:2] for tag in tagged)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_sound(page):
    for command in (["mandoc", "-T", "lint", "-W", "warning"], ["man", "--warnings", "--local-file"],
                    ["groff", "-ww", "-man", "-T", "utf8"]):
        done = subprocess.run([*command, MANUAL / page], capture_output=True, text=True, timeout=30)
        found = done.stdout if command[0] == "mandoc" else done.stderr
        assert (done.returncode, found) == (0, ""), command


def test_kvtierctl_has_its_commands_each_with_its_options():
    top, *under = commands()
    page = dict(titled(source("kvtierctl.1"), "SH"))
    # -h and --help are of every command, and told once.
    assert options_in(page["OPTIONS"]) == top.options
    described = {}
    for heading, text in titled(page["COMMANDS"], "SS"):
        words = tuple(word for word in heading.split() if word.islower())
        arguments = [word.strip("[]") for word in heading.split()[len(words):]]
        described[words] = (arguments, options_in("\n".join(re.findall(r"^\.TP\n(.*)$", text, re.MULTILINE))))
    known = {one.words: (one.positionals, one.options - top.options) for one in under if not one.under}
    assert described == known


def test_kvtierd_has_its_options():
    page = dict(titled(source("kvtierd.8"), "SH"))
    assert options_in(page["OPTIONS"]) == options_in(run(BUILD / "bin/kvtierd", "--help"))


def known_keys(section, folder, more=""):
    """What kvtierd says that it knows when it meets a key that it does not."""
    config = folder / "kvtier.toml"
    config.write_text(f"{section}\n{more}nonsense = 1\n")
    done = subprocess.run([BUILD / "bin/kvtierd", "--config", config, "--check"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    found = re.search(r"nonsense: unknown key \(known: (.*)\)", done.stderr)
    assert found, done.stderr
    return set(found[1].split(", "))


def test_kvtier_toml_has_every_key_that_kvtierd_takes(tmp_path):
    sections = dict(titled(source("kvtier.toml.5"), "SS"))
    assert tuple(sections) == SECTIONS
    beside = {"[tier.hot]": ['capacity = "1GiB"\n'], "[tier.warm]": ['capacity = "1GiB"\n'],
              "[[tier.cold]]": ['path = "/x"\ncapacity = "1GiB"\n', 'medium = "cxl"\ncapacity = "1GiB"\n'],
              "[[tenant]]": ['name = "x"\nuids = [1]\n']}
    for section in SECTIONS:
        known = set().union(*(known_keys(section, tmp_path, more) for more in beside.get(section, [""])))
        assert set(keys_in(sections[section])) == known, section


def test_kvtier_toml_has_the_defaults_of_the_file_that_is_installed():
    sections = dict(titled(source("kvtier.toml.5"), "SS"))
    section = None
    for line in (ROOT / "deploy/kvtier.toml").read_text().splitlines():
        if re.fullmatch(r"\[.*\]", line):
            section = line
        value = re.fullmatch(r"(\w+) = (.*)", line)
        if value and value[1] not in ("capacity", "path"):
            assert keys_in(sections[section])[value[1]] == value[2], f"{section} {value[1]}"


def test_the_example_is_a_configuration(tmp_path):
    (example,) = re.findall(r"^\.EX\n(.*?)^\.EE", source("kvtier.toml.5"), re.MULTILINE | re.DOTALL)
    (tmp_path / "kvtier.toml").write_text(example)
    assert len(tomllib.loads(example)["tier"]) == 3
    run(BUILD / "bin/kvtierd", "--config", tmp_path / "kvtier.toml", "--check")
