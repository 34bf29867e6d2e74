"""tblite's ASE calculator without what molecular dynamics does not need, about half of its time for ten atoms.

It asks the library for energy and gradient alone, and takes a state for changed if its positions are: elements, charge,
spin and cell of a trajectory stay. The numbers are tblite's own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.calculator import CalculationFailed, all_changes
from ase.units import Bohr, Hartree
from tblite.ase import TBLite


class TBLiteForces(TBLite):
    """Energy and forces of one molecule at changing positions."""

    def check_state(self, atoms: Atoms, tol: float = 0.0) -> list[str]:
        """Return what has changed: nothing, the positions, or everything for a first state."""
        if self.atoms is None:
            return list(all_changes)
        return [] if np.array_equal(self.atoms.positions, atoms.positions) else ["positions"]

    def calculate(self, atoms: Atoms | None = None, properties: Any = None, system_changes: Any = all_changes) -> None:
        """Compute energy (eV) and forces (eV/Å).

        Raises:
            CalculationFailed: if the electronic structure does not converge.
        """
        if self._xtb is None or atoms is None:
            super().calculate(atoms, properties, system_changes)  # makes the library's calculator
            return
        self.atoms = atoms.copy()  # type: ignore[no-untyped-call]
        self._xtb.update(atoms.positions / Bohr)
        try:
            self._res = self._xtb.singlepoint(self._res)
        except RuntimeError as error:
            raise CalculationFailed(str(error)) from error
        energy = self._res["energy"] * Hartree
        self.results = {
            "energy": energy,
            "free_energy": energy,
            "forces": -self._res["gradient"] * Hartree / Bohr,
        }
