import copy
import json
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from email.utils import formatdate
from pathlib import Path
from textwrap import dedent

import pytest
from ace.completion import BackendError, Completion, Message, Request, approximate_tokens
from ace.http_backend import OpenAIBackend
from ace.transport import is_loopback, retry_after, wait_seconds

from .openai_server import OpenAIServer, Reply, completion

KEY = "sk-secret/4711"


def ask(text="Hi", **more):
    return Request((Message("system", "Be short."), Message("user", text)), **more)


def asked(body):
    return body["messages"][-1]["content"]


def backend_for(server, **more):
    return OpenAIBackend(server.url, "local", **{"backoff": 0.01, "timeout": 5.0, **more})


def in_turn(*replies):
    """Answer with each reply once, in order, and with the last from then on."""
    left = list(replies)
    return lambda body: left.pop(0) if len(left) > 1 else left[0]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def error_body(message, **more):
    return {"error": {"message": message, **more}}


def test_request_is_sent_in_the_wire_format_and_usage_comes_back():
    usage = {"prompt_tokens": 11, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}
    with OpenAIServer(lambda body: Reply(completion("yes", "length", usage=usage))) as server:
        [answer] = backend_for(server).complete([ask(max_tokens=7, temperature=0.5, seed=3, stop=("\n",))])
        assert answer == Completion("yes", 11, 3, "length", 8)
        assert server.bodies == [
            {
                "model": "local",
                "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}],
                "max_tokens": 7,
                "temperature": 0.5,
                "seed": 3,
                "stop": ["\n"],
            }
        ]


@pytest.mark.parametrize(
    ("mode", "sent"),
    [
        (
            "json_schema",
            {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True}},
        ),
        ("json_object", {"type": "json_object"}),
        ("none", None),
    ],
)
def test_schema_is_sent_as_the_mode_says(mode, sent):
    with OpenAIServer(lambda body: "{}") as server:
        backend_for(server, schema_mode=mode).complete([ask(json_schema='{"type": "object"}')])
        assert server.bodies[0].get("response_format") == sent


def test_tokens_are_estimated_where_the_server_does_not_count():
    with OpenAIServer(lambda body: Reply(completion("12345", usage={"prompt_tokens": None}))) as server:
        [answer] = backend_for(server).complete([ask("12345678")])
    # 9 and 8 bytes of content are 3 and 2 tokens, and 4 for each message's frame.
    assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (3 + 2 + 8, 2, 0)


def test_cached_tokens_under_deepseeks_name_are_read():
    usage = {"prompt_tokens": 10, "completion_tokens": 1, "prompt_cache_hit_tokens": 6}
    with OpenAIServer(lambda body: Reply(completion("x", usage=usage))) as server:
        assert backend_for(server).complete([ask()])[0].cached_tokens == 6


def test_eight_workers_overlap_and_answer_in_the_order_of_one():
    requests = [ask(str(number)) for number in range(24)]

    def answer(body):
        return Reply(completion(f"answer {asked(body)}"), delay=0.005 * (int(asked(body)) * 7 % 5))

    with OpenAIServer(answer) as server:
        one = backend_for(server, concurrency=1).complete(requests)
        assert server.most == 1
        eight = backend_for(server, concurrency=8).complete(requests)
    assert [completion.text for completion in one] == [f"answer {number}" for number in range(24)]
    assert eight == one
    assert 2 <= server.most <= 8


def test_batch_of_sixteen_slow_answers_takes_the_time_of_two():
    with OpenAIServer(lambda body: Reply(completion("x"), delay=0.2)) as server:
        start = time.monotonic()
        backend_for(server, concurrency=8).complete([ask()] * 16)
        assert 0.4 <= time.monotonic() - start < 1.6  # 3.2 one by one


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
def test_busy_server_is_asked_again_until_it_answers(status):
    with OpenAIServer(in_turn(Reply({}, status), Reply({}, status), "now")) as server:
        [answer] = backend_for(server).complete([ask()])
    assert answer.text == "now"
    assert len(server.bodies) == 3


