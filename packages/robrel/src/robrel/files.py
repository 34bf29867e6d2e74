"""The user's files (Sec. 5), read and written; nothing in them is ever executed.

    mdp.npz         P (S, A, S) or (H, S, A, S), mu0 (S,), H, optionally features (S * A, k)
    policies.npz    arrays (S, A) or (H, S, A), by name
    feedback.jsonl  one object a line; POLICY is a name of policies.npz or nested lists (S, A) or (H, S, A):
        {"type": "trajectory", "better": [[s, a], ...], "worse": [[s, a], ...], "margin": 0}
        {"type": "policy", "better": POLICY, "worse": POLICY, "margin": 0, "margin_high": 2.5}
        {"type": "demo", "trajectories": [[[s, a], ...], ...], "eps": 0}      H steps each
        {"type": "demo", "policy": POLICY, "eps": 0}
        {"type": "anchor", "policy": POLICY, "value": 1}

Margins, eps and value may be left out; a margin of null is no lower bound. States, actions and stages count from 0,
lines from 1.
"""

from __future__ import annotations

import json
import math
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robrel.feedback import Demonstration, Item, PolicyComparison, TrajectoryComparison, anchor, visits
from robrel.mdp import MDP, check_policy, occupancies, policy_of
from robrel.space import RewardSpace

Array = NDArray[np.float64]

FIELDS = {
    "trajectory": {"better", "worse", "margin"},
    "policy": {"better", "worse", "margin", "margin_high"},
    "demo": {"trajectories", "policy", "eps"},
    "anchor": {"policy", "value"},
}


LONGEST = 1_000_000  # horizon of a file; occupancies have H S A numbers
# What NumPy and zipfile raise on a damaged file; a flipped bit can be anywhere.
DAMAGE = (
    ValueError, OSError, EOFError, LookupError, TypeError, NotImplementedError, RuntimeError, SyntaxError, MemoryError,
    zipfile.BadZipFile, zlib.error, tokenize.TokenError,
)  # fmt: skip


class MDPFile(NamedTuple):
    """What mdp.npz holds: the MDP, and features Φ (S * A, k) or None."""

    mdp: MDP
    features: Array | None


class FeedbackFile(NamedTuple):
    """What feedback.jsonl holds: the items, and as many labels such as "feedback.jsonl line 3"."""

    items: list[Item]
    labels: list[str]


def read_mdp(path: Path) -> MDPFile:
    """Read mdp.npz.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not in the format; the file and the array are named.
    """
    arrays = read_npz(path)
    missing, unknown = {"P", "mu0", "H"} - arrays.keys(), arrays.keys() - {"P", "mu0", "H", "features"}
    if missing or unknown:
        fault = f"has no array {min(missing)}" if missing else f"holds an array {min(unknown)}"
        raise ValueError(f"{path} {fault}, expected P, mu0, H and optionally features")
    horizon = arrays["H"]
    if horizon.size != 1 or horizon.dtype.kind not in "iu":
        raise ValueError(f"{path}: H must be one whole number, got {horizon.dtype} of shape {horizon.shape}")
    if horizon.item() > LONGEST:
        raise ValueError(f"{path}: H must be at most {LONGEST}, got {horizon.item()}")
    try:
        mdp = MDP(arrays["P"], arrays["mu0"], int(horizon.item()))
        features = arrays.get("features")
        if features is not None:
            features = RewardSpace("linear", mdp.states, mdp.actions, mdp.horizon, features).features
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {_in_file_terms(str(error))}") from None
    return MDPFile(mdp, features)


def read_policies(path: Path, mdp: MDP) -> dict[str, Array]:
    """Read policies.npz: π by name, (H, S, A) or (1, S, A) if stationary.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not in the format or does not fit the MDP; the file, the array and the row are named.
    """
    policies, faults = _policies(path, mdp)
    if faults:
        raise ValueError(faults[0])
    return policies


def read_feedback(path: Path, mdp: MDP, policies: Mapping[str, Array] | None = None) -> FeedbackFile:
    """Read feedback.jsonl.

    Args:
        path: the file; blank lines are skipped, and an empty file is no feedback.
        mdp: what it is about.
        policies: π by name, for lines that name policies.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if a line is not in the format or does not fit the MDP; the file and the line are named.
    """
    feedback, faults = _feedback(path, mdp, policies or {})
    if faults:
        raise ValueError(faults[0])
    return feedback


def validate(mdp: Path, policies: Path | None = None, feedback: Path | None = None) -> list[str]:
    """Check a user's files together; returns all faults, a sentence each, in the order of files and lines.

    A faulty MDP is the only fault reported, because nothing else can be judged without one.
    """
    faults: list[str] = []
    named: dict[str, Array] = {}
    try:
        model = read_mdp(mdp).mdp
        if policies is not None:
            named, faults = _policies(policies, model)
        if feedback is not None:
            faults += _feedback(feedback, model, named)[1]
    except (FileNotFoundError, ValueError) as error:
        faults.append(str(error))
    return faults


