"""The commands and options of kvtierctl, as its --help tells them."""

import functools
import re

from programs import BUILD, run

KVTIERCTL = BUILD / "bin/kvtierctl"


class Command:
    """One command: its words ("config", "check"), the options that its own help lists, what its arguments are called."""

    def __init__(self, words, text):
        self.words = words
        self.options = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", "\n".join(section(text, "Options"))))
        self.positionals = [line.split()[0] for line in section(text, "Positionals")]
        self.under = [line.split()[0] for line in section(text, "Subcommands")]


def section(text, title):
    """Beginnings of the lines of one part of a help: what is said behind two spaces is a description."""
    found = re.search(rf"^{title}:\n((?:  .*\n?)*)", text, re.MULTILINE)
    lines = found[1].splitlines() if found else []
    return [re.split(r"\s{2,}", line.strip())[0] for line in lines if re.match(r"  \S", line)]


@functools.cache
def commands():
    """All of them, the program itself first."""
    found, waiting = [], [()]
    while waiting:
        words = waiting.pop(0)
        command = Command(words, run(KVTIERCTL, *words, "--help"))
        found.append(command)
        waiting += [(*words, name) for name in command.under]
    return found
