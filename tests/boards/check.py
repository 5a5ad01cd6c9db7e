"""Runs every query of the Grafana board and every rule against a real Prometheus that scrapes a gateway in an outage.

check.py GATEWAY CONTROL PROMETHEUS NATIVE BOARD: addresses, and the board's file; NATIVE is a Prometheus that takes native
histograms. The tenant's key is BOARDS_TENANT_KEY.
"""

import itertools
import json
import os
import re
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

GATEWAY, CONTROL, PROMETHEUS, NATIVE, BOARD = sys.argv[1:6]
KEY = os.environ["BOARDS_TENANT_KEY"]

# Healthy, one provider overloaded for a moment, its key refused, the other one down as well, that one back: seconds of each.
AUTH = {"rules": [{"fault": {"error": "auth"}}]}
PHASES = [
    ({}, 4),
    ({"openai": {"rules": [{"fault": {"error": "overloaded"}, "times": 3}]}}, 4),
    ({"openai": AUTH}, 4),
    ({"openai": AUTH, "anthropic": {"rules": [{"fault": {"error": "server_error"}}]}}, 5),
    ({"openai": AUTH}, 3),
]

# What Grafana puts in the place of its variables.
VARIABLES = {"$__rate_interval": "10s", "$route": ".*"}


NUMBERS = itertools.count()


def call(address, body=None, method=None, key=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data=data, method=method)
    request.add_header("content-type", "application/json")
    if key:
        request.add_header("authorization", f"Bearer {key}")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


def ask(number):
    # No two are the same: what fails for one prompt alone says little of a provider.
    body = {
        "model": "gpt-4o",
        "stream": number % 2 == 0,
        "messages": [{"role": "user", "content": f"How was night {number} at the lighthouse?"}],
    }
    try:
        request = urllib.request.Request(GATEWAY + "/v1/chat/completions", json.dumps(body).encode())
        request.add_header("content-type", "application/json")
        request.add_header("authorization", f"Bearer {KEY}")
        request.add_header("x-steadfast-timeout-ms", "2500")
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()
    except (urllib.error.URLError, OSError):
        # In an outage some fail, which is what the board is for.
        pass


def load(until):
    threads = []
    while time.time() < until:
        thread = threading.Thread(target=ask, args=(next(NUMBERS),))
        thread.start()
        threads.append(thread)
        time.sleep(0.1)
    return threads


def newest(prometheus, expression):
    """The value of an expression that has one."""
    text = urllib.parse.urlencode({"query": expression})
    series = json.loads(call(f"{prometheus}/api/v1/query?{text}"))["data"]["result"]
    return float(series[0]["value"][1]) if len(series) == 1 else None


def names(prometheus):
    """Of what the gateway has, without what rules made of it."""
    all_names = json.loads(call(f"{prometheus}/api/v1/label/__name__/values"))["data"]
    return {name for name in all_names if re.fullmatch("steadfast_[a-z_]+", name)}


def native_histograms():
    """What is wrong with them: they are scraped, as many as there are requests, and the rest of the page as well."""
    requests = newest(PROMETHEUS, "sum(steadfast_requests_total)")
    counts = {
        "requests by messages": newest(NATIVE, "sum(steadfast_requests_total)"),
        "times in native buckets": newest(NATIVE, "histogram_count(sum(steadfast_time_to_end_seconds))"),
        "times in classic buckets": newest(PROMETHEUS, "sum(steadfast_time_to_end_seconds_count)"),
    }
    wrong = [f"{name}: {count} of {requests}" for name, count in counts.items() if not count or count != requests]
    # A native histogram is one series, where a classic one has three names.
    text, messages = names(PROMETHEUS), names(NATIVE)
    text = {re.sub("(_seconds)_(bucket|sum|count)$", r"\1", name) for name in text}
    if text != messages:
        wrong.append(f"by text or by messages alone: {', '.join(sorted(text ^ messages))}")
    half = newest(NATIVE, "histogram_quantile(0.5, sum(steadfast_time_to_end_seconds))")
    if not half:
        return wrong + ["native histograms have no quantile"]
    print(f"native histograms: {requests:.0f} times, half of them within {half * 1e3:.1f} ms")
    return wrong


def query(expression, start, end):
    text = urllib.parse.urlencode({"query": expression, "start": start, "end": end, "step": 1})
    answer = json.loads(call(f"{PROMETHEUS}/api/v1/query_range?{text}"))
    return answer["data"]["result"]


def panels(board):
    for panel in board["panels"]:
        yield from panels(panel) if panel["type"] == "row" and panel.get("panels") else [panel]


def main():
    wrong, threads, start = [], [], time.time()
    for faults, seconds in PHASES:
        for provider in ("openai", "anthropic"):
            plan = faults.get(provider, {"rules": []})
            call(f"{CONTROL}/{provider}/faults", plan, method="PUT")
        threads += load(time.time() + seconds)
    for thread in threads:
        thread.join()
    # One more scrape, and one more round of the rules.
    time.sleep(3)
    end = time.time()

    with open(BOARD, encoding="utf-8") as file:
        board = json.load(file)
    count = 0
    for panel in panels(board):
        for target in panel.get("targets", []):
            expression = target["expr"]
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            count += 1
            try:
                series = query(expression, start, end)
            except urllib.error.HTTPError as error:
                wrong.append(f"{panel['title']}: {error.read().decode()}: {expression}")
                continue
            numbers = [value for one in series for _, value in one["values"] if value != "NaN"]
            if not numbers:
                wrong.append(f"{panel['title']}: no series: {expression}")
    print(f"{count} queries of the board, {len(wrong)} without series")

    groups = json.loads(call(f"{PROMETHEUS}/api/v1/rules"))["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    wrong += [f"{rule['name']}: {rule.get('lastError')}" for rule in rules if rule["health"] != "ok"]
    states = {rule["name"]: rule["state"] for rule in rules if rule["type"] == "alerting"}
    print(f"{len(rules)} rules; " + ", ".join(f"{name} {state}" for name, state in states.items() if state != "inactive"))
    if states.get("SteadfastCredentialRefused") != "firing":
        wrong.append("SteadfastCredentialRefused does not fire while a key is refused")

    wrong += native_histograms()
    for line in wrong:
        print(line, file=sys.stderr)
    sys.exit(1 if wrong else 0)


main()
