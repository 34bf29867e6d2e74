"""Import the package `shared` before pytest meets the folder of that name and takes it for a namespace package."""

import shared  # noqa: F401