def test_attempts_are_bounded_and_the_request_fails_alone():
    def answer(body):
        return Reply(error_body("no capacity"), 503) if asked(body) == "bad" else "good"

    with OpenAIServer(answer) as server:
        bad, good = backend_for(server, attempts=3).complete([ask("bad"), ask("good")])
    assert (good.text, good.error) == ("good", None)
    assert bad.finish_reason == "error"
    assert bad.error == f"{server.url} answers HTTP 503 (no capacity), after 3 attempts"
    assert sum(asked(body) == "bad" for body in server.bodies) == 3


def test_dropped_connection_is_tried_again():
    with OpenAIServer(in_turn(Reply(drop=True), "back")) as server:
        assert backend_for(server).complete([ask()])[0].text == "back"


def test_server_says_how_long_to_wait():
    with OpenAIServer(in_turn(Reply({}, 429, {"Retry-After": "0.4"}), "now")) as server:
        start = time.monotonic()
        backend_for(server, backoff=0.0).complete([ask()])
        assert 0.4 <= time.monotonic() - start < 3


def test_wait_doubles_is_jittered_by_a_half_and_ends_at_thirty_seconds():
    assert [wait_seconds(attempt, 1.0, 0.0) for attempt in (1, 2, 3, 9)] == [1, 2, 4, 30]
    assert wait_seconds(2, 1.0, 1.0) == 3
    assert wait_seconds(1, 1.0, 0.5, asked=7.0) == 7
    assert wait_seconds(1, 1.0, 0.5, asked=3600.0) == 30


def test_retry_after_is_seconds_or_a_date():
    assert retry_after("2.5", 0.0) == 2.5
    assert retry_after("-3", 0.0) == 0.0
    assert retry_after(formatdate(1000, usegmt=True), 990.0) == pytest.approx(10)
    assert [retry_after(header, 0.0) for header in (None, "soon", "nan", "inf")] == [None] * 4


def test_slow_server_is_a_failed_completion_in_bounded_time():
    with OpenAIServer(lambda body: Reply(completion("x"), delay=2.0)) as server:
        start = time.monotonic()
        [answer] = backend_for(server, timeout=0.2, attempts=2).complete([ask()])
        assert time.monotonic() - start < 1.5
    assert answer.error == f"{server.url} did not answer within 0.2 s, after 2 attempts"


def test_answer_that_drips_is_a_timeout_too():
    with OpenAIServer(lambda body: Reply(completion("x"), drip=0.05)) as server:
        start = time.monotonic()
        [answer] = backend_for(server, timeout=0.3, attempts=1).complete([ask()])
        assert time.monotonic() - start < 1.5
    assert "did not answer" in answer.error


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply(b"<html>gateway</html>"), "no JSON: '<html>gateway"),
        (Reply(b"\xff\xfe"), "no JSON"),
        (Reply(b"[" * 100_000), "no JSON"),
        (Reply([1]), "not an object but list"),
        (Reply({}), "has no choices"),
        (Reply({"choices": []}), "has no choices"),
        (Reply({"choices": [None]}), "has no text"),
        (Reply({"choices": [{"message": []}]}), "has no text"),
        (Reply(completion([])), "has no text"),
        (Reply(completion([{"type": "text", "text": "a"}, {"type": "image", "text": "b"}])), "has no text"),
        (Reply(completion([{"type": "text", "text": 1}])), "has no text"),
        (Reply(completion(None, "tool_calls")), "has no text (finish_reason is tool_calls)"),
        (Reply(error_body("model is gone")), "has no choices: model is gone"),
        (Reply(error_body("prompt too long"), 400), "answers HTTP 400 (prompt too long)"),
        (Reply({"detail": [{"msg": "bad"}]}, 422), "answers HTTP 422 ([{'msg': 'bad'}])"),
    ],
)
def test_malformed_answer_is_a_failed_completion(reply, said):
    with OpenAIServer(lambda body: reply) as server:
        [answer] = backend_for(server).complete([ask()])
    assert answer.finish_reason == "error"
    assert answer.text == ""
    assert said in answer.error
    assert len(server.bodies) == 1


