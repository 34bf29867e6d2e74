"""The module in a real Trainer: what is scored when, which context is kept, and runs that are stopped."""

import json
import logging
import re
from dataclasses import asdict
from types import SimpleNamespace

import pytest
from ace.adaptation import ACE
from ace.baselines import NoContext
from ace.completion import BackendError, failed
from ace.data import AceData
from ace.module import CALLS, STEPS, ACEModule
from ace.recording import read_log
from ace.roles import JsonRoles
from ace.scripted import LessonBackend, ScriptedBackend
from ace.tiny import TinyRoles
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from shared.checkpoints import AtomicCheckpointIO, Manifest, newest


def trainer(**options):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "num_sanity_val_steps": 0, "accelerator": "cpu", "max_epochs": 1}
    return Trainer(**{**quiet, **options})


def write(folder, **parts):
    """Write samples (question, target) of the parts as JSONL."""
    folder.mkdir(exist_ok=True)
    for part, pairs in parts.items():
        lines = (json.dumps({"question": question, "target": target}) for question, target in pairs)
        (folder / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def data_of(folder, **options):
    return AceData("jsonl", folder, metric="contains", **options)


def reflects(request):
    return request.messages[0].content.startswith("State the fact")


def module(say, method=ACE, roles=TinyRoles, **options):
    backend = ScriptedBackend(say) if callable(say) else say
    return ACEModule(method, roles, backend, **options)


def scores_of(metrics):
    return {name.removeprefix("test/"): value for name, value in metrics[0].items()}


# Online: answer first, learn afterwards (Sec. 10, item 7).

NAMES = [f"country {i}" for i in range(6)]
FACTS = {f"Where is {name}?": f"The place of {name} is spot-{i}." for i, name in enumerate(NAMES)}
AGAIN = {question.replace("Where is", "Whereabouts is"): fact for question, fact in FACTS.items()}
PAIRS = [(question, f"spot-{i}") for i, question in enumerate(FACTS)]
REPEATED = [(question, f"spot-{i}") for i, question in enumerate(AGAIN)]


def online(folder, window, tmp_path=None):
    model = module(LessonBackend(FACTS | AGAIN, reflects))
    model.folder = tmp_path
    return model, scores_of(trainer().test(model, data_of(folder, protocol="online", window=window), verbose=False))


@pytest.mark.parametrize("window", [1, 4])
def test_online_accuracy_on_disjoint_facts_is_exactly_0_whatever_the_window(tmp_path, window):
    model, metrics = online(write(tmp_path / "data", test=PAIRS), window)
    assert (metrics["accuracy"], metrics["n"], metrics["bullets"]) == (0, 6, 6)
    assert sorted(bullet.content for bullet in model.method.playbook.bullets) == sorted(FACTS.values())
    assert metrics["steps"] == -(-6 // window)


def test_online_accuracy_is_exactly_one_half_if_each_fact_is_asked_twice_in_separate_windows(tmp_path):
    folder = write(tmp_path / "data", test=[*PAIRS, *REPEATED])
    _, metrics = online(folder, window=1)
    assert (metrics["accuracy"], metrics["n"], metrics["steps"]) == (0.5, 12, 12)


def test_within_one_window_nothing_that_is_learned_there_helps(tmp_path):
    folder = write(tmp_path / "data", test=[*PAIRS, *REPEATED])
    _, metrics = online(folder, window=15)
    assert (metrics["accuracy"], metrics["n"], metrics["steps"]) == (0, 12, 1)


@pytest.mark.parametrize("window", [2, 5])
def test_with_a_window_between_the_score_is_that_of_the_second_askings_in_later_windows(tmp_path, window):
    folder = write(tmp_path / "data", test=[*PAIRS, *REPEATED])
    _, metrics = online(folder, window, tmp_path / "run")
    steps = [json.loads(line) for line in (tmp_path / "run" / STEPS).read_text().splitlines()]
    target = {f"test-{i}": spot for i, (_, spot) in enumerate([*PAIRS, *REPEATED], 1)}
    known, right = set(), 0
    for step in steps:
        asked = [target[name] for name in step["samples"]]
        right += sum(spot in known for spot in asked)
        known |= set(asked)
    assert metrics["accuracy"] == pytest.approx(right / 12)
    assert 0 < right < 6


def test_online_the_curator_is_told_the_number_of_windows_not_of_samples(tmp_path):
    told = []

    def say(request):
        told.extend(re.findall(r"step (\d+) of (\d+)", request.messages[-1].content))
        return '{"final_answer": "somewhere"}'

    folder = write(tmp_path / "data", test=PAIRS)
    trainer().test(module(say, roles=JsonRoles), data_of(folder, protocol="online", window=4), verbose=False)
    assert set(told) == {("1", "2"), ("2", "2")}


def test_no_sample_is_scored_once_it_was_learned_from(tmp_path):
    model = module(LessonBackend(FACTS, reflects))
    data = data_of(write(tmp_path / "data", test=PAIRS), protocol="online")
    trainer().test(model, data, verbose=False)
    with pytest.raises(ValueError, match=r"sample test-\d was learned from: an answer to it is no fair score"):
        trainer().test(model, data, verbose=False)


def test_samples_of_two_files_may_have_one_id(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for part in ("train", "val", "test"):
        (folder / f"{part}.jsonl").write_text(json.dumps({"id": 1, "question": f"{part}?", "target": "t"}) + "\n")
    model = module(lambda request: "t")
    trainer().fit(model, data_of(folder))
    assert scores_of(trainer().test(model, data_of(folder), verbose=False))["accuracy"] == 1


# Offline: the context that is kept (Sec. 10, item 8).


def by_size(scores):
    """A model that answers so many of the validation questions rightly with 0, 1, 2 ... lessons in its context."""

    def say(request):
        asked = request.messages[-1].content
        number = re.search(r"(\d+)\?", asked)[1]
        if reflects(request):
            return f"Lesson of {number}."
        lessons = request.messages[0].content.count("- Lesson of")
        return "yes" if "Val" in asked and int(number) < scores[lessons] else "no"

    return say


def offline(tmp_path, scores, every=1, keep="best", train=None, val=4, **options):
    folder = write(
        tmp_path / "data",
        train=[(f"Train {i}?", "never") for i in range(len(scores) - 1 if train is None else train)],
        val=[(f"Val {i}?", "yes") for i in range(val)],
        test=[(f"Test {i}?", "no") for i in range(3)],
    )
    model = module(by_size(scores), roles=lambda chat: TinyRoles(chat, verify=False), keep=keep)
    fitting = trainer(val_check_interval=every, **options)
    fitting.fit(model, data_of(folder))
    return model, folder, fitting


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ((1, 2, 4, 3), 2),
        ((3, 1, 2, 0), 0),  # before training
        ((0, 1, 2, 4), 3),  # the end of training
        ((1, 3, 3, 3), 1),  # ties: the earliest
        ((2, 2, 2, 2), 0),
        ((2, 1, 2, 3), 3),
    ],
)
def test_the_context_that_is_tested_is_the_first_of_the_best_with_step_0_and_the_end(tmp_path, scores, best):
    model, folder, _ = offline(tmp_path, scores)
    assert [point["accuracy"] for point in model.history] == [score / 4 for score in scores]
    metrics = scores_of(trainer().test(model, data_of(folder), verbose=False))
    assert (model.best["step"], metrics["bullets"]) == (best, best)
    assert [metrics[f"accuracy@{step}"] for step in range(4)] == [score / 4 for score in scores]
    assert (metrics["accuracy"], metrics["n"], metrics["n_failed"], metrics["steps"]) == (1, 3, 0, 3)


@pytest.mark.parametrize(("every", "at"), [(1, [0, 1, 2, 3, 4, 5]), (2, [0, 2, 4, 5]), (3, [0, 3, 5]), (5, [0, 5])])
def test_validation_is_at_every_so_manyth_step_and_at_both_ends_once_each(tmp_path, every, at):
    model, _, _ = offline(tmp_path, (2,) * 6, every)
    assert [point["step"] for point in model.history] == at
    assert model.recorder.usage["evaluation"].calls == 4 * len(at)


def test_the_last_context_is_tested_if_so_asked(tmp_path):
    model, folder, _ = offline(tmp_path, (4, 1, 1, 0), keep="last")
    assert scores_of(trainer().test(model, data_of(folder), verbose=False))["bullets"] == 3


def test_training_that_max_steps_ends_is_validated_at_its_end(tmp_path):
    model, _, fitting = offline(tmp_path, (0, 1, 2, 3, 4), every=4, max_steps=3)
    assert (model.step, fitting.global_step) == (3, 3)
    assert [point["step"] for point in model.history] == [0, 3]
    assert model.best["step"] == 3


def test_training_and_scoring_are_charged_apart_and_each_call_is_counted(tmp_path):
    model, _, _ = offline(tmp_path, (0,) * 4, every=3)
    usage = {role: use.calls for role, use in model.recorder.usage.items()}
    assert usage == {"evaluation": 2 * 4, "reflector": 3 * 3, "generator": 3 * (1 + 3 + 1)}


@pytest.mark.parametrize(("right", "warned"), [(0, True), (1, False), (19, False), (20, True)])
def test_a_model_that_can_do_nothing_or_everything_already_is_warned_of_at_5_and_95_percent(
    tmp_path, caplog, right, warned
):
    with caplog.at_level(logging.INFO, "ace.module"):
        offline(tmp_path, (right,) * 2, val=20)
    assert f"before the first step: {100 * right / 20:.1f} %" in caplog.text
    assert (f"the model is at {5 * right} % already" in caplog.text) == warned


# Failures (Sec. 3.7, item 5).


def test_failed_answers_are_wrong_and_counted(tmp_path):
    questions = [(f"Q {i}?", "yes") for i in range(5)]
    model = module(lambda r: failed("busy") if "3" in r.messages[-1].content else "yes", method=NoContext)
    metrics = scores_of(trainer().test(model, data_of(write(tmp_path / "data", test=questions)), verbose=False))
    assert (metrics["accuracy"], metrics["n"], metrics["n_failed"]) == (pytest.approx(0.8), 5, 1)


def test_a_model_that_answers_nothing_ends_training_before_its_first_step(tmp_path):
    folder = write(tmp_path / "data", train=PAIRS, val=REPEATED[:2], test=REPEATED[2:])
    model = module(lambda request: failed("the prompt is too long"))
    with pytest.raises(ValueError, match="the model answered none of 2 validation samples: the prompt is too long"):
        trainer().fit(model, data_of(folder, train_size=2))
    assert model.step == 0


def test_a_model_that_answers_nothing_has_no_test_score(tmp_path):
    model = module(lambda request: failed("the prompt is too long"), method=NoContext)
    with pytest.raises(ValueError, match="the model answered none of 6 test samples: the prompt is too long"):
        trainer().test(model, data_of(write(tmp_path / "data", test=PAIRS), eval_batch_size=2), verbose=False)


@pytest.mark.parametrize(
    ("stage", "protocol", "refused"),
    [("fit", "offline", True), ("fit", "online", True), ("test", "online", True), ("test", "offline", False)],
)
def test_learning_on_two_processes_is_refused_and_testing_is_not(tmp_path, stage, protocol, refused):
    model = module(lambda request: "")
    data = data_of(write(tmp_path / "data", test=PAIRS), protocol=protocol)
    model._trainer = SimpleNamespace(world_size=2, datamodule=data)
    if refused:
        with pytest.raises(ValueError, match="train on one process"):
            model.setup(stage)
    else:
        model.setup(stage)
    assert (model.learner is None) == refused


def test_an_unknown_choice_of_context_is_refused():
    with pytest.raises(ValueError, match="keep must be best or last, got 'first'"):
        module(lambda request: "", keep="first")


# The same run again, and runs that were stopped (Sec. 10, item 10).


class Killed(Exception):
    """Stands for what ends a process."""


class World:
    """A model of JSON roles whose every word depends on seed and prompt, and that a kill can end at any call."""

    def __init__(self, dies_at=None, error=Killed):
        self.left, self.error = dies_at, error

    def __call__(self, request):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise self.error("the server has gone")
        system, user = request.messages[0].content, request.messages[-1].content
        number = re.search(r"(?:Train|Val|Test) (\d+)\?", user)
        if system.startswith("You answer"):
            lessons = re.findall(r"\[(\w+-\d+)\]", system)
            right = len(lessons) % 4 > int(number[1]) % 3 or request.seed % 3 == 0
            return json.dumps({"bullet_ids": lessons[:2], "final_answer": "yes" if right else "no"})
        if system.startswith("You review"):
            tags = [{"id": name, "tag": "harmful"} for name in re.findall(r"\[(\w+-\d+)\]", user)]
            readable = request.seed % 5 != 0
            return json.dumps({"key_insight": f"draw {request.seed}", "bullet_tags": tags}) if readable else "hm"
        insight = re.search(r"draw \d+", user)[0]
        return json.dumps({"operations": [{"type": "ADD", "section": "OTHERS", "content": f"{insight} {len(user)}"}]})


def a_run(tmp_path, name, world=None, seed=0, resume=False, epochs=2, every=2, by_epoch=True, **options):
    """Train and test, in a folder with checkpoints; returns model and metrics."""
    data = write(
        tmp_path / "data",
        train=[(f"Train {i}?", "yes") for i in range(5)],
        val=[(f"Val {i}?", "yes") for i in range(4)],
        test=[(f"Test {i}?", "yes") for i in range(4)],
    )
    folder = tmp_path / name
    model = module(
        world or World(),
        method=lambda roles: ACE(roles, budget=120, rounds=2),
        roles=lambda chat: JsonRoles(chat, temperature=0.7),
        seed=seed,
    )
    model.folder = folder
    saving = ModelCheckpoint(folder / "checkpoints", "{epoch}-{step}", save_top_k=-1, save_on_train_epoch_end=by_epoch)
    run = trainer(
        max_epochs=epochs, val_check_interval=every, enable_checkpointing=True, callbacks=[saving],
        plugins=[AtomicCheckpointIO(Manifest.of("ace"))], **options,
    )  # fmt: skip
    checkpoint = newest(folder / "checkpoints") if resume and any(folder.rglob("*.ckpt")) else None
    run.fit(model, data_of(data, seed=seed), ckpt_path=checkpoint)
    return model, scores_of(run.test(model, data_of(data, seed=seed), verbose=False))


def state_of(model):
    """What must not depend on whether a run was stopped."""
    usage = {role: asdict(use) | {"seconds": 0, "replayed": 0} for role, use in model.recorder.usage.items()}
    steps = (model.folder / STEPS).read_bytes()
    asked = {entry["key"] for entry in read_log(model.folder / CALLS)}
    return model.method.playbook.to_json(), model.history, usage, dict(model.chat.unreadable), steps, asked


def test_two_runs_of_one_seed_are_equal_to_the_byte_and_those_of_two_seeds_are_not(tmp_path):
    (first, metrics), (second, same), (third, _) = (a_run(tmp_path, str(i), seed=s) for i, s in enumerate((3, 3, 4)))
    assert state_of(first) == state_of(second)
    assert metrics == same
    assert len(first.method.playbook) > 0
    assert first.method.playbook.to_json() != third.method.playbook.to_json()


# Checkpoints are written at the end of epochs, or whenever it was validated, which is within epochs too.
@pytest.mark.parametrize(
    ("dies_at", "by_epoch"),
    [*((call, True) for call in (3, 20, 33, 48, 60)), *((call, False) for call in (7, 20, 33, 48))],
)
def test_a_run_that_is_stopped_anywhere_and_goes_on_equals_an_unbroken_one(tmp_path, dies_at, by_epoch):
    whole, metrics = a_run(tmp_path, "whole", by_epoch=by_epoch)
    assert whole.recorder.backend.calls > 60
    with pytest.raises(Killed):
        a_run(tmp_path, "broken", World(dies_at), by_epoch=by_epoch)
    resumed, again = a_run(tmp_path, "broken", resume=True, by_epoch=by_epoch)
    again_at_most = 3  # of the 4 answers to validation samples, which come back together
    assert resumed.recorder.backend.calls <= whole.recorder.backend.calls - dies_at + again_at_most
    assert state_of(resumed) == state_of(whole)
    assert again == metrics


def test_a_run_that_ends_after_its_last_checkpoint_is_tested_with_the_same_context_when_it_goes_on(tmp_path):
    whole, metrics = a_run(tmp_path, "whole", every=3)
    trained = whole.recorder.backend.calls - 4
    with pytest.raises(Killed):
        a_run(tmp_path, "broken", World(trained + 1), every=3)  # within the test
    resumed, again = a_run(tmp_path, "broken", resume=True, every=3)
    assert resumed.step == 10
    assert again == metrics
    assert state_of(resumed) == state_of(whole)


def test_the_error_of_a_server_that_has_gone_names_role_and_step(tmp_path):
    with pytest.raises(BackendError, match=r"^reflector, step 1: the server has gone$"):
        a_run(tmp_path, "run", World(5, BackendError))
