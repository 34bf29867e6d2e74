"""Density functional forces for trajectories, by pyscf where it is installed: a hundred times dearer than GFN2-xTB."""

from __future__ import annotations

from typing import Any

from ase import Atoms, units
from ase.calculators.calculator import CalculationFailed, Calculator, all_changes


class PBE(Calculator):
    """PBE/def2-SVP energies and forces by pyscf; the guess is the density of the geometry before."""

    implemented_properties = ["energy", "forces"]  # noqa: RUF012

    def calculate(
        self, atoms: Atoms | None = None, properties: Any = None, system_changes: list[str] = all_changes
    ) -> None:
        """Run one geometry; CalculationFailed if it does not converge."""
        from pyscf import dft, gto

        super().calculate(atoms, properties, system_changes)  # type: ignore[no-untyped-call]
        if self.atoms is None:
            raise CalculationFailed("there is no geometry")
        molecule = gto.M(
            atom=list(zip(self.atoms.get_chemical_symbols(), self.atoms.positions, strict=True)),
            basis="def2-svp",
            charge=round(self.atoms.get_initial_charges().sum()),
            spin=round(self.atoms.get_initial_magnetic_moments().sum()),
            verbose=0,
        )
        field = dft.KS(molecule, xc="pbe")
        energy = field.kernel(dm0=getattr(self, "density", None))
        if not field.converged:
            raise CalculationFailed("the self-consistent field did not converge")
        self.density = field.make_rdm1()
        gradient = field.nuc_grad_method()
        gradient.grid_response = True  # else the forces do not sum to zero and the molecule drifts
        self.results = {
            "energy": energy * units.Hartree,
            "forces": -gradient.kernel() * units.Hartree / units.Bohr,
        }