def test_answer_in_parts_of_text_is_one_text():
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    with OpenAIServer(lambda body: Reply(completion(parts))) as server:
        assert backend_for(server).complete([ask()])[0].text == "a b"


@pytest.mark.parametrize("count", [10**13, 10**400, -1, True, 1.5, "9"])
def test_count_that_is_none_is_estimated(count):
    with OpenAIServer(lambda body: Reply(completion("12345", usage={"completion_tokens": count}))) as server:
        assert backend_for(server).complete([ask()])[0].completion_tokens == 2


def test_half_of_a_surrogate_pair_is_replaced():
    with OpenAIServer(lambda body: "a\ud83d") as server:
        assert backend_for(server).complete([ask("b\ud83d")])[0].text == "a\ufffd"


@pytest.mark.parametrize(
    ("status", "said"),
    [(401, "refuses the key"), (403, "may not use"), (404, "no such path or model"), (307, "redirection")],
)
def test_what_no_request_can_mend_ends_the_batch(status, said):
    with OpenAIServer(lambda body: Reply(error_body("denied"), status)) as server:
        with pytest.raises(BackendError, match=said) as caught:
            backend_for(server, concurrency=2).complete([ask()] * 50)
        assert server.url in str(caught.value)
        assert "\n" not in str(caught.value)
        time.sleep(0.3)
        assert len(server.bodies) <= 4


def test_unreachable_server_is_one_sentence_after_bounded_attempts():
    url = f"http://127.0.0.1:{free_port()}/v1"
    start = time.monotonic()
    with pytest.raises(BackendError, match="cannot be reached") as caught:
        OpenAIBackend(url, "m", backoff=0.05, attempts=3).complete([ask()] * 40)
    assert 0.15 <= time.monotonic() - start < 3  # waits of 0.05 and 0.1
    assert url in str(caught.value)
    assert "base_url" in str(caught.value)
    assert caught.value.__suppress_context__


def test_first_listed_model_is_used_when_none_is_named():
    with OpenAIServer(lambda body: "x", models=("a", "b")) as server:
        backend = OpenAIBackend(server.url)
        name = backend.name
        backend.complete([ask()])
        assert server.bodies[0]["model"] == "a"
        assert backend.name == name == server.url.removeprefix("http://").removesuffix("/v1")
    with OpenAIServer(lambda body: "x", models=()) as server, pytest.raises(BackendError, match="lists no model"):
        OpenAIBackend(server.url).complete([ask()])
    with pytest.raises(BackendError, match="cannot be reached"):
        OpenAIBackend(f"http://127.0.0.1:{free_port()}/v1", backoff=0.0).complete([ask()])


@pytest.mark.parametrize("field", ["seed", "response_format"])
def test_optional_field_that_a_server_rejects_is_left_out_from_then_on(field):
    def answer(body):
        return Reply(error_body("unknown argument", param=field), 400) if field in body else "fine"

    with OpenAIServer(answer) as server:
        backend = backend_for(server)
        for _ in range(2):
            assert backend.complete([ask(json_schema="{}")])[0].text == "fine"
    assert [field in body for body in server.bodies] == [True, False, False]
    other = {"seed": "response_format", "response_format": "seed"}[field]
    assert all(other in body for body in server.bodies)


def test_field_is_kept_when_leaving_it_out_does_not_help():
    with OpenAIServer(lambda body: Reply(error_body("the prompt about a seed is too long"), 400)) as server:
        backend = backend_for(server)
        for _ in range(2):
            assert "too long" in backend.complete([ask()])[0].error
    assert ["seed" in body for body in server.bodies] == [True, False, True, False]


def test_too_long_request_is_not_sent():
    with OpenAIServer(lambda body: "x") as server:
        long, short = backend_for(server, context_size=50).complete([ask("x" * 400, max_tokens=10), ask(max_tokens=10)])
    assert short.text == "x"
    assert long.error == ("the prompt has 111 tokens and up to 10 are to be written, but the model's context holds 50")
    assert len(server.bodies) == 1


