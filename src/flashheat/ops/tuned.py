"""Tiles that `flashheat tune` found faster than the table's on this card, kept in one file a device.

They are separate from the table in `tiles`, which is shipped: these are a user's own and may be deleted at any time.
"""

import hashlib
import json
import logging
import math
import os
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from flashheat.files import make_folder, write_atomically
from flashheat.ops.tiles import Tile

_log = logging.getLogger("flashheat")
_REACH = 1.5  # a measured V serves sizes up to this factor away
_KERNEL = ("diffuse_kernel_triton.py", "products_triton.py", "slots_triton.py")


@dataclass(frozen=True)
class Tuned:
    """One measured shape: `us` for forward and backward with `tile`, `table_us` with the shipped one."""

    precision: str
    V: int
    K: int
    C: int
    tile: Tile
    us: float
    table_us: float


def file_of(device: str) -> Path:
    """Where the tiles of a device of this name are kept: $FLASHHEAT_TUNED, else the user's cache folder."""
    folder = os.environ.get("FLASHHEAT_TUNED")
    cache_home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = "".join(letter if letter.isalnum() else "_" for letter in device)
    return (Path(folder) if folder else cache_home / "flashheat" / "tuned") / f"{name}.json"


def save(device: str, found: list[Tuned]) -> Path:
    """Add shapes to the device's file; one that was there before is replaced.

    Raises:
        FlashheatError: the file cannot be written.
    """
    path = file_of(device)
    new = {(t.precision, t.V, t.K, t.C): t for t in (*load(device), *found)}
    content = _made_by() | {"device": device, "tuned": [asdict(t) for t in new.values()]}
    make_folder(path.parent)
    write_atomically(path, json.dumps(content, indent=1))
    load.cache_clear()
    return path


@cache
def load(device: str) -> tuple[Tuned, ...]:
    """The shapes kept for a device; none, with a warning, where the file is damaged or of another kernel or Triton."""
    path = file_of(device)
    try:
        content = json.loads(path.read_text())
        if any(content[name] != value for name, value in _made_by().items()):
            _log.warning("%s is of another kernel or Triton and not used: run flashheat tune again", path)
            return ()
        return tuple(Tuned(**entry | {"tile": Tile(**entry["tile"])}) for entry in content["tuned"])
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.warning("%s cannot be read and is not used (%s): delete it or run flashheat tune again", path, error)
        return ()


def choose(device: str, precision: str, V: int, K: int, C: int) -> Tile | None:
    """The tile of the nearest measured V of the same K, C and precision class; None where no V near was measured."""
    near = [(_distance(t.V, V), t.tile) for t in load(device) if (t.precision, t.K, t.C) == (precision, K, C)]
    distance, tile = min(near, key=lambda pair: pair[0], default=(math.inf, None))
    return tile if distance <= math.log(_REACH) else None


def _distance(a: int, b: int) -> float:
    return abs(math.log(max(1, a) / max(1, b)))


@cache
def _made_by() -> dict[str, Any]:
    """What a measured tile depends on besides the device."""
    sources = [(Path(__file__).parent / name).read_bytes() for name in _KERNEL]
    return {"triton": metadata.version("triton"), "kernel": hashlib.sha256(b"".join(sources)).hexdigest()[:16]}