def read_imitation(path: Path, mdp: MDP) -> list[list[tuple[int, int]]]:
    """Read trajectories that `imitation` has saved as a Hugging Face dataset folder.

    Of its columns, obs and acts are used: whole numbers, one more observation than actions. The infos, which
    `imitation` decodes with a library that can run code, are never decoded.

    Returns:
        Trajectories of pairs (state, action), at most H long each.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if it is not in the format or does not fit the MDP; the folder and the row are named.
    """
    if not path.is_dir():
        raise FileNotFoundError(f"{path} is no folder, expected a dataset that imitation has saved")
    from datasets import load_from_disk  # slow to import, and needed by few

    try:
        rows = load_from_disk(str(path)).select_columns(["obs", "acts"])
    except (OSError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} is no dataset with columns obs and acts: {error}") from None
    trajectories = []
    for i, row in enumerate(rows):
        obs, acts = np.asarray(row["obs"]), np.asarray(row["acts"])
        if acts.ndim != 1 or obs.shape != (len(acts) + 1,):
            shapes = f"{obs.shape} and {acts.shape}"
            raise ValueError(f"{path} row {i}: obs and acts must have shapes (T + 1,) and (T,), got {shapes}")
        pairs = np.stack([obs[:-1], acts], axis=1)
        try:
            visits(mdp, pairs)
        except ValueError as error:
            raise ValueError(f"{path} row {i}: {error}") from None
        trajectories.append([(int(s), int(a)) for s, a in pairs])
    return trajectories


def write_mdp(path: Path, mdp: MDP, features: Array | None = None) -> None:
    """Write mdp.npz; raises ValueError if the transitions are sparse, for which the format has no place."""
    if not isinstance(mdp.transitions, np.ndarray):
        raise ValueError(f"{path} cannot hold sparse transitions, expected an array (S, A, S) or (H, S, A, S)")
    arrays: dict[str, Any] = {"P": mdp.transitions, "mu0": mdp.initial, "H": np.int64(mdp.horizon)}
    if features is not None:
        arrays["features"] = features
    with _writing(path) as file:
        np.savez_compressed(file, **arrays)


def write_policies(path: Path, policies: Mapping[str, Array]) -> None:
    """Write policies.npz: π by name, each (H, S, A), (1, S, A) or (S, A)."""
    arrays: dict[str, Any] = {name: pi[0] if pi.ndim == 3 and len(pi) == 1 else pi for name, pi in policies.items()}
    with _writing(path) as file:
        np.savez_compressed(file, **arrays)


def write_feedback(path: Path, mdp: MDP, items: Sequence[Item]) -> None:
    """Write feedback.jsonl, with policies inline.

    Raises:
        ValueError: if an occupancy is no policy's in this MDP, as an estimated one is not: then write trajectories.
    """

    def inline(occupancy: Array) -> list[Any]:
        policy = policy_of(occupancy)
        if np.abs(occupancies(mdp, policy) - occupancy).max() > 1e-9:
            raise ValueError(f"{path} cannot hold an occupancy that is no policy's in this MDP")
        return policy.tolist()

    lines = [json.dumps(_record(item, inline), allow_nan=False) for item in items]
    with _writing(path) as file:
        file.write("".join(f"{line}\n" for line in lines).encode())


def _record(item: Item, inline: Callable[[Array], list[Any]]) -> dict[str, Any]:
    if isinstance(item, TrajectoryComparison):
        better, worse = np.asarray(item.better).tolist(), np.asarray(item.worse).tolist()
        return {"type": "trajectory", "better": better, "worse": worse, "margin": item.margin}
    if isinstance(item, Demonstration):
        return {"type": "demo", "policy": inline(item.occupancy), "eps": item.epsilon}
    if not item.worse.any() and item.margin_low == item.margin_high:
        return {"type": "anchor", "policy": inline(item.better), "value": item.margin_low}
    margin = item.margin_low if item.margin_low > -math.inf else None
    record = {"type": "policy", "better": inline(item.better), "worse": inline(item.worse), "margin": margin}
    return record if item.margin_high == math.inf else {**record, "margin_high": item.margin_high}


def _policies(path: Path, mdp: MDP) -> tuple[dict[str, Array], list[str]]:
    policies, faults = {}, []
    for name, array in read_npz(path).items():
        try:
            policies[name] = _one_policy(mdp, array, name)
        except ValueError as error:
            faults.append(f"{path}: {error}")
    return policies, faults


def _feedback(path: Path, mdp: MDP, policies: Mapping[str, Array]) -> tuple[FeedbackFile, list[str]]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist, expected a file of feedback, one JSON object a line")
    found, faults = FeedbackFile([], []), []

    @cache
    def named(name: str) -> Array:
        if name not in policies:
            known = ", ".join(sorted(policies)) or "none"
            raise ValueError(f"{name!r} is no valid policy of the file of policies, which has {known}")
        return occupancies(mdp, policies[name])

    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            item = _item(mdp, _parse(line), named)
        except ValueError as error:
            faults.append(f"{path} line {number}: {error}")
            continue
        found.items.append(item)
        found.labels.append(f"{path.name} line {number}")
    return found, faults


