"""ACE (ICLR 2026): a language model that improves through an evolving playbook in its context.

They are imported on first use, so that the command's `--help` need not wait for torch.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "ACE": "adaptation",
    "Learner": "adaptation",
    "Playbook": "playbook",
    "Bullet": "playbook",
    "Section": "playbook",
    "apply": "operations",
    "parse_operations": "operations",
    "deduplicate": "refine",
    "prune": "refine",
    "Roles": "roles",
    "JsonRoles": "roles",
    "AppWorldRoles": "appworld_roles",
    "TinyRoles": "tiny",
    "NoContext": "baselines",
    "InContext": "baselines",
    "Rewrite": "baselines",
    "FullHistory": "baselines",
    "Gepa": "gepa",
    "Backend": "completion",
    "OpenAIBackend": "http_backend",
    "TransformersBackend": "transformers_backend",
    "LlamaCppBackend": "llamacpp_backend",
    "ScriptedBackend": "scripted",
    "Sample": "tasks",
    "Recorder": "recording",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
