import logging
import subprocess
import sys

import pytest
from ace import gepa
from ace.completion import BackendError, Completion
from ace.gepa import Gepa
from ace.prompts import Prompts
from ace.recording import Recorder
from ace.roles import Chat
from ace.scripted import ScriptedBackend
from ace.tasks import Contains, Sample
from ace.tiny import TinyRoles

NAMES = ["Oslo", "Rome", "Cairo", "Lima", "Quito"]
SAMPLES = [Sample(f"s{i}", f"Code of place {i}?", name, facts=(name,)) for i, name in enumerate(NAMES)]
NEEDED = "Use the register of cities."


class Model:
    """Answers rightly if the instruction is in its prompt, and proposes texts in turn, the needed one last.

    `asked` has the prompts of proposals, `answered` how often a sample was answered.
    """

    def __init__(self, proposals=("Be brief.", NEEDED)):
        self.proposals, self.asked, self.answered = proposals, [], 0

    def __call__(self, request):
        last = request.messages[-1].content
        if "write a new instruction" in last:
            self.asked.append(request)
            text = self.proposals[min(len(self.asked), len(self.proposals)) - 1]
            return text if isinstance(text, Completion) else f"Here it is:\n```\n{text}\n```"
        self.answered += 1
        known = {sample.question: sample.target for sample in SAMPLES}
        right = any(NEEDED in message.content for message in request.messages[:-1])
        return known[last] if right else "unknown"


def learner_of(model, seed=0, cache=False, log_file=None, **options):
    recorder = Recorder(ScriptedBackend(model), log_file, cache)
    return Gepa(TinyRoles(Chat(recorder, Prompts(), Contains(), seed)), **options)


def train(learner, samples=SAMPLES):
    return [learner.learn([s], step=i, steps=len(samples)) for i, s in enumerate(samples, 1)]


def test_search_finds_the_instruction_that_the_model_needs():
    model = Model()
    learner = learner_of(model)
    assert [a.answer for a in learner.answer(SAMPLES, step=0)] == ["unknown"] * 5
    reports = train(learner)
    assert learner.text() == NEEDED
    assert [a.answer for a in learner.answer(SAMPLES, step=5)] == NAMES
    # Of the first proposal 3 + 3 answers are scored and it is not taken; of the second likewise, and all 5 besides.
    assert [report.operations for report in reports[:-1]] == [[]] * 4
    assert reports[-1].operations == [{"type": "SEARCH", "score": 1.0, "texts": 2, "scored": 5 + 6 + 6 + 5}]
    assert len(model.asked) == 2


def test_nothing_is_asked_before_the_last_step():
    model = Model()
    learner = learner_of(model)
    for step, sample in enumerate(SAMPLES[:4], 1):
        learner.learn([sample], step=step, steps=5)
    assert (model.answered, model.asked, learner.text(), learner.learned) == (0, [], "", [])
    learner.learn(SAMPLES[4:], step=5, steps=5)
    assert learner.learned == [(name,) for name in NAMES]


def test_search_runs_whenever_so_many_new_samples_have_come():
    learner = learner_of(Model(), every=2)
    searched = [bool(learner.learn([s], step=i, steps=100).operations) for i, s in enumerate(SAMPLES, 1)]
    assert searched == [False, True, False, True, False]


def test_samples_of_later_epochs_are_not_doubled():
    learner = learner_of(Model())
    for step in (1, 2):
        learner.learn(SAMPLES, step=step, steps=2)
    assert learner.samples == SAMPLES


def test_search_stops_at_its_budget_of_answers():
    model = Model(["Be brief."])
    learner = learner_of(model, max_calls=20)
    [*_, last] = train(learner)
    # 5 at first, then 6 for each proposal that does not help: 5 + 3 * 6 is the first number from 20 on.
    assert last.operations[0]["scored"] == model.answered == 23
    assert len(model.asked) == 3
    assert learner.text() == ""


def test_proposals_are_shown_the_text_the_attempts_and_their_feedback():
    model = Model()
    train(learner_of(model, instructions="Start here.", minibatch=2))
    [message] = model.asked[0].messages
    shown = [sample for sample in SAMPLES if sample.question in message.content]
    assert len(shown) == 2
    for sample in shown:
        assert f"The answer is wrong. The right answer: {sample.target}" in message.content
    assert "Start here." in message.content and "unknown" in message.content
    assert model.asked[0].max_tokens == 2048


