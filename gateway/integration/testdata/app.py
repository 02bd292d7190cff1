"""A WSGI application whose workers are the capacity: each request sleeps.

/work?ms=20          sleep 20 ms
/work?ms=20&law=exp  sleep an exponential time with a mean of 20 ms
/chat?tokens=30      stream events, the last of which says how many tokens were used
"""

import random
import time
from urllib.parse import parse_qs


def chat(tokens):
    for word in ("Hello", ",", " world"):
        yield b'data: {"choices":[{"delta":{"content":"%s"}}],"usage":null}\n\n' % word.encode()
    yield b'data: {"choices":[],"usage":{"prompt_tokens":9,"total_tokens":%d}}\n\n' % tokens
    yield b"data: [DONE]\n\n"


def application(environ, start_response):
    query = parse_qs(environ["QUERY_STRING"])
    if environ["PATH_INFO"] == "/chat":
        start_response("200 OK", [("Content-Type", "text/event-stream")])
        return chat(int(query["tokens"][0]))
    seconds = float(query.get("ms", ["20"])[0]) / 1000
    if query.get("law") == ["exp"]:
        seconds = random.expovariate(1 / seconds)
    time.sleep(seconds)
    body = b"done\n"
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]

