"""Ask an OpenAI-compatible endpoint: POST URL/chat/completions, one conversation a request, with
the standard library alone.

The key comes from the environment (KEY_VARIABLE) and goes into one header: it is in no setting, no
file and no message, and is not sent along a redirect. Trouble that passes (no connection, a
time-out, 429, 5xx, a reply that is no JSON) is tried again with growing pauses; what does not pass
ends the run in one line, and the same command goes on with the first passage that has no reply.
Left out: streaming, several requests at a time, other ways to sign in.
"""

import http.client
import json
import re
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from urllib.parse import urlsplit

from lm.errors import UserError

KEY_VARIABLE = "QA_API_KEY"
FIRST_PAUSE, LONGEST_PAUSE = (
    1.0,
    60.0,
)  # seconds between tries: doubled each time; a Retry-After counts up to the longest
MAX_BYTES = 4_000_000  # of a reply
AGAIN = frozenset((408, 409, 425, 429, 500, 502, 503, 504, 529))
ONE_PASSAGE = frozenset((400, 413, 422))  # the endpoint does not take this conversation; others may be fine


@dataclass
class EndpointConfig:
    rate: float = 60.0  # requests a minute, at the most
    retries: int = 5  # further tries after one that failed for a while
    timeout: float = 60.0  # seconds until a request counts as failed
    budget: int = 20000  # requests that one call of the program may make, further tries included