def test_key_is_read_when_a_request_is_made(monkeypatch):
    with OpenAIServer(lambda body: "x") as server:
        backend = backend_for(server, api_key_env="ACE_TEST_KEY")
        monkeypatch.delenv("ACE_TEST_KEY", raising=False)
        backend.complete([ask()])
        monkeypatch.setenv("ACE_TEST_KEY", KEY + "\n")
        backend.complete([ask()])
    sent = [headers.get("Authorization") for headers in server.headers]
    assert sent == [None, f"Bearer {KEY}"]


@pytest.mark.parametrize("status", [400, 401, 503, 200])
def test_secrets_that_a_server_echoes_are_in_no_message_log_or_pickle(status, monkeypatch, caplog):
    monkeypatch.setenv("ACE_TEST_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    with OpenAIServer(lambda body: Reply(error_body(f"bad header for {KEY}"), status)) as server:
        backend = backend_for(server, api_key_env="ACE_TEST_KEY", attempts=1)
        try:
            said = backend.complete([ask()])[0].error
        except BackendError as error:
            said = str(error)
    assert "bad header for ***" in said
    assert KEY not in said + repr(backend) + backend.name + caplog.text
    assert KEY.encode() not in pickle.dumps(backend)


def test_key_with_impossible_characters_is_not_shown(monkeypatch):
    monkeypatch.setenv("ACE_TEST_KEY", "sk-“quoted”")
    with OpenAIServer(lambda body: "x") as server, pytest.raises(BackendError, match="ACE_TEST_KEY") as caught:
        backend_for(server, api_key_env="ACE_TEST_KEY").complete([ask()])
    assert "quoted" not in str(caught.value)


def test_proxy_of_the_environment_does_not_divert_loopback(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with OpenAIServer(lambda body: "direct") as server:
        assert backend_for(server).complete([ask()])[0].text == "direct"
    with OpenAIServer(lambda body: "unused") as proxy:  # answers any path but its own with 404
        monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
        with pytest.raises(BackendError, match="404"):
            OpenAIBackend("http://model.invalid/v1", "m").complete([ask()])


def test_loopback_hosts():
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.8.8.8", "::1", "0.0.0.0", "a.localhost")))
    assert not any(map(is_loopback, ("10.0.0.1", "example.org", "localhost.example.org", "::2")))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda backend: pickle.loads(pickle.dumps(backend))])
@pytest.mark.parametrize("used", [False, True])
def test_copy_answers_as_the_original(copied, used):
    with OpenAIServer(lambda body: f"{asked(body)}!") as server:
        backend = backend_for(server)
        if used:
            backend.complete([ask()])
        assert copied(backend).complete([ask("Hey")])[0].text == "Hey!"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("127.0.0.1:8000/v1", "127.0.0.1:8000/v1"),
        ("localhost:8000", "localhost:8000"),
        ("ftp://host/v1", "ftp://host/v1"),
        ("", "''"),
        ("http:///v1", "http:///v1"),
        ("me:hunter22@host/v1", "'host/v1'"),
        ("http://me:hunter22@host/v1?key=hunter22", "'http://host/v1'"),
    ],
)
def test_base_url_that_is_none_is_refused_without_its_secrets(url, shown):
    with pytest.raises(ValueError, match="base_url: expected a URL") as caught:
        OpenAIBackend(url)
    assert shown in str(caught.value)
    assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize("user", ["me:hunter22@", "hunter22@", ":hunter22@"])
def test_base_url_with_a_password_is_refused_since_settings_are_saved(user):
    with pytest.raises(ValueError, match=r"base_url: expected 'http://host/v1' without .*settings are saved") as caught:
        OpenAIBackend(f"http://{user}host/v1")
    assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize("pasted", ["sk-secret-4711", "4711", "a b", "OPENAI_API_KEY\n", ""])