def _parse(line: bytes) -> dict[str, Any]:
    def refuse(constant: str) -> float:
        raise ValueError(f"{constant} is no number that JSON allows")

    try:
        entry = json.loads(line.decode(), parse_constant=refuse)
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(entry, dict):
        raise ValueError(f"expected a JSON object, got {type(entry).__name__}")
    kind = entry.get("type")
    if not isinstance(kind, str) or kind not in FIELDS:
        raise ValueError(f"type must be one of {', '.join(FIELDS)}, got {kind!r}")
    unknown = entry.keys() - FIELDS[kind] - {"type"}
    if unknown:
        raise ValueError(f"{kind} has no field {min(unknown)!r}, expected {', '.join(sorted(FIELDS[kind]))}")
    return entry


def _item(mdp: MDP, entry: dict[str, Any], named: Callable[[str], Array]) -> Item:
    def occupancy(field: str) -> Array:
        policy = _field(entry, field)
        return named(policy) if isinstance(policy, str) else occupancies(mdp, _one_policy(mdp, policy, field))

    kind = entry["type"]
    if kind == "anchor":
        return anchor(occupancy("policy"), _number(entry, "value", 1.0))
    if kind == "demo":
        epsilon = _number(entry, "eps", 0.0)
        if epsilon < 0:
            raise ValueError(f"eps must be at least 0, got {epsilon:g}")
        if ("trajectories" in entry) == ("policy" in entry):
            raise ValueError("a demo must have either trajectories or a policy")
        return Demonstration(occupancy("policy") if "policy" in entry else _demonstrated(mdp, entry), epsilon)
    low = -math.inf if entry.get("margin", 0) is None else _number(entry, "margin", 0.0)
    if kind == "trajectory":
        if low == -math.inf:
            raise ValueError("margin must be a number, got null")
        better, worse = _field(entry, "better"), _field(entry, "worse")
        visits(mdp, better, "better"), visits(mdp, worse, "worse")
        return TrajectoryComparison(better, worse, low)
    high = _number(entry, "margin_high", math.inf)
    if low > high:
        raise ValueError(f"margin must not exceed margin_high, got {low:g} and {high:g}")
    return PolicyComparison(occupancy("better"), occupancy("worse"), low, high)


def _demonstrated(mdp: MDP, entry: dict[str, Any]) -> Array:
    trajectories = entry["trajectories"]
    if not isinstance(trajectories, list) or not trajectories:
        raise ValueError("trajectories must be a list of at least one trajectory")
    total = np.zeros((mdp.horizon, mdp.states, mdp.actions))
    for i, trajectory in enumerate(trajectories):
        counts = visits(mdp, trajectory, f"trajectories[{i}]")
        if len(trajectory) != mdp.horizon:
            # The stages that a shorter one lacks would count as earning nothing.
            raise ValueError(f"trajectories[{i}] has {len(trajectory)} steps, expected the horizon {mdp.horizon}")
        total += counts
    return total / len(trajectories)


def _one_policy(mdp: MDP, policy: Any, name: str) -> Array:
    checked = check_policy(mdp, policy, name)
    if checked.ndim != 3:
        raise ValueError(f"{name} must be one policy, (S, A) or (H, S, A), got shape {checked.shape}")
    return checked


def _field(entry: dict[str, Any], field: str) -> Any:
    if field not in entry:
        raise ValueError(f"{entry['type']} needs a field {field!r}")
    return entry[field]


def _number(entry: dict[str, Any], field: str, default: float) -> float:
    value = entry.get(field, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise ValueError(f"{field} must be a number, got {value!r}")
    if field in entry and abs(value) > 1e300:
        raise ValueError(f"{field} must be finite, got {str(value)[:20]}")
    return float(value)


def _in_file_terms(message: str) -> str:
    for ours, theirs in (("transitions", "P"), ("initial", "mu0"), ("horizon", "H")):
        message = message.replace(ours, theirs)
    return message


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays of an .npz file by name; nothing in it is run.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is no .npz file, or an array is damaged or holds Python objects.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist, expected a file of arrays (.npz)")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is no .npz file of arrays")
    arrays: dict[str, NDArray[Any]] = {}
    name = None
    try:
        with np.load(path, allow_pickle=False) as file:
            for name in file.files:
                arrays[name] = np.asarray(file[name])
    except DAMAGE as error:
        what = "holds Python objects, which are never loaded" if "allow_pickle" in str(error) else "is damaged"
        raise ValueError(f"{path}{f': array {name}' if name else ''} {what}") from None
    return arrays


@contextmanager
def _writing(path: Path) -> Iterator[IO[bytes]]:
    from shared.checkpoints import atomic_write  # needs torch, which reading does not

    with atomic_write(path) as file:
        yield file
