import csv
import logging

import pytest
from shared.logs import CSVMetrics, metrics_table, wandb_reachable

from shared import logs


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_metrics_of_one_step_share_a_row_and_new_ones_get_a_column(tmp_path):
    logger = CSVMetrics(tmp_path)
    logger.log_metrics({"loss": 1.5}, step=0)
    logger.log_metrics({"val": 0.25}, step=0)
    logger.log_metrics({"loss": 1.0}, step=1)
    logger.finalize("success")
    assert rows(tmp_path / "metrics.csv") == [
        {"step": "0", "loss": "1.5", "val": "0.25"},
        {"step": "1", "loss": "1", "val": ""},
    ]


def test_a_resumed_run_goes_on_with_the_table_from_its_checkpoint(tmp_path):
    first = CSVMetrics(tmp_path)
    for step in range(5):
        first.log_metrics({"loss": step}, step=step)
    first.finalize("failed")
    second = CSVMetrics(tmp_path)
    second.log_metrics({"loss": 30}, step=3)
    second.finalize("success")
    assert [(r["step"], r["loss"]) for r in rows(tmp_path / "metrics.csv")] == [
        ("0", "0"), ("1", "1"), ("2", "2"), ("3", "30"),
    ]  # fmt: skip


def test_the_table_is_on_disk_once_a_checkpoint_is(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "SECONDS_BETWEEN_WRITES", 1e9)
    logger = CSVMetrics(tmp_path)
    logger._written = float("inf")
    logger.log_metrics({"loss": 1.0}, step=0)
    logger.save()
    assert not (tmp_path / "metrics.csv").exists()
    logger.after_save_checkpoint(None)
    assert len(rows(tmp_path / "metrics.csv")) == 1


@pytest.fixture
def no_wandb(monkeypatch, tmp_path):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def test_wandb_is_offline_without_a_key(no_wandb):
    assert not wandb_reachable()


def test_wandb_is_offline_when_the_server_does_not_answer(no_wandb, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    assert not wandb_reachable()


def test_wandb_is_online_with_a_key_and_a_server_unless_switched_off(no_wandb, monkeypatch, tmp_path):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert not wandb_reachable()
        (tmp_path / "netrc").write_text("machine 127.0.0.1 login user password 0000\n")
        assert wandb_reachable()
        monkeypatch.setenv("WANDB_MODE", "offline")
        assert not wandb_reachable()


def test_the_console_is_set_up_once_and_quiets_lightning():
    root = logging.getLogger()
    kept = root.handlers[:], root.level
    try:
        logs.setup_console()
        logs.setup_console()
        assert len(root.handlers) == 1
        assert not logging.getLogger("lightning.pytorch").isEnabledFor(logging.INFO)
    finally:
        root.handlers[:], root.level = kept


def test_counts_are_shown_whole_and_fractions_with_four_digits():
    table = metrics_table({"n": 597.0, "clean": 0.98765, "one": 1.0}, "t")
    assert list(table.columns[1].cells) == ["597", "0.9877", "1.0000"]


def test_training_curves_have_a_panel_for_each_metric(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: drawn.append(figure))
    (tmp_path / "metrics.csv").write_text(
        "step,train/loss,val/loss,epoch,val/accuracy,test/loss\n4,2.0,,0,,\n4,,1.5,0,0.5,\n9,1.0,1.25,1,0.75,1.1\n"
    )
    logs.training_figure(tmp_path / "metrics.csv", tmp_path / "figures" / "training.png")
    panels = {
        axis.get_title(): {line.get_label(): line.get_xydata().tolist() for line in axis.get_lines()}
        for axis in drawn[0].axes
    }
    assert panels == {
        "accuracy": {"val": [[4, 0.5], [9, 0.75]]},
        "loss": {"train": [[4, 2.0], [9, 1.0]], "val": [[4, 1.5], [9, 1.25]]},
    }


def test_no_curves_are_drawn_before_training_has_logged_anything(tmp_path):
    logs.training_figure(tmp_path / "metrics.csv", tmp_path / "training.png")
    (tmp_path / "metrics.csv").write_text("step,test/loss\n1,2.0\n")
    logs.training_figure(tmp_path / "metrics.csv", tmp_path / "training.png")
    assert not (tmp_path / "training.png").exists()
