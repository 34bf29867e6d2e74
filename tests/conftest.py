"""What several of these tests need: the checkout, its packages, and environments for copies of it."""

import re
import site
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest
from readme import ROOT, packages
from workspace import script

PACKAGES = packages(ROOT)


def pytest_generate_tests(metafunc):
    """Run each test that takes `package` once for every package of the checkout."""
    if "package" in metafunc.fixturenames:
        metafunc.parametrize("package", PACKAGES, ids=lambda package: package.name)


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture(scope="session")
def install():
    """Give a function that makes a folder's `.venv`, as an editable install of projects would.

    What the projects need comes from the environment that runs the tests, so nothing is fetched or built. A
    project hides a package of the same name there.
    """

    def make(folder: Path, *projects: Path) -> None:
        environment = folder / ".venv"
        venv.create(environment, symlinks=True, with_pip=False)
        installed = next(environment.glob("lib/*/site-packages"))
        lines = [str(project / "src") for project in projects]
        outer = [sysconfig.get_paths()["purelib"], *site.getsitepackages()]
        lines += [f"import site; site.addsitedir({path!r})" for path in dict.fromkeys(outer)]
        (installed / "projects.pth").write_text("\n".join(lines) + "\n")
        for project in projects:
            table = tomllib.loads((project / "pyproject.toml").read_text())["project"]
            name, version = table["name"], table["version"]
            info = installed / f"{name}-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            groups = {"console_scripts": table.get("scripts", {}), **table.get("entry-points", {})}
            (info / "entry_points.txt").write_text(
                "\n".join(
                    f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in entries.items())
                    for group, entries in groups.items()
                )
            )
            for command, target in table.get("scripts", {}).items():
                script(environment, command, *re.split(":", target))

    return make
