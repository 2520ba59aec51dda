"""The endpoint against a server of the test's own: retries, limits, what is said of trouble, and
that the key is never shown.
"""

import contextlib
import http.server
import json
import socket
import threading
import time

import pytest

from data import endpoint
from lm.errors import UserError

KEY = "sk-very-secret-123"
TURN = [{"role": "user", "content": "谁？"}]


def reply(text):
    return 200, json.dumps({"choices": [{"message": {"content": text}}]})


class Server(http.server.BaseHTTPRequestHandler):
    """Answers from the server's list of (status, body[, headers]) in order, the last one again and
    again; keeps what was asked.
    """

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((self.path, dict(self.headers), json.loads(body)))
        script = self.server.script
        status, text, *headers = script.pop(0) if len(script) > 1 else script[0]
        if callable(text):
            return text(self)
        data = text if isinstance(text, bytes) else text.encode()
        self.send_response(status)
        for name, value in (headers[0] if headers else {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        pass


@contextlib.contextmanager
def serving(*script):
    """(URL, list of requests seen) of a server in a thread of its own."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    server.script, server.seen = list(script), []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", server.seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def client(url, pauses=None, key=KEY, **limits):
    config = endpoint.EndpointConfig(**{"rate": 1e9, "retries": 2, "timeout": 5.0, **limits})
    return endpoint.Endpoint(url, "some-model", config, key, sleep=[].append if pauses is None else pauses.append)


def ask(remote):
    return remote.ask(TURN, 0.5, 32)


def complaint(function, *arguments, **options):
    with pytest.raises(UserError) as caught:
        function(*arguments, **options)
    assert "\n" not in str(caught.value) and KEY not in str(caught.value) and KEY not in repr(caught.value.__context__)
    return str(caught.value)


def test_what_is_sent_and_what_comes_back():
    with serving(reply("是我")) as (url, seen):
        assert ask(client(url)) == {"reply": "是我"}
    path, headers, body = seen[0]
    assert path == "/v1/chat/completions" and headers["Authorization"] == f"Bearer {KEY}"
    assert body == {"model": "some-model", "messages": TURN, "temperature": 0.5, "max_tokens": 32}


def test_without_a_key_no_header_is_sent():
    with serving(reply("x")) as (url, seen):
        ask(client(url + "/chat/completions/", key=""))
    assert "Authorization" not in seen[0][1] and seen[0][0] == "/v1/chat/completions"


@pytest.mark.parametrize(
    "trouble",
    [
        (429, "{}"),
        (500, "oops"),
        (502, "<html>bad gateway</html>"),
        (503, ""),
        (200, "<html>hello</html>"),
        (200, '{"choices": [{"mess'),
        (200, "{}"),
        (200, '{"choices": []}'),
        (200, '{"choices": [{"message": {"content": 3}}]}'),
        (200, b"\xff\xfe"),
    ],
)
def test_trouble_that_passes_is_tried_again_with_growing_pauses(trouble):
    pauses = []
    with serving(trouble, trouble, reply("fine")) as (url, seen):
        assert ask(client(url, pauses)) == {"reply": "fine"}
    assert len(seen) == 3 and pauses == [1.0, 2.0]


def test_the_pause_that_a_server_asks_for_is_kept_within_bounds():
    for asked, pause in (("7", 7.0), ("99999", endpoint.LONGEST_PAUSE), ("tomorrow", 1.0), ("-3", 1.0)):
        pauses = []
        with serving((429, "", {"Retry-After": asked}), reply("fine")) as (url, _):
            ask(client(url, pauses))
        assert pauses == [pause]


@pytest.mark.parametrize(
    "trouble, words",
    [
        (
            (401, json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}\nsecond line"}})),
            ["401", "QA_API_KEY", "[key]"],
        ),
        ((403, "no"), ["403", "QA_API_KEY"]),
        ((404, "<html>not here</html>"), ["404", "/v1"]),
        ((400, '{"error": "bad model"}'), ["400", "bad model"]),
        ((429, '{"error": {"message": "slow down"}}'), ["429", "slow down", "3 tries"]),
        ((500, ""), ["500", "goes on from here"]),
        ((200, "<html>"), ["HTML"]),
        ((200, '{"choices": [{"me'), ["half"]),
        ((200, '{"error": {"message": "no credit"}}'), ["no credit"]),
        ((302, "", {"Location": "http://127.0.0.1:1/x"}), ["redirects to http://127.0.0.1:1/x"]),
    ],
)
def test_trouble_that_stays_is_one_line_without_the_key(trouble, words):
    with serving(trouble) as (url, _):
        message = complaint(ask, client(url))
    assert all(word in message for word in words) and url in message, message


def test_an_endpoint_that_is_down_is_one_line():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
    assert "3 tries" in complaint(ask, client(url))
    assert "3 tries" in complaint(ask, client("http://host.invalid/v1"))


def test_a_server_that_hangs_up_is_tried_again():
    def hang_up(handler):
        handler.close_connection = True
        handler.connection.shutdown(socket.SHUT_RDWR)

    with serving((0, hang_up), reply("fine")) as (url, _):
        assert ask(client(url)) == {"reply": "fine"}


@pytest.mark.parametrize("drips", [False, True])
def test_a_slow_endpoint_is_one_line_after_the_time_out(drips):
    def slow(handler):
        if drips:
            handler.send_response(200)
            handler.end_headers()
        for _ in range(6):
            time.sleep(0.1)
            if drips:
                with contextlib.suppress(OSError):
                    handler.wfile.write(b" ")

    with serving((0, slow)) as (url, seen):
        started = time.monotonic()
        assert "no answer in time (timeout 0.25 s)" in complaint(ask, client(url, timeout=0.25, retries=1))
        assert len(seen) == 2 and time.monotonic() - started < 2


def test_half_of_a_reply_is_tried_again():
    def half(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b'{"choices"')
        handler.close_connection = True

    with serving((0, half), reply("fine")) as (url, seen):
        assert ask(client(url)) == {"reply": "fine"} and len(seen) == 2


def test_one_passage_that_is_refused_is_skipped_where_others_are_taken():
    with serving(reply("fine"), (400, '{"error": "filtered"}')) as (url, _):
        remote = client(url)
        assert ask(remote) == {"reply": "fine"} and ask(remote) == {"error": "refused by the endpoint: status 400"}
    with serving(reply("fine"), (200, "<html>")) as (url, _):
        remote = client(url)
        ask(remote)
        assert ask(remote) == {"error": "the endpoint's reply is broken"}
    with serving(reply("fine"), (500, "")) as (url, _):
        remote = client(url)
        ask(remote)
        assert "500" in complaint(ask, remote), "one that fails as a whole loses no passage"


def test_the_budget_counts_every_try():
    with serving((500, ""), reply("a"), reply("b"), reply("c")) as (url, seen):
        remote = client(url, budget=3)
        assert ask(remote) == {"reply": "a"} and ask(remote) == {"reply": "b"}
        assert "--endpoint.budget: all 3" in complaint(ask, remote)
    assert len(seen) == 3


def test_requests_keep_apart_in_time():
    pauses = []
    with serving(reply("x")) as (url, _):
        remote = client(url, pauses, rate=60.0)
        for _ in range(3):
            ask(remote)
    assert len(pauses) == 2 and 0.8 < pauses[0] <= 1.0 and 1.6 < pauses[1] <= 2.0  # `sleep` does not sleep here


def test_a_reply_with_half_a_character_or_without_text_can_be_written():
    with serving(
        (200, '{"choices": [{"message": {"content": "\\ud800x"}}]}'),
        (200, '{"choices": [{"message": {"content": null}}]}'),
    ) as (url, _):
        remote = client(url)
        assert ask(remote)["reply"].encode() == b"?x" and ask(remote) == {"reply": ""}


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8000",
        "ftp://x/v1",
        "http://",
        "http://a b/v1",
        f"http://user:{KEY}@host/v1",
        f"https://host/v1?key={KEY}",
        "http://[::1/v1",
        "http://host:99999/v1",
        "http://host/v1#x",
    ],
)
def test_a_url_of_wrong_form_is_refused(url):
    assert "--qa.endpoint" in complaint(client, url)


@pytest.mark.parametrize("key", [KEY + "\n", KEY + " x", KEY + "é"])
def test_a_key_of_wrong_form_is_refused_and_not_shown(key):
    assert "QA_API_KEY" in complaint(client, "http://host/v1", key=key)


def test_what_a_server_says_is_shown_as_one_short_printable_line():
    with serving((404, json.dumps({"error": {"message": "\x1b[31mred\n" + "x" * 1000}}))) as (url, _):
        message = complaint(ask, client(url))
    assert message.isprintable() and len(message) < 500
