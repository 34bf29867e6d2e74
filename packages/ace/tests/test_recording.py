import json
import pickle
from dataclasses import replace

import pytest
from ace.completion import BackendError, Completion, Message, Request, failed
from ace.recording import Recorder, Replay, Usage, read_log, request_key
from ace.scripted import ScriptedBackend


def ask(text, **more):
    return Request((Message("user", text),), **more)


class Counting:
    """Answers with the number of the call, so that a second answer to one request differs from the first."""

    name = "counting"

    def __init__(self, errors=()):
        self.asked = []
        self.errors = set(errors)

    def complete(self, requests):
        answers = []
        for request in requests:
            self.asked.append(request.messages[-1].content)
            number = len(self.asked)
            text = f"é\u2028 {number}"
            answers.append(failed("busy", 5) if number in self.errors else Completion(text, 5, 2, "stop", 1))
        return answers

    def count_tokens(self, text):
        return 7


def texts(completions):
    return [completion.text.split()[-1] if completion.text else completion.error for completion in completions]


def entries(log):
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_equal_requests_are_asked_once_in_and_between_batches(tmp_path):
    backend = Counting()
    recorder = Recorder(backend, tmp_path / "run" / "calls.jsonl")
    first = recorder.complete([ask("a"), ask("b"), ask("a"), ask("c")], role="generator", step=1)
    second = recorder.complete([ask("d"), ask("b")], role="reflector", step=2)
    assert backend.asked == ["a", "b", "c", "d"]
    assert texts(first) == ["1", "2", "1", "3"]
    assert texts(second) == ["4", "2"]
    logged = entries(tmp_path / "run" / "calls.jsonl")
    assert [entry["cached"] for entry in logged] == [False, False, True, False, False, True]
    assert [(entry["role"], entry["step"]) for entry in logged] == [("generator", 1)] * 4 + [("reflector", 2)] * 2
    assert [entry["messages"][0]["content"] for entry in logged] == list("abacdb")
    assert recorder.count_tokens("x") == 7


def test_without_cache_every_request_is_asked(tmp_path):
    backend = Counting()
    recorder = Recorder(backend, tmp_path / "calls.jsonl", cache=False)
    assert texts(recorder.complete([ask("a"), ask("a")])) == ["1", "2"]
    assert texts(Replay(tmp_path / "calls.jsonl").complete([ask("a"), ask("a"), ask("a")])) == ["1", "2", "2"]


def test_errors_are_not_remembered():
    backend = Counting(errors=[1])
    recorder = Recorder(backend)
    assert texts(recorder.complete([ask("a"), ask("a")])) == ["busy", "busy"]
    assert texts(recorder.complete([ask("a")])) == ["2"]
    assert texts(recorder.complete([ask("a")])) == ["2"]
    assert backend.asked == ["a", "a"]


def test_usage_counts_calls_and_tokens_of_each_role_and_survives_a_checkpoint():
    recorder = Recorder(Counting(errors=[2]))
    recorder.complete([ask("a"), ask("b"), ask("a")], role="generator")
    recorder.complete([ask("c")], role="curator")
    generator = replace(recorder.usage["generator"], seconds=0.0)
    assert generator == Usage(
        calls=3, prompt_tokens=15, completion_tokens=4, cached_tokens=2, failed=1, seconds=0.0, replayed=1
    )
    assert recorder.usage["generator"].seconds > 0
    assert recorder.usage["curator"].calls == 1
    state = json.loads(json.dumps(recorder.state()))
    other = Recorder(Counting())
    other.load_state(state)
    assert other.usage == recorder.usage
    other.complete([ask("c")], role="curator")
    assert other.usage["curator"].calls == 2
    assert recorder.usage["curator"].calls == 1


