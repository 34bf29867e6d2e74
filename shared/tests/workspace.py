"""A temporary uv workspace of tiny papers, for tests that run `train` as a user does."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from textwrap import dedent

CLI = """
from shared.cli import Paper
from shared.cli import main as run

def greet(name: str = "world"):
    '''Say hello.

    Args:
        name: whom to greet.
    '''
    print("NAME greets", name)

def fail(kind: str = "value"):
    '''Fail with one sentence.'''
    raise {"value": ValueError, "missing": FileNotFoundError, "absent": ImportError}[kind]("the option kind is bad")

def main(argv=None):
    return run(Paper("NAME", "A tiny paper", "NAME.module:TinyCLI", {"greet": greet, "fail": fail}), argv)
"""

MODULE = """
import os
import time
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric, SumMetric
from shared.papercli import PaperCLI
from shared.seeding import EvalBatchSampler, TrainSampler, generator

class TinyModule(LightningModule):
    '''A linear regression with noise in its gradient, so that seeding matters.

    Args:
        lr: learning rate.
        fail_at: raise in this epoch; -1 never.
    '''

    def __init__(self, lr: float = 0.05, fail_at: int = -1, seed: int = 0):
        super().__init__()
        self.lr, self.fail_at = lr, fail_at
        self.net = torch.nn.Linear(4, 1)
        self.val_loss, self.mean, self.count = MeanMetric(), MeanMetric(), SumMetric()

    def training_step(self, batch, index):
        if self.current_epoch == self.fail_at:
            raise ValueError("the data of this epoch is bad")
        time.sleep(float(os.environ.get("TINY_SECONDS_A_STEP", 0)))
        x, y = batch
        loss = ((self.net(x + 0.1 * torch.randn_like(x)) - y) ** 2).mean()
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        self.val_loss.update((self.net(x) - y).pow(2).flatten())
        self.log("val/loss", self.val_loss, prog_bar=True)

    def test_step(self, batch, index):
        x, y = batch
        self.mean.update((self.net(x) - y).pow(2).flatten())
        self.count.update(torch.ones(len(x)))
        self.log("test/loss", self.mean)
        self.log("test/n", self.count)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)

class TinyData(LightningDataModule):
    '''Random linear data.

    Args:
        n: training items.
    '''

    def __init__(self, n: int = 64, seed: int = 0):
        super().__init__()
        self.n, self.seed = n, seed

    def setup(self, stage):
        g = generator(0, "data")
        x = torch.randn(self.n, 4, generator=g)
        self.train = TensorDataset(x, x.sum(1, keepdim=True))
        x = torch.randn(7, 4, generator=g)
        self.eval = TensorDataset(x, x.sum(1, keepdim=True))

    def train_dataloader(self):
        r, w = self.trainer.global_rank, self.trainer.world_size
        return DataLoader(self.train, 8, sampler=TrainSampler(self.n, self.seed, rank=r, world_size=w))

    def val_dataloader(self):
        r, w = self.trainer.global_rank, self.trainer.world_size
        return DataLoader(self.eval, batch_sampler=EvalBatchSampler(7, 2, rank=r, world_size=w))

    test_dataloader = val_dataloader

class TinyCLI(PaperCLI):
    paper = "NAME"
    model_type, data_type = TinyModule, TinyData
    monitor, monitor_mode = "val/loss", "min"
"""

CONFIG = """\
# The tiny default: seconds on a CPU.
trainer:
  max_epochs: 4
  accelerator: cpu
"""

MEMBER = """
[project]
name = "NAME"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = []
[project.scripts]
NAME = "NAME.cli:main"
[project.entry-points.papers]
NAME = "NAME.cli:main"
"""


def make_workspace(folder: Path, names: tuple[str, ...] = ("alpha", "beta")) -> Path:
    """Write tiny members and an environment in which they and this environment's packages are installed.

    The members are installed by hand (a .pth file and their metadata), as an editable install does, so that
    nothing is fetched or built.
    """
    (folder / "pyproject.toml").write_text('[tool.uv.workspace]\nmembers = ["packages/*"]\n')
    environment = folder / ".venv"
    venv.create(environment, symlinks=True, with_pip=False)
    packages = next(environment.glob("lib/*/site-packages"))
    outer = [sysconfig.get_paths()["purelib"], *site.getsitepackages()]
    lines = [f"import site; site.addsitedir({path!r})" for path in dict.fromkeys(outer)]
    for name in names:
        member = folder / "packages" / name
        source = member / "src" / name
        (source / "configs").mkdir(parents=True)
        (member / "pyproject.toml").write_text(MEMBER.replace("NAME", name))
        (source / "__init__.py").write_text("")
        (source / "cli.py").write_text(CLI.replace("NAME", name))
        (source / "module.py").write_text(dedent(MODULE).replace("NAME", name))
        (source / "configs" / "default.yaml").write_text(CONFIG)
        info = packages / f"{name}-0.1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
        (info / "entry_points.txt").write_text(f"[papers]\n{name} = {name}.cli:main\n")
        lines.append(str(source.parent))
        script(environment, name, f"{name}.cli", "main")
    (packages / "members.pth").write_text("\n".join(lines) + "\n")
    script(environment, "train", "shared.cli", "train")
    return folder


def script(environment: Path, name: str, module: str, function: str) -> None:
    """Write a console script, as an installer does."""
    path = environment / "bin" / name
    python = environment / "bin" / "python"
    path.write_text(f"#!{python}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n")
    path.chmod(0o755)


def environment_of(workspace: Path, **extra: str) -> dict[str, str]:
    """Return variables for a subprocess in the workspace, free of this process's own."""
    own = ("PAPERS_", "PL_", "LOCAL_RANK", "UV_", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    path = f"{workspace / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return kept | {"PATH": path, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"} | extra


def run(workspace: Path, *words: str, cwd: Path | None = None, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the workspace."""
    return subprocess.run(
        words, cwd=cwd or workspace, env=environment_of(workspace, **extra), text=True, capture_output=True,
        timeout=240, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def find_uv() -> str:
    """Return the uv that runs these tests or the checkout's private one."""
    private = Path(__file__).resolve().parents[2] / ".uv" / "bin" / "uv"
    found = os.environ.get("UV") or shutil.which("uv") or (str(private) if private.is_file() else None)
    assert found is not None, f"uv is needed beside {sys.executable}"
    return found
