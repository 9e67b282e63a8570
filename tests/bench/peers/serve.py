#!/usr/bin/env python3
"""kvtier-llama-server beside llama.cpp's llama-server: time to first token, and what is computed again.

usage: serve.py ttft | budget | load [options]
  ttft     one prompt of 1,900 tokens, one thread: computed, from llama-server's --cache-ram, from each tier of kvtier,
           and after kill -9 of everything; in turns, medians
  budget   5 conversations of 4 turns in turns under one budget of RAM, and 5 users of one prefix: tokens computed
  load     N clients with multi-turn conversations and shared system prompts against the server at --url: percentiles of
           the time to first token, tokens computed again, hits by tier; `kvtier-bench serve` is this
Needs a build with -DKVTIER_LLAMACPP, and for the first two `deploy/fetch-llamacpp.sh server smollm2`.
"""
import argparse
import contextlib
import json
import math
import pathlib
import random
import socket
import statistics
import sys
import tempfile
import threading
import time
import urllib.parse

from servers import Kvtier, LlamaServer, chat, drop_page_cache

SHIPS = ["a fishing boat", "the mail steamer", "a collier", "two pilot cutters", "a brig under tow", "a lightship"]


def say(text=""):
    print(text, flush=True)


def logbook(seed, lines):
    """About 25 tokens a line."""
    rng = random.Random(seed)
    return "\n".join(f"Log {seed}, day {day}: {rng.choice(SHIPS)} passed at {rng.randrange(24)} hours, "
                     f"wind force {rng.randrange(9)}." for day in range(1, lines + 1))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def running(*servers):
    try:
        yield servers
    finally:
        for server in servers:
            server.kill()


def prompt_of(number, lines):
    return [{"role": "system", "content": "You keep a lighthouse. This is its log book.\n" + logbook(number, lines)},
            {"role": "user", "content": "Summarize it."}]


