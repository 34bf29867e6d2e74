"""The slim calculator against tblite's own, in a process without torch: the two libraries' OpenMP runtimes clash."""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
import numpy as np
from ase import units
from ase.build import molecule
from ase.calculators.calculator import CalculationFailed
from ase.md.verlet import VelocityVerlet
from atom.tblite_forces import TBLiteForces
from tblite.ase import TBLite

def run(kind, name):
    atoms = molecule(name)
    calculator = atoms.calc = kind(method="GFN2-xTB", verbosity=0)
    rng = np.random.default_rng(0)
    atoms.set_momenta(np.sqrt(atoms.get_masses() * units.kB * 600)[:, None] * rng.standard_normal((len(atoms), 3)))
    calls = []
    original = type(calculator).calculate
    def counted(self, *args, **options):
        calls.append(1)
        return original(self, *args, **options)
    type(calculator).calculate = counted
    try:
        rows = []
        dynamics = VelocityVerlet(atoms, timestep=0.5 * units.fs)
        for _ in range(6):
            energy, forces, free = atoms.get_potential_energy(), atoms.get_forces(), calculator.results["free_energy"]
            rows.append([energy.hex() if isinstance(energy, float) else float(energy).hex(),
                         float(free).hex(), forces.tobytes().hex(), atoms.positions.tobytes().hex()])
            dynamics.run(1)
    finally:
        type(calculator).calculate = original
    return rows, len(calls)

found = {name: {kind.__name__: run(kind, name) for kind in (TBLite, TBLiteForces)} for name in ("CH3CH2OH", "HCN")}

atoms = molecule("H2O")
calculator = atoms.calc = TBLiteForces(method="GFN2-xTB", verbosity=0)
unchanged = []
first = atoms.get_forces()
unchanged.append(calculator.check_state(atoms))
atoms.positions[0, 0] += 1e-12
unchanged.append(calculator.check_state(atoms))

class Broken:
    def update(self, positions): pass
    def singlepoint(self, res): raise RuntimeError("SCF not converged in 250 cycles")

calculator._xtb = Broken()
try:
    atoms.get_forces()
    failure = None
except CalculationFailed as error:
    failure = str(error)
print(json.dumps({"found": found, "changes": unchanged, "failure": failure, "torch": "torch" in sys.modules}))
"""


@pytest.fixture(scope="module")
def outcome():
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, timeout=120, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", ["CH3CH2OH", "HCN"])
def test_energies_forces_and_positions_of_five_steps_are_tblites_to_the_last_bit(outcome, name):
    (theirs, _), (ours, _) = (outcome["found"][name][kind] for kind in ("TBLite", "TBLiteForces"))
    assert len(ours) == 6
    assert ours == theirs
    assert len({row[0] for row in ours}) == 6  # the molecule moves


@pytest.mark.parametrize("name", ["CH3CH2OH", "HCN"])
def test_a_geometry_is_computed_once(outcome, name):
    assert outcome["found"][name]["TBLiteForces"][1] == 7  # the first, and one for each of six steps


def test_a_state_has_changed_when_any_position_has(outcome):
    assert outcome["changes"] == [[], ["positions"]]


def test_an_electronic_structure_that_does_not_converge_is_a_failed_calculation(outcome):
    assert outcome["failure"] == "SCF not converged in 250 cycles"


def test_no_torch_was_there(outcome):
    assert outcome["torch"] is False