class Passing(Exception):
    """Trouble that may pass; `pause` is the number of seconds that the endpoint asks for, or
    None.
    """

    def __init__(self, message, pause=None, of_reply=False):
        super().__init__(message)
        self.pause, self.of_reply = pause, of_reply


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST would lose its body and take its headers elsewhere: it is an error."""

    def redirect_request(self, *arguments):
        return None


def check_url(url):
    """Raise UserError unless `url` is a plain http(s) address that may be written into a run's
    config.json.
    """
    try:
        parts = urlsplit(url)
        fine = (
            parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and parts.hostname.encode("idna")
        )
    except ValueError:
        fine = False
    if not fine or not url.isascii() or re.search(r"\s", url):
        raise UserError(f"--qa.endpoint: expected a URL such as https://HOST/v1, not {url!r}")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise UserError(
            "--qa.endpoint: expected a URL without user, password or query; a key belongs into the environment"
            f" variable {KEY_VARIABLE}"
        )


def shown(text, key, most=200):
    """Foreign text in one printable line of at most `most` characters, without the key."""
    text = " ".join(str(text).split())
    text = text.replace(key, "[key]") if key else text
    return "".join(c if c.isprintable() else "?" for c in text)[:most]


class Endpoint:
    """A chat model behind a URL. Counts its requests (`requests`), and keeps apart in time those
    that it makes.
    """

    def __init__(self, url, model, config, key="", sleep=time.sleep):
        """Raises UserError for a URL or a key of wrong form, never showing the key."""
        check_url(url)
        if key and (not key.isascii() or not key.isprintable() or " " in key):
            raise UserError(f"{KEY_VARIABLE}: holds characters that no key has (a line end or a space, perhaps)")
        self.url = (
            url.rstrip("/") if url.rstrip("/").endswith("/chat/completions") else url.rstrip("/") + "/chat/completions"
        )
        self.model, self.config, self.key, self.sleep = model, config, key, sleep
        self.requests, self.replied, self.next_time = 0, False, 0.0
        self.opener = urllib.request.build_opener(NoRedirect)

    def ask(self, messages, temperature, max_tokens):
        """{"reply": text} to a conversation, or {"error": reason} where the endpoint takes others
        but not this one.

        Raises UserError where no reply is to be had at all, or the budget of requests is used up.
        """
        body = json.dumps(
            {"model": self.model, "messages": messages, "temperature": temperature, "max_tokens": max_tokens}
        ).encode()
        for attempt in range(self.config.retries + 1):
            if self.requests >= self.config.budget:
                raise UserError(
                    f"--endpoint.budget: all {self.config.budget} requests of this call are made; the same command, or"
                    " one with a larger budget, goes on from here"
                )
            self.wait()
            self.requests += 1
            try:
                found = self.once(body)
                self.replied = self.replied or "reply" in found
                return found
            except Passing as trouble:
                last = trouble
                if attempt < self.config.retries:
                    self.sleep(min(LONGEST_PAUSE, FIRST_PAUSE * 2**attempt if trouble.pause is None else trouble.pause))
        if last.of_reply and self.replied:
            return {"error": "the endpoint's reply is broken"}
        raise UserError(f"{self.url}: {last} ({self.config.retries + 1} tries); the same command goes on from here")

    def wait(self):
        """Sleep until the rate allows the next request."""
        now = time.monotonic()
        if now < self.next_time:
            self.sleep(self.next_time - now)
        self.next_time = max(now, self.next_time) + 60.0 / self.config.rate

    def once(self, body):
        """What one request brings: {"reply"} or {"error"}. Raises Passing, or UserError where
        another try would not help.
        """
        request = urllib.request.Request(
            self.url, body, {"Content-Type": "application/json", "User-Agent": "rlkf"}, method="POST"
        )
        if self.key:
            request.add_unredirected_header("Authorization", f"Bearer {self.key}")
        try:
            with self.opener.open(request, timeout=self.config.timeout) as response:
                return self.content(read_all(response, self.config.timeout))
        except urllib.error.HTTPError as error:
            with error:
                return self.refused(error)
        except (OSError, http.client.HTTPException) as error:  # URLError and time-outs are OSErrors
            reason = getattr(error, "reason", error)
            text = (
                "no answer in time"
                if isinstance(reason, TimeoutError)
                else shown(getattr(reason, "strerror", None) or reason or type(reason).__name__, self.key)
            )
            raise Passing(
                f"{text} (timeout {self.config.timeout:g} s)" if isinstance(reason, TimeoutError) else text
            ) from None

    def refused(self, error):
        """What follows from an HTTP status other than success."""
        try:
            said = shown(message_in(error.read(10_000)), self.key)
        except (OSError, http.client.HTTPException):
            said = ""
        status = f"status {error.code}" + (f" ({said})" if said else "")
        if error.code in AGAIN:
            after = error.headers.get("Retry-After", "")
            raise Passing(status, float(after) if re.fullmatch(r"\d{1,6}", after) else None)
        if error.code in ONE_PASSAGE and self.replied:
            return {"error": f"refused by the endpoint: status {error.code}"}
        hint = {
            401: f"; is {KEY_VARIABLE} set to its key?",
            403: f"; may the key in {KEY_VARIABLE} use it?",
            404: "; is --qa.endpoint right (it often ends in /v1), and --qa.model?",
        }.get(error.code, "")
        if 300 <= error.code < 400:
            hint = (
                f"; it redirects to {shown(error.headers.get('Location', 'nowhere'), self.key)}, give that as"
                " --qa.endpoint"
            )
        raise UserError(f"{self.url}: {status}{hint}")

    def content(self, data):
        """{"reply": text} of a successful reply's bytes. Raises Passing where they are not what the
        interface says.
        """
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            kind = (
                "HTML, not JSON; is --qa.endpoint right (it often ends in /v1)?"
                if data.lstrip()[:1] == b"<"
                else "not JSON, or half of it"
            )
            raise Passing(f"the reply is {kind}", of_reply=True) from None
        try:
            text = found["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError):
            said = message_in(data)
            raise Passing(
                "the reply has no choices[0].message.content" + (f" ({shown(said, self.key)})" if said else ""),
                of_reply=True,
            ) from None
        if text is None:
            return {"reply": ""}
        if not isinstance(text, str):
            raise Passing("the reply's content is not text", of_reply=True)
        return {"reply": text.encode("utf-8", "replace").decode()}


def read_all(response, timeout):
    """The bytes of a response, at most MAX_BYTES, within `timeout` seconds however slowly they
    drip.
    """
    parts, size, end = [], 0, time.monotonic() + timeout
    while chunk := response.read1(65536):
        parts.append(chunk)
        size += len(chunk)
        if size > MAX_BYTES:
            raise Passing(f"the reply is longer than {MAX_BYTES} bytes", of_reply=True)
        if time.monotonic() > end:
            raise TimeoutError
    return b"".join(parts)


def message_in(data):
    """The message of an error in the usual form, {"error": {"message": ...}}; the text itself where
    it is short and not HTML.
    """
    try:
        found = json.loads(data)
        found = found.get("error", found.get("detail", found.get("message", ""))) if isinstance(found, dict) else ""
        return found.get("message", "") if isinstance(found, dict) else found
    except (ValueError, RecursionError):
        text = data.decode("utf-8", "replace")
        return "" if text.lstrip().startswith("<") else text