class Times:
    """Replies by name, in the order of their first; those of kvtier each with the one of the peer beside it."""

    def __init__(self):
        self.rows, self.ratios = {}, {}

    def add(self, name, reply, peer=None):
        self.rows.setdefault(name, []).append(reply)
        if peer:
            self.ratios.setdefault(name, []).append(reply.first_s / peer.first_s)

    def show(self):
        say(f"{'':42} {'median':>10} {'fastest':>10} {'restoring':>10} {'computed':>9} {'runs':>5} {'to --cache-ram':>15}")
        for name, replies in self.rows.items():
            times = sorted(reply.first_s for reply in replies)
            restore_s = statistics.median(reply.restore_s for reply in replies)
            ratio = f"{self.ratio(name):.2f}x" if name in self.ratios else ""
            say(f"{name:42} {1000 * statistics.median(times):>7.1f} ms {1000 * times[0]:>7.1f} ms "
                f"{1000 * restore_s:>7.1f} ms {self.computed(name):>9} {len(replies):>5} {ratio:>15}")

    def middle(self, name):
        return sorted(self.rows[name], key=lambda reply: reply.first_s)[len(self.rows[name]) // 2]

    def ratio(self, name):
        return statistics.median(self.ratios[name])

    def computed(self, name):
        return max(reply.computed for reply in self.rows[name])


# Time to the first token to that of a hit in --cache-ram.
BOUNDS = {"kvtier, hot": 1.0, "kvtier, warm INT4": 1.25, "kvtier, cold INT2, page cache dropped": 1.6,
          "kvtier, everything killed and restarted": 1.6}


def ttft(options, folder):
    lines = 20 if options.quick else 75
    prompts = [prompt_of(number, lines) for number in range(1, options.prompts + 1)]
    short = [{"role": "user", "content": "Hello."}]
    times = Times()
    ram = "llama-server, --cache-ram"
    kvtier = Kvtier(options, folder, "ladder", options.tier_mib, options.tier_mib, 2048)
    llama = LlamaServer(options, folder, 8192, free_port())

    def beside(name, prompt, prepare=lambda: None):
        """One measurement of kvtier, and one of llama-server whose slot holds something else."""
        prepare()
        reply = chat(kvtier.url, prompt)
        chat(llama.url, short)
        peer = chat(llama.url, prompt)
        times.add(name, reply, peer)
        times.add(ram, peer)

    with running(kvtier, llama):
        chat(kvtier.url, short)
        chat(llama.url, short)
        for prompt in prompts:
            reply = chat(kvtier.url, prompt)
            times.add("kvtier, computed", reply)
            times.add("llama-server, computed", chat(llama.url, prompt))
            say(f"a prompt of {reply.prompt} tokens computed")
        if options.pause:
            say("ready to measure")
            time.sleep(options.pause)
        for _ in range(options.rounds):
            for prompt in prompts:
                beside("kvtier, hot", prompt)
                times.add("llama-server, in its slot", chat(llama.url, prompt))
        kvtier.demote("hot")
        for _ in range(options.rounds):
            for prompt in prompts:
                beside("kvtier, warm INT4", prompt, lambda: kvtier.demote("hot"))
        for _ in range(options.rounds):
            for prompt in prompts:
                beside("kvtier, cold INT2, page cache dropped", prompt,
                       lambda: (kvtier.demote("hot", "warm"), drop_page_cache()))
        kvtier.demote("hot", "warm")
        for number, prompt in enumerate(prompts):
            kvtier.kill()
            llama.kill()
            drop_page_cache()
            kvtier.start()
            llama.start()
            chat(llama.url, short)
            chat(kvtier.url, short)
            times.add("kvtier, everything killed and restarted", chat(kvtier.url, prompt), times.middle(ram))
            if number == 0:
                times.add("llama-server, killed and restarted", chat(llama.url, prompt))
    times.show()
    failures = [f"{name}: {times.computed(name)} tokens were computed again" for name in BOUNDS
                if times.computed(name) > 1]
    failures += [f"{name}: {times.ratio(name):.2f} times the peer's, the bound is {bound}"
                 for name, bound in BOUNDS.items() if times.ratio(name) > bound and not options.quick]
    if failures:
        sys.exit("error: " + "\nerror: ".join(failures))


def conversation(number, turns):
    """System prompt and `turns` questions with fixed answers, so that both servers get the same tokens."""
    messages = [{"role": "system", "content": logbook(100 + number, 12)}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Note this, too.\n{logbook(1000 + 10 * number + turn, 4)}"})
        messages.append({"role": "assistant", "content": f"Noted {turn} of {number}: the ships, the hours and the wind."})
    return messages


def scenarios():
    """Requests in stages, each stage's tokens counted apart."""
    talks = [conversation(number, 4) for number in range(5)]
    users = [[{"role": "system", "content": logbook(7, 38)}, {"role": "user", "content": logbook(200 + user, 12)}]
             for user in range(5)]
    again = [messages + [{"role": "assistant", "content": "Noted."}, {"role": "user", "content": "And the wind?"}]
             for messages in users]
    part = [[{"role": "system", "content": logbook(8, 11)}, {"role": "user", "content": logbook(300 + user, 40)}]
            for user in range(2)]
    return {"talks": [[messages[:2 * turn + 2] for turn in range(4) for messages in talks]],
            "users": [users, again], "part": [part]}


def budget(options, folder):
    say(f"tokens computed of those in prompts           {'5 x 4 turns':<18}{'5 users, prefix':<18}{'they return':<18}"
        "20% shared")

    def measure(name, make):
        row = []
        for scenario, stages in scenarios().items():
            server = make(scenario)
            with running(server):
                chat(server.url, [{"role": "user", "content": "Hello."}])
                row += [[chat(server.url, messages) for messages in requests] for requests in stages]
        cells = [f"{sum(r.computed for r in replies)} of {sum(r.prompt for r in replies)}" for replies in row]
        say(f"{name:46}" + "".join(f"{cell:<18}" for cell in cells))
        talks = row[0]
        least = sum(reply.prompt for reply in talks[-5:])
        if not name.startswith("llama") and sum(reply.computed for reply in talks) * 4250 > 4400 * least:
            sys.exit(f"error: {name} computed more than 4,400 tokens for each 4,250 that differ, {least}")

    makers = {
        "llama-server, --cache-ram 64": lambda _: LlamaServer(options, folder, 64, free_port()),
        "llama-server, --cache-ram 8192": lambda _: LlamaServer(options, folder, 8192, free_port()),
        "kvtier, hot 24 + warm 40 MiB": lambda part: Kvtier(options, folder, f"ram-{part}", 24, 40, 0),
        "kvtier, hot 16 + warm 16 MiB + NVMe": lambda part: Kvtier(options, folder, f"nvme-{part}", 16, 16, 1024)}
    for name, make in makers.items():
        if options.only in name:
            measure(name, make)


def percentiles(values):
    ordered = sorted(values)
    return {p: ordered[min(len(ordered) - 1, len(ordered) * p // 100)] for p in (50, 90, 99)}


def load(options, _folder):
    """Every client holds conversations of `turns` turns, one after the other; the system prompts are shared."""
    lock, replies, failures = threading.Lock(), [], []
    end = time.monotonic() + options.seconds
    known = {}  # longest prompt of a conversation so far, in tokens

    def client(number):
        rng = random.Random(number)
        talk = 0
        while time.monotonic() < end:
            talk += 1
            messages = [{"role": "system", "content": logbook(5000 + rng.randrange(options.systems), 20)}]
            for turn in range(options.turns):
                messages.append({"role": "user", "content": logbook(10000 + 100 * number + 7 * talk + turn, 3)})
                try:
                    reply = chat(options.url, messages, 16)
                except (OSError, RuntimeError) as error:
                    with lock:
                        failures.append(str(error))
                    time.sleep(0.2)
                    break
                with lock:
                    before = known.get((number, talk), 0)
                    known[(number, talk)] = reply.prompt
                    replies.append((reply, before))
                messages.append({"role": "assistant", "content": reply.text})
                if time.monotonic() >= end:
                    break

    threads = [threading.Thread(target=client, args=(number,)) for number in range(options.clients)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(10)
            with lock:
                print(f"{time.monotonic() - start:6.0f} s  {len(replies)} answers", file=sys.stderr, flush=True)
    if not replies:
        sys.exit(f"error: no request was answered: {failures[:1]}")
    tiers = [0] * max(len(reply.tiers) for reply, _ in replies)
    for reply, _ in replies:
        for tier, blocks in enumerate(reply.tiers):
            tiers[tier] += blocks
    prompt = sum(reply.prompt for reply, _ in replies)
    computed = sum(reply.computed for reply, _ in replies)
    # A turn has to compute what it adds; what it computes beyond that was there before.
    again = sum(max(0, reply.computed - (reply.prompt - before)) for reply, before in replies if before)
    result = {"clients": options.clients, "answers": len(replies), "failures": len(failures),
              "first_token_ms": {f"p{p}": round(1000 * s, 1)
                                 for p, s in percentiles([reply.first_s for reply, _ in replies]).items()},
              "prompt_tokens": prompt, "computed_tokens": computed, "computed_again_tokens": again,
              "hit_blocks_by_tier": tiers}
    if options.json:
        say(json.dumps(result))
        return
    for name, value in result.items():
        say(f"{name.replace('_', ' '):24} {value}")


def whole(text):
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def seconds(text):
    if not 0 < (number := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no time above 0")
    return number


def address(text):
    try:
        parts = urllib.parse.urlsplit(text)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise argparse.ArgumentTypeError(f"{text!r} is no address as http://HOST:PORT")
    return text


def parser():
    cache = pathlib.Path.home() / ".cache/kvtier"
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(dest="command", required=True)
    servers = argparse.ArgumentParser(add_help=False)
    servers.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    servers.add_argument("--llama", type=pathlib.Path, default=cache / "llama.cpp-0.3.36")
    servers.add_argument("--model", type=pathlib.Path, default=cache / "models/SmolLM2-135M-Instruct.Q4_1.gguf")
    servers.add_argument("--block", type=whole, default=128, help="tokens of a kvtier block")
    servers.add_argument("--folder", help="where the cold tier and the logs are for the run; a temporary one")
    one = commands.add_parser("ttft", parents=[servers], help="time to the first token of one prompt, from each place")
    one.add_argument("--prompts", type=whole, default=3, help="different prompts")
    one.add_argument("--rounds", type=whole, default=5, help="measurements of each prompt in each place")
    one.add_argument("--tier-mib", type=whole, default=256, help="of the hot tier, and of the warm one")
    one.add_argument("--pause", type=float, default=0, help="seconds between computing and measuring")
    one.add_argument("--quick", action="store_true", help="a prompt of 500 tokens")
    two = commands.add_parser("budget", parents=[servers], help="tokens computed by conversations under one budget of RAM")
    two.add_argument("--only", default="", help="servers with this in their name")
    purpose = ("Load of multi-turn clients with shared system prompts on the OpenAI server at --url: percentiles of the time to "
               "the first token, tokens computed again, hits by tier. kvtier-bench serve is this.")
    three = commands.add_parser("load", description=purpose, help="load on the server at --url")
    three.add_argument("--url", type=address, help="the server, as http://127.0.0.1:8080")
    three.add_argument("--clients", type=whole, default=4, help="at once (%(default)s)")
    three.add_argument("--seconds", type=seconds, default=60, help="after which no conversation is begun (%(default)s)")
    three.add_argument("--turns", type=whole, default=4, help="of a conversation (%(default)s)")
    three.add_argument("--systems", type=whole, default=3, help="different system prompts (%(default)s)")
    three.add_argument("--json", action="store_true", help="one JSON object")
    three.set_defaults(folder=None, error=three.error)
    return top


def main():
    options = parser().parse_args()
    if options.command == "load" and not options.url:
        options.error("load needs --url")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        {"ttft": ttft, "budget": budget, "load": load}[options.command](options, folder)


if __name__ == "__main__":
    main()
