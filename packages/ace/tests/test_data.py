"""The datamodule: which samples go where, in what order, each once, and what it refuses."""

import json
import logging
import sys
from types import SimpleNamespace

import pytest
import torch
from ace.appworld import AppWorldTask
from ace.country import draw_facts, questions
from ace.data import AceData
from ace.finance import Finer, Formula
from ace.tasks import Contains, Numeric, Sample


def rows(prefix, n):
    return [{"question": f"{prefix} {i}?", "target": str(i)} for i in range(n)]


def folder(path, **files):
    for name, content in files.items():
        (path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content))
    return path


def own(root, **options):
    return AceData("jsonl", root, **options)


def ids(loader):
    return [[sample.id for sample in batch] for batch in loader]


def flat(batches):
    return [name for batch in batches for name in batch]


def on(data, rank, world_size, epoch=0, done=0):
    epochs = SimpleNamespace(current=SimpleNamespace(processed=epoch))
    batches = SimpleNamespace(current=SimpleNamespace(completed=done))
    loop = SimpleNamespace(epoch_progress=epochs, epoch_loop=SimpleNamespace(batch_progress=batches))
    data.trainer = SimpleNamespace(global_rank=rank, world_size=world_size, fit_loop=loop, max_epochs=0)
    return data


def test_the_default_is_the_country_desk_of_the_seed():
    data = AceData(seed=5, countries=12)
    data.setup()
    facts = draw_facts(5, 12)
    train, test = questions(facts, "train"), questions(facts, "test")
    assert (data.samples("train"), data.samples("test")) == (train, test)
    assert [s.facts for s in data.samples("val")] == [s.facts for s in train]
    assert data.task == Contains(name="country")
    assert sorted(flat(ids(data.train_dataloader()))) == sorted(s.id for s in train)


def test_an_evaluation_meets_each_of_7_samples_once_in_their_order_at_batch_size_2(tmp_path):
    data = own(folder(tmp_path, train=rows("a", 3), val=rows("b", 7), test=rows("c", 7)), eval_batch_size=2)
    for loader, part in ((data.val_dataloader(), "val"), (data.test_dataloader(), "test")):
        batches = list(loader)
        assert [len(batch) for batch in batches] == [2, 2, 2, 1]
        assert sum(batches, []) == data.samples(part)
    assert isinstance(batches[0], list) and isinstance(batches[0][0], Sample)


def test_two_processes_score_each_of_7_samples_once_between_them(tmp_path):
    root = folder(tmp_path, train=rows("a", 3), val=rows("b", 3), test=rows("c", 7))
    shares = [flat(ids(on(own(root, eval_batch_size=2), rank, 2).test_dataloader())) for rank in (0, 1)]
    assert sorted(sum(shares, [])) == [f"test-{i}" for i in range(1, 8)]


def test_a_resumed_epoch_leaves_out_what_was_done_and_the_next_one_is_whole(tmp_path):
    def loader(done):
        return on(AceData(countries=7, batch_size=2, seed=3), 0, 1, done=done).train_dataloader()

    whole, resumed = ids(loader(0)), loader(3)
    assert len(whole) == 4
    assert ids(resumed) == whole[3:]
    assert ids(resumed) == whole
    assert ids(loader(4)) == whole  # an epoch that was ended