def test_key_depends_on_everything_that_decides_the_answer():
    request = ask("a", max_tokens=5, temperature=0, seed=1, json_schema="{}", stop=("x",))
    others = [
        replace(request, messages=(Message("system", "a"),)),
        replace(request, messages=(Message("user", "a"), Message("user", ""))),
        replace(request, max_tokens=6),
        replace(request, temperature=0.5),
        replace(request, seed=2),
        replace(request, json_schema=None),
        replace(request, stop=()),
    ]
    keys = [request_key(other, "m") for other in [request, *others]] + [request_key(request, "n")]
    assert len(set(keys)) == len(keys)
    assert request_key(replace(request, temperature=0.0), "m") == keys[0]


def run(recorder, steps):
    """A run whose prompts depend on all answers so far, as a playbook does."""
    playbook = ""
    for step in steps:
        answers = recorder.complete([ask(f"{playbook}|{step}|{i}") for i in range(3)], role="generator", step=step)
        playbook += "".join(answer.text or "!" for answer in answers)
    return playbook


def test_replay_gives_the_same_bytes_with_failures_too(tmp_path):
    log = tmp_path / "calls.jsonl"
    original = run(Recorder(Counting(errors=[2, 7]), log), range(4))
    assert "!" in original
    assert run(Recorder(Replay(log)), range(4)) == original
    assert run(Recorder(Replay(log), tmp_path / "again.jsonl"), range(4)) == original
    assert run(Recorder(Replay(tmp_path / "again.jsonl")), range(4)) == original


def test_failure_and_its_repetition_are_replayed_in_their_order(tmp_path):
    recorder = Recorder(Counting(errors=[1]), tmp_path / "calls.jsonl")
    original = [texts(recorder.complete([ask("a"), ask("a")])) for _ in range(3)]
    assert original == [["busy", "busy"], ["2", "2"], ["2", "2"]]
    again = Recorder(Replay(tmp_path / "calls.jsonl"))
    assert [texts(again.complete([ask("a"), ask("a")])) for _ in range(3)] == original


@pytest.mark.parametrize("cut", [1, 2, 30, 10_000])
def test_run_that_was_killed_while_writing_goes_on_to_the_same_end(tmp_path, cut):
    unbroken = ScriptedBackend(lambda request: f"[{len(request.messages[-1].content)} é]")
    log = tmp_path / "calls.jsonl"
    expected = run(Recorder(unbroken, log), range(4))
    whole = log.read_bytes()
    last = whole[:-1].rfind(b"\n") + 1
    log.write_bytes(whole[: max(len(whole) - cut, last)])
    resumed = ScriptedBackend(unbroken.answer)
    recorder = Recorder(resumed, log)
    assert run(recorder, range(4)) == expected
    # Only what is lost is asked again: nothing if the line lacks but its end.
    assert resumed.calls == (0 if cut == 1 else 1)
    assert sum(usage.calls for usage in recorder.usage.values()) == 12
    assert len(list(read_log(log))) == (24 if cut == 1 else 23)
    assert log.read_bytes().endswith(b"\n")
    assert run(Recorder(Replay(log)), range(4)) == expected


def test_replay_reads_a_cut_log_and_leaves_it_alone(tmp_path):
    log = tmp_path / "calls.jsonl"
    Recorder(Counting(), log).complete([ask("a"), ask("b")])
    log.write_bytes(log.read_bytes()[:-20])
    before = log.read_bytes()
    replay = Replay(log)
    assert texts(replay.complete([ask("a")])) == ["1"]
    with pytest.raises(BackendError, match="no answer to 'b'"):
        replay.complete([ask("b")])
    assert log.read_bytes() == before


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"",
        b"[]",
        b"3",
        b"{}",
        b'{"key": 1}',
        b"\xff",
        b"[" * 100_000,
        b'{"key":"k","backend":"b","completion":{"no":1}}',
    ],
)
def test_malformed_line_is_named(tmp_path, line):
    log = tmp_path / "calls.jsonl"
    Recorder(Counting(), log).complete([ask("a"), ask("b")])
    first, second = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(first + line + b"\n" + second)
    for reader in (Replay, lambda path: Recorder(Counting(), path)):
        with pytest.raises(ValueError, match=r"calls\.jsonl, line 2: ") as caught:
            reader(log)
        assert "\n" not in str(caught.value)


