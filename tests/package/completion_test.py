"""What bash, zsh and fish complete of kvtierctl's command line: all that its --help knows, and nothing else."""

import os
import pty
import select
import signal
import time

import pytest

from ctl_commands import KVTIERCTL, commands
from programs import BUILD, run

SHELLS = ("bash", "zsh", "fish")

BASH = r"""
source "$1"
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
$(complete -p kvtierctl | sed 's/.*-F \([^ ]*\).*/\1/')
printf '%s\n' "${COMPREPLY[@]}"
"""
FISH = r"""
source $argv[1]
complete --do-complete "$argv[2]" | string split --fields 1 \t; true
"""
# Typed into an interactive zsh. All that is offered goes through compadd, which also writes it down here.
ZSH = r"""
stty -echo
PROMPT=''
autoload -U compinit && compinit -D -u
source "$KVTIER_SCRIPT"
compadd() {
  [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]] && { builtin compadd "$@"; return }
  local -a hits
  builtin compadd -A hits "$@"
  print -rl -- $hits >>"$KVTIER_OFFERED"
}
complete-and-tell() { zle complete-word; print -- '###' >>"$KVTIER_OFFERED" }
zle -N complete-and-tell
bindkey '^I' complete-and-tell
"""
PATIENCE_SECONDS = 60


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("completion")
    for shell in SHELLS:
        (folder / shell).write_text(run(KVTIERCTL, "completion", shell))
    return folder


def complete_by_zsh(script, line, folder):
    offered = script.with_name("offered")
    offered.write_text("")
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.execvpe("zsh", ["zsh", "-f", "-i"], {**os.environ, "TERM": "dumb", "KVTIER_SCRIPT": str(script),
                                                "KVTIER_OFFERED": str(offered)})
    try:
        os.write(terminal, (ZSH + line + "\t").encode())
        deadline, said = time.monotonic() + PATIENCE_SECONDS, b""
        while "###" not in offered.read_text().split():
            assert time.monotonic() < deadline, said
            if select.select([terminal], [], [], 0.05)[0]:
                said += os.read(terminal, 4096)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)
    return set(offered.read_text().split()) - {"###"}


def complete(shell, scripts, line, folder="/"):
    """What the shell offers for the last word of `line`, in a folder."""
    script = scripts / shell
    if shell == "zsh":
        return complete_by_zsh(script, line, folder)
    if shell == "bash":
        said = run("bash", "--norc", "-c", BASH, "bash", script, *line.replace("=", " = ").split(" "), cwd=folder)
    else:
        said = run("fish", "--no-config", "-c", FISH, script, line, cwd=folder)
    return set(said.split())


def options_of(command):
    """Its own and those of the commands around it."""
    around = [one for one in commands() if command.words[:len(one.words)] == one.words]
    return set().union(*(one.options for one in around))


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_option_is_completed_where_it_may_stand(shell, scripts):
    assert len(commands()) > 10
    for command in commands():
        begun = " ".join(("kvtierctl", *command.words))
        long_ones = {name for name in options_of(command) if name.startswith("--")}
        assert complete(shell, scripts, begun + " --") == long_ones, command.words
        if command.under:
            assert complete(shell, scripts, begun + " ") == set(command.under)


@pytest.mark.parametrize("shell", SHELLS)
def test_values_are_completed_where_they_can_be_known(shell, scripts, tmp_path):
    (tmp_path / "kvtier.toml").touch()
    (tmp_path / "other.toml").touch()
    for line, offered in {
            "kvtierctl --socket /x size --dtype ": {"fp16", "bf16", "fp8"},
            "kvtierctl size --layers 4 --dtype b": {"bf16"},
            "kvtierctl --json completion ": {"bash", "zsh", "fish"},
            "kvtierctl --timeout 5 st": {"status"},
            "kvtierctl config check k": {"kvtier.toml"},
            "kvtierctl verify --store ": {"kvtier.toml", "other.toml"},
            "kvtierctl blocks 1 --limit ": set(),
    }.items():
        assert complete(shell, scripts, line, tmp_path) == offered, line
    assert {word.rsplit("=")[-1] for word in complete(shell, scripts, "kvtierctl size --dtype=b", tmp_path)} == {"bf16"}


def test_the_build_installs_what_the_program_prints(scripts):
    for shell in SHELLS:
        assert (BUILD / f"client/ctl/completion.{shell}").read_text() == (scripts / shell).read_text()