def test_match_bit_does_not_reveal_the_answer():
    class Roles(TinyRoles):
        needs_label = False

    model = Model()
    chat = Chat(Recorder(ScriptedBackend(model), cache=False), Prompts(), Contains())
    train(Gepa(Roles(chat), feedback="match_bit"))
    for request in model.asked:
        assert "The answer is wrong." in request.messages[0].content
        assert not any(name in request.messages[0].content for name in NAMES)


def prompts_of(seed):
    model = Model(["Be brief.", "Be polite.", "Be quick.", NEEDED])
    learner = learner_of(model, seed=seed)
    train(learner)
    return learner.state(), [(request.messages, request.seed) for request in model.asked]


def test_search_is_a_function_of_the_seed():
    assert prompts_of(1) == prompts_of(1)
    shown = [[messages for messages, _ in prompts_of(seed)[1]] for seed in (1, 2)]
    assert shown[0] != shown[1]  # other minibatches
    seeds = [seed for _, seed in prompts_of(1)[1]]
    assert len(set(seeds)) == len(seeds)


def test_calls_are_logged_as_the_roles_of_optimiser_and_generator(tmp_path):
    learner = learner_of(Model(), cache=True, log_file=tmp_path / "calls.jsonl")
    train(learner)
    usage = learner.roles.chat.recorder.usage
    assert usage["optimiser"].calls == 2
    assert usage["generator"].calls == 22


def test_state_goes_on_where_it_was():
    straight, first = learner_of(Model()), learner_of(Model())
    train(straight)
    for step, sample in enumerate(SAMPLES[:3], 1):
        first.learn([sample], step=step, steps=5)
    resumed = learner_of(Model())
    resumed.load_state(first.state())
    for step, sample in enumerate(SAMPLES[3:], 4):
        resumed.learn([sample], step=step, steps=5)
    assert resumed.state() == straight.state()
    assert resumed.text() == NEEDED


def test_proposal_that_fails_is_none():
    failure = Completion("", finish_reason="error", error="too long")
    model = Model([failure, failure, NEEDED])
    learner = learner_of(model)
    train(learner)
    assert learner.text() == NEEDED
    assert learner.roles.chat.recorder.usage["optimiser"].failed == 2


@pytest.mark.parametrize("max_calls", [6, 200])
def test_unreachable_model_ends_the_search(max_calls):
    model = Model()

    def answer(request):
        if "write a new instruction" in request.messages[-1].content:
            raise BackendError("nobody answers")
        return model(request)

    with pytest.raises(BackendError, match="optimiser, step 5: nobody answers"):
        train(learner_of(answer, max_calls=max_calls))
    assert model.answered <= 5 + 3


def test_the_package_prints_nothing(capfd, caplog):
    with caplog.at_level(logging.INFO):
        train(learner_of(Model()))
    assert capfd.readouterr() == ("", "")
    assert caplog.text == ""


@pytest.mark.parametrize("option", ["budget", "max_calls", "minibatch", "every"])
def test_option_out_of_range_is_named(option):
    with pytest.raises(ValueError, match=f"{option} must be at least 1, got 0"):
        learner_of(Model(), **{option: 0})


def test_temperature_and_feedback_are_checked():
    with pytest.raises(ValueError, match="temperature must be a finite number >= 0, got nan"):
        learner_of(Model(), temperature=float("nan"))

    class Roles(TinyRoles):
        needs_label = False

    roles = Roles(Chat(Recorder(ScriptedBackend(Model())), Prompts(), Contains()))
    with pytest.raises(ValueError, match=r"feedback: GEPA needs label or match_bit, .* got none"):
        Gepa(roles, feedback="none")


def test_missing_package_is_one_sentence_that_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(gepa, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="uv run --package ace --extra gepa") as caught:
        learner_of(Model())
    assert "\n" not in str(caught.value)


def test_the_package_is_imported_when_a_search_begins():
    code = "import sys, ace.gepa; print('gepa' in sys.modules, 'torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]