def test_the_order_of_training_is_a_function_of_seed_and_epoch(tmp_path):
    root = folder(tmp_path, train=rows("a", 20), val=rows("b", 1), test=rows("c", 1))
    order = {
        (seed, epoch): flat(ids(on(own(root, seed=seed), 0, 1, epoch).train_dataloader()))
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    assert len(set(map(tuple, order.values()))) == 4
    assert all(sorted(found) == sorted(f"train-{i}" for i in range(1, 21)) for found in order.values())
    assert flat(ids(on(own(root), 0, 1, 1).train_dataloader())) == order[0, 1]


def test_a_delta_is_made_of_batch_size_samples(tmp_path):
    root = folder(tmp_path, train=rows("a", 5), val=rows("b", 1), test=rows("c", 1))
    assert [len(batch) for batch in own(root, batch_size=2).train_dataloader()] == [2, 2, 1]
    assert [len(batch) for batch in own(root).train_dataloader()] == [1] * 5


def test_online_goes_through_the_test_samples_once_in_windows_of_an_order_that_the_seed_fixes(tmp_path):
    root = folder(tmp_path, test=rows("c", 20))
    windows = ids(own(root, protocol="online", window=6).test_dataloader())
    assert [len(window) for window in windows] == [6, 6, 6, 2]
    names = [f"test-{i}" for i in range(1, 21)]
    assert flat(windows) != names and sorted(flat(windows)) == sorted(names)
    assert [len(window) for window in ids(own(root, protocol="online").test_dataloader())] == [1] * 20
    # The window cuts the order and does not change it.
    assert flat(ids(own(root, protocol="online").test_dataloader())) == flat(windows)
    assert flat(ids(own(root, protocol="online", seed=1).test_dataloader())) != flat(windows)
    with pytest.raises(ValueError, match="protocol online needs one process, got 2"):
        on(own(root, protocol="online"), 0, 2).test_dataloader()


def test_without_a_validation_file_a_share_of_the_training_questions_is_held_out_by_the_seed(tmp_path):
    root = folder(tmp_path, train=rows("a", 30), test=rows("c", 2))
    data = own(root, val_fraction=0.2)
    parts = {part: {s.id for s in data.samples(part)} for part in ("train", "val")}
    assert len(parts["val"]) == 6 and not parts["train"] & parts["val"]
    assert len(parts["train"] | parts["val"]) == 30
    assert own(root, val_fraction=0.2).samples("val") == data.samples("val")
    assert own(root, val_fraction=0.2, seed=1).samples("val") != data.samples("val")


def test_a_question_that_occurs_twice_is_not_both_trained_and_validated_on(tmp_path):
    root = folder(tmp_path, train=rows("a", 10) * 2, test=rows("c", 2))
    for seed in range(5):
        data = own(root, val_fraction=0.3, seed=seed)
        asked = [{s.question for s in data.samples(part)} for part in ("train", "val")]
        assert not asked[0] & asked[1]
        assert len(data.samples("val")) == 6


def test_sizes_take_the_first_samples_and_the_test_loop_can_score_validation(tmp_path):
    root = folder(tmp_path, train=rows("a", 5), val=rows("b", 5), test=rows("c", 5))
    data = own(root, train_size=2, val_size=3, test_size=4)
    assert [s.id for s in data.samples("train")] == ["train-1", "train-2"]
    assert (len(data.samples("val")), len(data.samples("test"))) == (3, 4)
    assert flat(ids(own(root, test_on="val", val_size=2).test_dataloader())) == ["val-1", "val-2"]
    with pytest.raises(ValueError, match="train_size is 6, but jsonl has 5 samples to train"):
        own(root, train_size=6).samples("train")


def test_a_test_question_that_is_also_trained_or_validated_on_is_refused(tmp_path):
    leaky = [*rows("c", 3), {"question": " a 1?", "target": "x"}, {"question": "a 0?", "target": "x"}]
    root = folder(tmp_path, train=rows("a", 3), test=leaky)
    for part in ("train", "test"):
        with pytest.raises(ValueError, match=r"test\.jsonl: 2 of its questions are also in train\.jsonl, first test-4"):
            own(root).samples(part)
    folder(tmp_path, test=rows("c", 3), val=rows("c", 1))
    with pytest.raises(ValueError, match=r"1 of its questions are also in val\.jsonl, first test-1"):
        own(root).samples("val")


def test_a_validation_question_that_is_also_trained_on_is_refused(tmp_path):
    root = folder(tmp_path, train=rows("a", 3), val=[*rows("b", 2), *rows("a", 1)], test=rows("c", 2))
    with pytest.raises(ValueError, match=r"val\.jsonl: 1 of its questions are also in train\.jsonl, first val-3"):
        own(root).setup("fit")


def test_online_a_question_that_comes_twice_is_refused_and_offline_it_is_not(tmp_path):
    root = folder(tmp_path, train=rows("a", 3), test=[*rows("c", 2), *rows("c", 1)])
    with pytest.raises(ValueError, match=r"test\.jsonl: test-3 asks what test-1 asks, which is learned from by then"):
        own(root, protocol="online").setup("test")
    assert len(own(root).samples("test")) == 3


@pytest.mark.parametrize(("epochs", "asked"), [(0, 14), (1, 7)])
def test_online_the_country_desk_asks_in_both_wordings_unless_it_was_trained_on_one(epochs, asked):
    data = on(AceData(countries=7, protocol="online"), 0, 1)
    data.trainer.max_epochs = epochs
    assert len(flat(ids(data.test_dataloader()))) == asked


def test_the_same_question_about_another_context_is_another_question(tmp_path):
    def ask(context):
        return [{"question": "Who?", "context": context, "target": "x"}]

    root = folder(tmp_path, train=ask("a"), val=ask("b"), test=ask("c"))
    assert [own(root).samples(part)[0].context for part in ("train", "val", "test")] == ["a", "b", "c"]


def test_files_of_the_paper_are_found_by_their_released_names_and_may_overlap_with_a_warning(tmp_path, caplog):
    row = {"context": 'Use it. Question: "q". Answer:', "target": "1"}
    root = folder(
        tmp_path,
        formula_train_subset_500=[row],
        formula_val_subset_300=[row | {"context": "v"}],
        formula_test=[row, row | {"context": "t"}],
        finer_test_subset_006_seed42=[{"context": "f", "target": "A,B"}],
    )
    data = AceData("formula", root, tolerance=0.1)
    with caplog.at_level(logging.WARNING, logger="ace.data"):
        assert [s.question for s in data.samples("test")] == ["q", "t"]
    assert "1 of its questions are also in formula_train_subset_500.jsonl, first formula_test-1" in caplog.text
    assert [s.question for s in data.samples("train") + data.samples("val")] == ["q", "v"]
    assert data.task == Formula(0.1)
    finer = AceData("finer", root, protocol="online")
    assert (finer.samples("test")[0].target, finer.task) == ("A,B", Finer())


def test_tasks_of_appworld_are_named_by_their_ids_and_need_no_files(monkeypatch):
    fake = SimpleNamespace(load_task_ids=lambda split: [f"{split}_1", f"{split}_2"])
    monkeypatch.setitem(sys.modules, "appworld", fake)
    data = AceData("appworld", appworld_test="test_challenge", train_size=1)
    data.setup("fit")
    assert data.task == AppWorldTask()
    found = {part: [sample.id for sample in data.samples(part)] for part in ("train", "val", "test")}
    assert found == {
        "train": ["train_1"],
        "val": ["dev_1", "dev_2"],
        "test": ["test_challenge_1", "test_challenge_2"],
    }
    assert data.samples("val")[0] == Sample("dev_1", "dev_1", "")
    assert AceData("appworld").samples("test")[0].id == "test_normal_1"


def test_appworld_without_its_package_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "appworld", None)
    with pytest.raises(ImportError, match="AppWorld needs its package and data: `pip install appworld`"):
        AceData("appworld").setup("fit")


