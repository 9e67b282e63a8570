#!/usr/bin/env python3
"""Talks with kvtier-llama-server and prints how long the first token took, by where the prompt's KV came from.

usage: conversations.py URL STEP FILE
  turns     a conversation of several turns
  cold      three long prompts that nobody has seen; writes what they took to FILE
  TIER      the same prompts again, their KV expected from the tier of that number; compared with FILE
"""
import json
import statistics
import sys
import urllib.error
import urllib.request

PROMPTS = 3
LINES = 33  # of a prompt, about 25 tokens each


def chat(url, messages, max_tokens):
    body = json.dumps({"messages": messages, "max_tokens": max_tokens, "temperature": 0}).encode()
    request = urllib.request.Request(url + "/v1/chat/completions", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=300) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        sys.exit(f"error: {error.code}: {error.read().decode(errors='replace')}")
    except OSError as error:
        sys.exit(f"error: {url} does not answer: {error}")


def logbook(number):
    ships = ["a fishing boat", "the mail steamer", "a collier", "two pilot cutters", "a brig under tow"]
    lines = [f"Log {number}, day {day}: {ships[(day * number) % len(ships)]} passed at {(day * 7 + number) % 24} hours, "
             f"wind force {(day + number) % 9}." for day in range(1, LINES + 1)]
    return "You keep a lighthouse. This is its log book.\n" + "\n".join(lines)


def report(reply):
    cache = reply["kvtier"]
    return {"prompt": reply["usage"]["prompt_tokens"], "cached": cache["cached_tokens"],
            "tiers": cache["blocks_by_tier"], "precision": cache.get("precision", "-"),
            "first_ms": cache["first_token_ms"], "restore_ms": cache["restore_ms"]}


def turns(url):
    messages = [{"role": "system", "content": logbook(99)}]
    print(f"{'turn':>4} {'prompt':>7} {'cached':>7} {'first token':>12}   answer")
    for turn, question in enumerate(["Which ships passed?", "And when was the wind strongest?", "Thank you. Anything else?"], 1):
        messages.append({"role": "user", "content": question})
        reply = chat(url, messages, 24)
        answer = reply["choices"][0]["message"]
        row = report(reply)
        print(f"{turn:>4} {row['prompt']:>7} {row['cached']:>7} {row['first_ms']:>9.0f} ms   "
              f"{' '.join(answer['content'].split())[:60]}", flush=True)
        messages.append(answer)
        if turn > 1 and row["cached"] == 0:
            sys.exit("error: a turn found nothing of the one before")


def measure(url):
    rows = []
    for number in range(1, PROMPTS + 1):
        messages = [{"role": "system", "content": logbook(number)}, {"role": "user", "content": "Summarize it."}]
        rows.append(report(chat(url, messages, 1)))
    return rows


def median(rows, field):
    return statistics.median(row[field] for row in rows)


def show(name, rows, cold_ms):
    first_ms = median(rows, "first_ms")
    print(f"{name:<8} prompt {median(rows, 'prompt'):.0f} tokens, cached {median(rows, 'cached'):.0f} ({rows[0]['precision']}), "
          f"restored in {median(rows, 'restore_ms'):.1f} ms, first token after {first_ms:.0f} ms, "
          f"{cold_ms / first_ms:.1f}x", flush=True)


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    url, step, path = sys.argv[1:]
    if step == "turns":
        turns(url)
    elif step == "cold":
        rows = measure(url)
        if any(row["cached"] > 64 for row in rows):
            sys.exit("error: these prompts have been seen before")
        with open(path, "w", encoding="utf-8") as out:
            json.dump(median(rows, "first_ms"), out)
        show("computed", rows, median(rows, "first_ms"))
    else:
        tier, _, name = step.partition(":")
        rows = measure(url)
        with open(path, encoding="utf-8") as source:
            cold_ms = json.load(source)
        show(name, rows, cold_ms)
        for row in rows:
            elsewhere = sum(row["tiers"]) - row["tiers"][int(tier)]
            if row["cached"] * 10 < row["prompt"] * 8 or elsewhere > 1:
                sys.exit(f"error: expected the prompts from tier {tier}, got {row}")


if __name__ == "__main__":
    main()