def test_key_in_place_of_its_variables_name_is_refused_and_not_shown(pasted):
    with pytest.raises(ValueError, match="api_key_env: expected the name of an environment variable") as caught:
        OpenAIBackend(api_key_env=pasted)
    assert "4711" not in str(caught.value)
    assert [OpenAIBackend(api_key_env=name).api_key_env for name in (None, "_key2")] == [None, "_key2"]


NULL = ("base_url", "model", "timeout", "attempts", "concurrency", "schema_mode", "max_tokens_field", "backoff")


@pytest.mark.parametrize("option", NULL)
def test_option_that_is_null_is_named(option):
    with pytest.raises(ValueError, match=f"^{option}: expected .*got None$"):
        OpenAIBackend(**{option: None})


def test_tokens_go_by_the_name_that_the_server_wants():
    with OpenAIServer(lambda body: "x") as server:
        backend_for(server, max_tokens_field="max_completion_tokens").complete([ask(max_tokens=7)])
    assert (server.bodies[0]["max_completion_tokens"], "max_tokens" in server.bodies[0]) == (7, False)


def test_trailing_slashes_and_blanks_of_the_base_url_do_not_matter():
    with OpenAIServer(lambda body: "x") as server:
        assert OpenAIBackend(f" {server.url}// ", "m").complete([ask()])[0].text == "x"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("attempts", 0),
        ("concurrency", 0),
        ("context_size", 0),
        ("timeout", 0.0),
        ("timeout", 86_401.0),
        ("timeout", float("inf")),
        ("backoff", -1.0),
        ("backoff", float("nan")),
        ("backoff", float("inf")),
        ("schema_mode", "xml"),
        ("max_tokens_field", "model"),
    ],
)
def test_option_out_of_range_is_named(option, value):
    with pytest.raises(ValueError, match=f"^{option}: expected .*got "):
        OpenAIBackend(**{option: value})


def test_schema_that_is_no_json_is_named():
    with pytest.raises(ValueError, match="json_schema: expected"):
        OpenAIBackend(model="m").complete([ask(json_schema="{")])


def test_empty_batch_needs_no_server():
    assert OpenAIBackend(f"http://127.0.0.1:{free_port()}/v1").complete([]) == []


def test_tokens_are_a_quarter_of_the_bytes_or_those_of_the_tokenizer(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    assert [approximate_tokens(text) for text in ("", "a", "abcd", "abcde", "ééé")] == [0, 1, 1, 2, 2]
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    backend = OpenAIBackend(tokenizer=path)
    assert backend.count_tokens("a b unknown") == 3
    assert pickle.loads(pickle.dumps(backend)).count_tokens("a b") == 2
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        OpenAIBackend(tokenizer=path).count_tokens("a")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        OpenAIBackend(tokenizer=Path("nowhere"))


def test_interrupt_ends_a_batch_and_its_process_at_once():
    program = """
        import sys
        from ace.completion import Message, Request
        from ace.http_backend import OpenAIBackend
        backend = OpenAIBackend(sys.argv[1], "m", timeout=60)
        print("asking", flush=True)
        try:
            backend.complete([Request((Message("user", "Hi"),))] * 50)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """
    with OpenAIServer(lambda body: Reply(completion("x"), delay=30.0)) as server:
        environment = {**os.environ, "PYTHONPATH": str(Path(__import__("ace").__file__).parents[1])}
        process = subprocess.Popen(
            [sys.executable, "-c", dedent(program), server.url], stdout=subprocess.PIPE, text=True, env=environment
        )
        try:
            deadline = time.monotonic() + 30
            while not server.bodies and time.monotonic() < deadline:
                time.sleep(0.02)
            start = time.monotonic()
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=20)
            assert time.monotonic() - start < 5
        finally:
            process.kill()
    assert out.split() == ["asking", "interrupted"]
    assert len(server.bodies) <= 20


def test_body_is_ascii_json_whatever_the_prompt_holds():
    with OpenAIServer(lambda body: json.dumps(asked(body))) as server:
        text = 'é "\u2028\x00🙂'
        assert json.loads(backend_for(server).complete([ask(text)])[0].text) == text
