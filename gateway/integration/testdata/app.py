"""A WSGI application whose workers are the capacity: each request sleeps.

/work?ms=20          sleep 20 ms
/work?ms=20&law=exp  sleep an exponential time with a mean of 20 ms
"""

import random
import time
from urllib.parse import parse_qs


def application(environ, start_response):
    query = parse_qs(environ["QUERY_STRING"])
    seconds = float(query.get("ms", ["20"])[0]) / 1000
    if query.get("law") == ["exp"]:
        seconds = random.expovariate(1 / seconds)
    time.sleep(seconds)
    body = b"done\n"
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]

