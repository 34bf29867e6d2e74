"""The endpoint over real HTTP: what it answers, what it refuses, and that waiting requests are answered together."""

import http.client
import json
import signal
import subprocess
import sys
import threading
import time

import pytest
from ace.chat_api import RequestError, parse_request
from ace.completion import BackendError, Completion, Message, Request, failed
from ace.http_backend import OpenAIBackend
from ace.scripted import ScriptedBackend
from ace.server import Batcher, ChatServer

ASK = {"messages": [{"role": "user", "content": "two words"}], "temperature": 0}


class Gate(ScriptedBackend):
    """Echoes the last message; keeps the sizes of batches, and waits where asked to hold."""

    def __init__(self, context_size=None):
        super().__init__(self.say, "gate")
        self.batches, self.requests = [], []
        self.held = threading.Event()
        self.held.set()
        self.context_size = context_size

    def say(self, request):
        content = request.messages[-1].content
        if content == "fail":
            return failed("the model is tired", 3)
        if content == "long":
            return failed("the prompt has 50 tokens", 50)
        if content == "raise":
            raise BackendError("no model")
        return Completion(content, 7, 2, "length" if content == "cut" else "stop", cached_tokens=4)

    def complete(self, requests):
        self.batches.append(len(requests))
        self.requests += requests
        self.held.wait(10)
        return super().complete(requests)


@pytest.fixture
def gate():
    return Gate(context_size=40)


@pytest.fixture
def server(gate):
    with ChatServer(gate, port=0, batch_size=8) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield server
        gate.held.set()
        server.shutdown()


