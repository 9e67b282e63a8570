"""kvtier-bench serve against a server that answers at once: what the load generator counts."""
import http.server
import json
import os
import pathlib
import subprocess
import threading

BENCH = pathlib.Path(os.environ.get("KVTIER_BUILD", "build")) / "bin/kvtier-bench"
NEW_TOKENS, AGAIN_TOKENS = 100, 7


class Handler(http.server.BaseHTTPRequestHandler):
    """Every turn is NEW_TOKENS longer than the one before, of which AGAIN_TOKENS too many are computed; two blocks are hits."""

    def do_POST(self):
        turn = sum(one["role"] == "user" for one in json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"])
        prompt = turn * NEW_TOKENS
        computed = min(prompt, NEW_TOKENS + AGAIN_TOKENS)
        event = {"choices": [{"delta": {"content": "x"}}], "usage": {"prompt_tokens": prompt},
                 "kvtier": {"cached_tokens": prompt - computed, "blocks_by_tier": [2, 0, 1]}}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())

    def log_message(self, *args):
        pass


def bench(*arguments):
    return subprocess.run([BENCH, "serve", *arguments], capture_output=True, text=True, timeout=60)


def test_the_load_counts_what_the_server_says():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    done = bench("--url", f"http://127.0.0.1:{server.server_port}", "--clients", "2", "--seconds", "1", "--turns", "3", "--json")
    server.shutdown()
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    answers = result["answers"]
    assert answers >= 2 * 3 and result["clients"] == 2 and result["failures"] == 0
    assert result["hit_blocks_by_tier"] == [2 * answers, 0, answers]
    assert result["first_token_ms"]["p50"] <= result["first_token_ms"]["p90"] <= result["first_token_ms"]["p99"]
    # The first turn of a conversation computes its prompt, each other one AGAIN_TOKENS more than what it adds.
    again = result["computed_again_tokens"]
    assert again > 0 and again % AGAIN_TOKENS == 0
    assert result["computed_tokens"] == answers * NEW_TOKENS + again
    firsts = answers - again // AGAIN_TOKENS
    assert 2 <= firsts <= answers // 3 + 2


def test_a_server_that_does_not_answer_is_an_error():
    assert "load needs --url" in bench().stderr
    done = bench("--url", "http://127.0.0.1:9", "--clients", "1", "--seconds", "0.3")
    assert done.returncode == 1 and "no request was answered" in done.stderr


def test_wrong_options_are_errors_of_usage():
    for arguments in (["--url", "notaurl"], ["--url", "127.0.0.1:80"], ["--url", "http://"], ["--url", "http://h:x"],
                      ["--clients", "0"], ["--clients", "-1"], ["--clients", "x"], ["--seconds", "0"], ["--seconds", "-1"],
                      ["--seconds", "nan"], ["--seconds", "inf"], ["--turns", "0"], ["--systems", "0"], ["--rounds", "2"]):
        done = bench("--url", "http://127.0.0.1:9", *arguments)
        assert done.returncode == 2 and "Traceback" not in done.stderr, (arguments, done.stderr)
        assert "usage:" in done.stderr and arguments[0] in done.stderr.splitlines()[-1]


def test_its_help_says_what_it_is_for():
    said = bench("--help")
    assert said.returncode == 0 and "multi-turn clients" in said.stdout and "budget" not in said.stdout