def test_training_does_not_begin_without_the_samples_to_test_on(tmp_path):
    root = folder(tmp_path, train=rows("a", 3), val=rows("b", 1))
    with pytest.raises(FileNotFoundError, match=r"there is no data file .*test\.jsonl"):
        own(root).setup("fit")
    own(root, test_on="val").setup("fit")
    own(root).setup("validate")


def test_a_batch_is_the_samples_themselves_on_any_device(tmp_path):
    batch = own(folder(tmp_path, test=rows("c", 2))).samples("test")
    assert AceData().transfer_batch_to_device(batch, torch.device("meta"), 0) is batch


def test_files_can_have_any_name_and_fields_and_the_metric_is_the_users(tmp_path):
    root = folder(tmp_path, mine=[{"q": "1 + 1?", "a": "2"}])
    data = own(root, test_file="mine.jsonl", fields={"question": "q", "target": "a"}, metric="numeric", tolerance=0.5)
    data.setup("test")
    assert data.samples("test") == [Sample("mine-1", "1 + 1?", "2")]
    assert data.task == Numeric(0.5)
    assert own(root, metric="contains").task == Contains()
    folder(root, words=[{"question": "Who?", "target": "Ada"}])
    with pytest.raises(ValueError, match=r"words\.jsonl: metric numeric needs numbers, got target 'Ada' of words-1"):
        own(root, test_file="words.jsonl", metric="numeric").samples("test")


def test_a_missing_file_is_named_when_it_is_needed(tmp_path):
    root = folder(tmp_path, train=rows("a", 1))
    with pytest.raises(FileNotFoundError, match=r"there is no data file .*test\.jsonl"):
        own(root).samples("test")
    with pytest.raises(FileNotFoundError, match=r"there is no data file .*gone\.jsonl"):
        own(root, val_file="gone.jsonl").samples("val")
    with pytest.raises(ValueError, match=r"val_fraction 0.1 of 1 questions leaves none to train on"):
        own(root).samples("train")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "trivia"}, "name must be one of country, finer, formula, appworld, jsonl, got 'trivia'"),
        ({"name": "jsonl"}, "root must be the folder of the files of jsonl, got None"),
        ({"protocol": "both"}, "protocol must be one of offline, online, got 'both'"),
        ({"test_on": "train"}, "test_on must be one of test, val, got 'train'"),
        ({"appworld_test": "dev"}, "appworld_test must be one of test_normal, test_challenge, got 'dev'"),
        ({"countries": 0}, "countries must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"eval_batch_size": -1}, "eval_batch_size must be at least 1, got -1"),
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"test_size": 0}, "test_size must be at least 1, got 0"),
        ({"val_fraction": 1.0}, r"val_fraction must lie in \(0, 1\), got 1.0"),
        ({"name": "formula", "root": ".", "tolerance": -1.0}, "tolerance must be a finite number >= 0, got -1.0"),
    ],
)
def test_an_option_out_of_range_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        AceData(**options)