def send(server, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    connection.request(method, path, content, headers or {})
    response = connection.getresponse()
    found = response.status, json.loads(response.read())
    connection.close()
    return found


def chat(server, **fields):
    return send(server, "POST", "/v1/chat/completions", ASK | fields)


def says(content):
    return [{"role": "user", "content": content}]


def test_an_answer_has_the_form_of_the_api(server):
    status, reply = chat(server, messages=says("cut"))
    assert status == 200
    assert reply["choices"] == [
        {"index": 0, "message": {"role": "assistant", "content": "cut"}, "finish_reason": "length", "logprobs": None}
    ]
    assert reply["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 2,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    assert (reply["object"], reply["model"]) == ("chat.completion", "gate")
    assert abs(reply["created"] - time.time()) < 60
    assert chat(server)[1]["id"] != reply["id"]


def test_models_and_health(server):
    status, models = send(server, "GET", "/v1/models")
    assert (status, [model["id"] for model in models["data"]]) == (200, ["gate"])
    assert send(server, "GET", "/health") == (200, {"status": "ok"})


def test_every_field_reaches_the_backend(server, gate):
    messages = [{"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    chat(server, messages=messages + says("c"), max_tokens=5, temperature=0.5, seed=-1, stop="x", n=1, stream=False)
    chat(server, max_tokens=9, max_completion_tokens=6, seed=3, stop=["x", "y"], model="any", user="me")
    first, second = gate.requests
    assert first == Request((Message("system", "ab"), Message("user", "c")), 5, 0.5, 2**31 - 1, None, ("x",))
    assert second == Request((Message("user", "two words"),), 6, 0.0, 3, None, ("x", "y"))


def test_without_temperature_and_seed_answers_are_drawn_as_the_api_has_it():
    body = {"messages": says("x")}
    requests = [parse_request(body) for _ in range(20)]
    assert {request.temperature for request in requests} == {1.0}
    assert len({request.seed for request in requests}) == 20


def test_our_own_client_gets_what_the_backend_says(server, gate):
    backend = OpenAIBackend(server.url, concurrency=4)
    [completion] = backend.complete([Request((Message("user", "cut"),), max_tokens=5)])
    assert completion == Completion("cut", 7, 2, "length", 4)
    assert gate.requests[0].max_tokens == 5


def test_what_waits_is_answered_as_one_batch_no_larger_than_asked_for_and_each_gets_its_own(server, gate):
    gate.held.clear()
    found = {}
    ask = lambda word: found.update({word: chat(server, messages=says(word))[1]["choices"][0]["message"]["content"]})  # noqa: E731
    threads = [threading.Thread(target=ask, args=("first",))]
    threads[0].start()
    while not gate.batches:
        time.sleep(0.005)
    threads += [threading.Thread(target=ask, args=(f"word {i}",)) for i in range(11)]
    for thread in threads[1:]:
        thread.start()
    while server.batcher._waiting.qsize() < 11:
        time.sleep(0.005)
    gate.held.set()
    for thread in threads:
        thread.join()
    assert gate.batches == [1, 8, 3]
    assert found == {word: word for word in ["first", *(f"word {i}" for i in range(11))]}


def test_a_schema_goes_to_a_backend_that_enforces_it_and_is_refused_otherwise():
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    body = ASK | {"response_format": form}
    assert json.loads(parse_request(body, schemas=True).json_schema) == schema
    with pytest.raises(RequestError, match="response_format json_schema cannot be enforced") as caught:
        parse_request(body)
    assert (caught.value.status, caught.value.field) == (400, "response_format")
    assert parse_request(ASK | {"response_format": {"type": "text"}}).json_schema is None
    assert json.loads(parse_request(ASK | {"response_format": {"type": "json_object"}}, True).json_schema) == {
        "type": "object"
    }


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"stream": True}, "stream", "not as a stream"),
        ({"n": 2}, "n", "n must be 1"),
        ({"top_p": 0.5}, "top_p", "top_p must be 1"),
        ({"tools": [{}]}, "tools", "tools must be []"),
        ({"messages": []}, "messages", "one message or more"),
        ({"messages": "hello"}, "messages", "must be a list"),
        ({"messages": ["hello"]}, "messages", "messages[0] must be an object"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages", "messages[0].role"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages", "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages", "content must be text"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", "content must be text"),
        ({"messages": says("\ud800")}, "messages", "half of a surrogate pair"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_tokens": 1.5}, "max_tokens", "a whole number"),
        ({"max_tokens": True}, "max_tokens", "a whole number"),
        ({"max_completion_tokens": -3}, "max_completion_tokens", "at least 1"),
        ({"temperature": "hot"}, "temperature", "must be a number in [0, 2]"),
        ({"temperature": 2.5}, "temperature", "must be a number in [0, 2]"),
        ({"seed": "a"}, "seed", "a whole number"),
        ({"stop": [""]}, "stop", "none of them empty"),
        ({"stop": 3}, "stop", "a text or a list"),
        ({"response_format": "json"}, "response_format", "known type"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "cannot be enforced"),
    ],
)
def test_a_field_that_is_wrong_or_not_offered_is_named_in_an_error_of_the_apis_form(server, gate, fields, field, words):
    status, reply = chat(server, **fields)
    assert status == 400
    assert reply["error"]["param"] == field
    assert reply["error"]["type"] == "invalid_request_error"
    assert words in reply["error"]["message"]
    assert gate.batches == []


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[1]", b'{"temperature": NaN}', b"[" * 100_000])
def test_a_body_that_is_no_json_object_is_refused_and_the_server_goes_on(server, body):
    status, reply = send(server, "POST", "/v1/chat/completions", body)
    assert (status, reply["error"]["type"]) == (400, "invalid_request_error")
    assert chat(server)[0] == 200


def test_an_unknown_path_is_404(server):
    for method, path in (("POST", "/v1/completions"), ("GET", "/"), ("GET", "/v1/chat/completions")):
        status, reply = send(server, method, path, {} if method == "POST" else None)
        assert (status, path in reply["error"]["message"]) == (404, True)


def test_a_body_that_is_too_long_or_has_no_length_is_refused_unread(server):
    huge = {"Content-Length": str(17 * 1024**2)}
    assert send(server, "POST", "/v1/chat/completions", b"{}", huge)[0] == 413
    for digits in ("9" * 5000, "0" * 5000 + str(17 * 1024**2)):
        status, reply = send(server, "POST", "/v1/chat/completions", b"{}", {"Content-Length": digits})
        assert status == 413
        assert len(reply["error"]["message"]) < 100
    chunked = {"Transfer-Encoding": "chunked", "Content-Length": "x"}
    assert send(server, "POST", "/v1/chat/completions", b"{}", chunked)[0] == 411


def test_failures_of_the_model_are_500_a_prompt_that_does_not_fit_is_400_and_the_next_request_is_answered(server):
    status, reply = chat(server, messages=says("fail"), max_tokens=1)
    assert (status, reply["error"]["message"]) == (500, "the model is tired")
    status, reply = chat(server, messages=says("long"), max_tokens=1)
    assert (status, reply["error"]["code"]) == (400, "context_length_exceeded")
    status, reply = chat(server, messages=says("raise"))
    assert (status, reply["error"]["message"]) == (500, "BackendError: no model")
    assert chat(server)[0] == 200


def test_a_connection_serves_several_requests_and_one_that_ends_early_harms_nobody(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    for _ in range(3):
        connection.request("POST", "/v1/chat/completions", json.dumps(ASK))
        assert json.loads(connection.getresponse().read())["model"] == "gate"
    connection.request("POST", "/v1/chat/completions", json.dumps(ASK))
    connection.close()
    assert chat(server)[0] == 200


def test_stopping_refuses_what_waits_and_what_comes_later():
    gate = Gate()
    gate.held.clear()
    batcher, errors = Batcher(gate, 1), []

    def ask():
        try:
            batcher.answer(Request((Message("user", "x"),)))
        except RequestError as error:
            errors.append((error.status, str(error)))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    while not gate.batches or batcher._waiting.qsize() < 2:
        time.sleep(0.005)
    batcher.stop(timeout=0)
    gate.held.set()
    for thread in threads:
        thread.join(5)
    ask()
    assert errors == [(500, "the server is stopping")] * 3  # two that waited, and the last; one was being answered


def test_a_port_in_use_or_out_of_range_is_one_sentence(server):
    with pytest.raises(ValueError, match=f"port {server.server_port} of 127.0.0.1 cannot be used"):
        ChatServer(Gate(), port=server.server_port)
    with pytest.raises(ValueError, match="port must lie in"):
        ChatServer(Gate(), port=70000)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        ChatServer(Gate(), port=0, batch_size=0)


def test_ctrl_c_ends_the_command_cleanly():
    code = """if True:
        import sys
        import ace.transformers_backend as models
        from ace.scripted import ScriptedBackend
        models.TransformersBackend = lambda *_, **__: ScriptedBackend(lambda request: "x")
        from ace.cli import main
        sys.exit(main(["serve-llm", "--port=0"]))
    """
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    line = process.stderr.readline()
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=30)[1]
    assert "scripted answers at http://127.0.0.1:" in line
    assert rest == "stopped\n"
    assert process.returncode == 0
