"""Import the package `shared` before pytest meets the folder of that name and takes it for a namespace package."""

import logging

import shared  # noqa: F401

# A handler that a library made in one test writes to that test's closed stream in the next.
logging.raiseExceptions = False
