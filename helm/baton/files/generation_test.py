"""Run by `helm test`: makes a generation over HTTP and one over gRPC, or is refused both where keys
are needed and it has none."""

import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from baton import Client, errors
from baton.tls import Tls

TLS = Path("/etc/baton/tls")
HTTPS_CA = Path("/etc/baton/https/ca.crt")
PROMPT = os.environ["PROMPT"]
KEY = os.environ.get("API_KEY") or None
TIMEOUT_S = float(os.environ["TIMEOUT_S"])
REFUSED = os.environ["EXPECT_REFUSED"] == "true"


def certificates() -> ssl.SSLContext:
    """Believes the gateway's CA, or the system's; the certificate may be for the public name."""
    context = ssl.create_default_context(cafile=HTTPS_CA if HTTPS_CA.exists() else None)
    context.check_hostname = False
    return context


def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The gateway's answer; raises HTTPError where it refuses."""
    url = os.environ["GATEWAY"] + path
    headers = {"Content-Type": "application/json"}
    if KEY:
        headers["Authorization"] = f"Bearer {KEY}"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    context = certificates() if url.startswith("https:") else None
    with urllib.request.urlopen(request, timeout=TIMEOUT_S / 2, context=context) as answer:
        content: dict[str, Any] = json.load(answer)
        return content


def over_http() -> str:
    """The text of a completion."""
    body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    try:
        answer = ask("/v1/completions", body)
    except urllib.error.HTTPError as error:
        if error.code == 401 and REFUSED:
            return "refused without a key, as it should be"
        sys.exit(f"HTTP: {error.code} {error.read().decode(errors='replace')}")
    if REFUSED:
        sys.exit("HTTP: the gateway answered a request without a key")
    if not answer["usage"]["completion_tokens"]:
        sys.exit(f"HTTP: no tokens in {answer}")
    return str(answer["choices"][0]["text"])


def over_grpc() -> str:
    """The text of a completion."""
    tls = None
    if TLS.exists():
        tls = Tls(TLS / "ca.crt", TLS / "tls.crt", TLS / "tls.key", os.environ["SERVER_NAME"])
    with Client(os.environ["ROUTER"], api_key=KEY, tls=tls, insecure=True) as client:
        try:
            done = client.complete(PROMPT, max_tokens=8, temperature=0, timeout=TIMEOUT_S / 2)
        except errors.Unauthenticated as error:
            if REFUSED:
                return "refused without a key, as it should be"
            sys.exit(f"gRPC: {error}")
    if REFUSED:
        sys.exit("gRPC: the router answered a request without a key")
    if not done.token_ids:
        sys.exit("gRPC: no tokens")
    return done.text


sys.stdout.write(f"HTTP: {over_http()}\n")
sys.stdout.write(f"gRPC: {over_grpc()}\n")
