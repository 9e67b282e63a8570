"""Two OpenAI servers on one model: kvtier-llama-server with a kvtierd, and llama.cpp's own llama-server."""
import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import time
import urllib.request

READY_S = 120
REQUEST_S = 600


@dataclasses.dataclass
class Reply:
    first_s: float  # to the end of the first piece of text
    prompt: int     # tokens
    computed: int   # of the prompt
    tiers: list     # blocks by tier, of kvtier
    text: str
    restore_s: float  # of it in bringing KV back, of kvtier


def chat(url, messages, max_tokens=1):
    """One streamed answer, its first piece timed by the client."""
    body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    start = time.perf_counter()
    first, text, usage, extra = None, "", {}, {}
    with urllib.request.urlopen(request, timeout=REQUEST_S) as response:
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(event["error"])
            usage = event.get("usage") or usage
            extra = event.get("kvtier") or event.get("timings") or extra
            for choice in event.get("choices", []):
                piece = choice.get("delta", {}).get("content")
                if piece or choice.get("finish_reason"):
                    first = first or time.perf_counter() - start
                    text += piece or ""
    if "cached_tokens" in extra:
        computed = usage["prompt_tokens"] - extra["cached_tokens"]
    else:
        computed = extra["prompt_n"]
    return Reply(first, usage["prompt_tokens"], computed, extra.get("blocks_by_tier", []), text,
                 extra.get("restore_ms", 0) / 1000)


class Process:
    def __init__(self, command, log):
        self.log = log
        with open(log, "ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)

    def wait(self, ready):
        """Until `ready` answers something true, which is returned."""
        end = time.monotonic() + READY_S
        while time.monotonic() < end and self.process.poll() is None:
            found = ready()
            if found:
                return found
            time.sleep(0.05)
        raise RuntimeError("not ready: " + pathlib.Path(self.log).read_text(errors="replace")[-2000:])

    def kill(self, number=signal.SIGKILL):
        if self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(60)


def healthy(url):
    try:
        with urllib.request.urlopen(url + "/health", timeout=2) as response:
            return response.status == 200
    except OSError:
        return False


class LlamaServer:
    """llama-server, one slot, one thread."""

    def __init__(self, options, folder, cache_ram_mib, port):
        self.url = f"http://127.0.0.1:{port}"
        self.command = [str(options.llama / "bin/llama-server"), "--model", str(options.model), "--port", str(port),
                        "--threads", "1", "--threads-batch", "1", "--parallel", "1", "--ctx-size", "4096",
                        "--flash-attn", "on", "--cache-ram", str(cache_ram_mib), "--no-webui"]
        self.log = f"{folder}/llama-server-{port}.log"
        self.start()

    def start(self):
        self.process = Process(self.command, self.log)
        self.process.wait(lambda: healthy(self.url))

    def kill(self):
        self.process.kill()


class Kvtier:
    """kvtierd and kvtier-llama-server, one slot, one thread. Sizes in MiB; cold 0: no disk."""

    def __init__(self, options, folder, name, hot, warm, cold):
        self.options, self.folder = options, f"{folder}/{name}"
        os.makedirs(self.folder + "/cold")
        self.socket = self.folder + "/kvtierd.sock"
        tiers = [f'[server]\nsocket = "{self.socket}"\n[tier.hot]\nmedium = "host"\ncapacity = "{hot}MiB"\n'
                 f'[tier.warm]\ncapacity = "{warm}MiB"\n[metrics]\nlisten = "off"\n']
        if cold:
            tiers.append(f'[[tier.cold]]\nmedium = "nvme"\npath = "{self.folder}/cold"\ncapacity = "{cold}MiB"\n'
                         'tails = "never"\n')
        pathlib.Path(self.folder + "/kvtier.toml").write_text("".join(tiers), encoding="utf-8")
        self.start()

    def start(self):
        self.daemon = Process([str(self.options.build / "bin/kvtierd"), "--config", self.folder + "/kvtier.toml"],
                              self.folder + "/kvtierd.log")
        self.daemon.wait(lambda: self.ctl("status").returncode == 0)
        log = pathlib.Path(self.folder + "/server.log")
        log.unlink(missing_ok=True)
        self.server = Process(
            [str(self.options.build / "bin/kvtier-llama-server"), "--model", str(self.options.model), "--port", "0",
             "--socket", self.socket, "--context", "4096", "--block", str(self.options.block), "--threads", "1",
             "--cache-timeout", "2000", "--restore-budget", "10000"], str(log))
        self.url = self.server.wait(
            lambda: (re.search(r"^listening on (\S+)", log.read_text(), re.M) or [None, None])[1])

    def ctl(self, *verb):
        return subprocess.run([str(self.options.build / "bin/kvtierctl"), "--socket", self.socket, *verb],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, check=False)

    def demote(self, *tiers):
        """Moves all that is in these tiers down, highest first."""
        for tier in tiers:
            done = self.ctl("demote", tier)
            if done.returncode:
                raise RuntimeError(done.stdout.decode())

    def kill(self):
        self.server.kill()
        self.daemon.kill()


def drop_page_cache():
    subprocess.run(["sync"], check=True)
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as out:
        out.write("1\n")