def changed(**fields):
    return lambda entry: entry["completion"].update(fields)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (changed(prompt_tokens="5"), "prompt_tokens must be a whole number"),
        (changed(completion_tokens=-1), "completion_tokens must be a whole number"),
        (changed(cached_tokens=True), "cached_tokens must be a whole number"),
        (changed(prompt_tokens=10**13), "prompt_tokens must be a whole number"),
        (changed(finish_reason="done"), "finish_reason must be stop, length or error, got 'done'"),
        (changed(error=3), "error must be a text or null, got 3"),
        (changed(text=None), "expected strings"),
        (lambda entry: entry.update(role=1), "expected strings"),
        (lambda entry: entry.update(seconds="1"), "seconds must be a number"),
        (lambda entry: entry.update(seconds=float("nan")), "seconds must be a number"),
        (lambda entry: entry.update(cached=0), "cached must be true or false"),
    ],
)
def test_value_of_another_type_is_named_with_its_line(tmp_path, change, said):
    log = tmp_path / "calls.jsonl"
    Recorder(Counting(), log).complete([ask("a"), ask("b")])
    first, second = entries(log)
    change(second)
    log.write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
    with pytest.raises(ValueError, match=rf"calls\.jsonl, line 2: no entry of a log of completions \({said}"):
        list(read_log(log))


@pytest.mark.parametrize(
    ("answers", "got"),
    [
        ([Completion("x")], "got 1"),
        ([Completion("x")] * 3, "got 3"),
        ([Completion("x"), None], "got NoneType among them"),
        (["x", "y"], "got str among them"),
        (None, "got NoneType"),
    ],
)
def test_backend_that_returns_something_else_is_named_and_nothing_is_written(tmp_path, answers, got):
    class Careless(Counting):
        def complete(self, requests):
            return answers

    said = f"^Careless.complete must return a list of 2 completions, {got}$"
    with pytest.raises(ValueError, match=said):
        Recorder(Careless(), tmp_path / "calls.jsonl").complete([ask("a"), ask("b")])
    assert not (tmp_path / "calls.jsonl").exists()


def test_missing_request_says_role_step_and_first_words(tmp_path):
    log = tmp_path / "calls.jsonl"
    Recorder(Counting(), log).complete([ask("a")])
    with pytest.raises(BackendError, match=r"curator, step 12: .*no answer to 'Read\s+this.*prompts or settings"):
        Recorder(Replay(log)).complete([ask("Read\n this " + "x" * 500)], role="curator", step=12)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.jsonl"):
        Replay(tmp_path / "nowhere.jsonl")


def test_log_of_two_backends_needs_a_name(tmp_path):
    log = tmp_path / "calls.jsonl"
    Recorder(Counting(), log).complete([ask("a")])
    Recorder(ScriptedBackend(lambda request: "scripted"), log).complete([ask("a")])
    with pytest.raises(ValueError, match="one backend"):
        Replay(log)
    with pytest.raises(ValueError, match="'other'"):
        Replay(log, "other")
    assert Replay(log, "scripted").complete([ask("a")])[0].text == "scripted"
    assert texts(Replay(log, "counting").complete([ask("a")])) == ["1"]
    assert Replay(log, "counting", count=len).count_tokens("abc") == 3


def test_empty_batch_writes_nothing_and_a_recorder_can_be_pickled(tmp_path):
    log = tmp_path / "calls.jsonl"
    recorder = Recorder(Counting(), log)
    assert recorder.complete([]) == []
    assert not log.exists()
    recorder.complete([ask("a")])
    assert texts(pickle.loads(pickle.dumps(recorder)).complete([ask("a")])) == ["1"]
    assert [entry["cached"] for entry in entries(log)] == [False, True]
