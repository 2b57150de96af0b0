"""Names of devices are held to what works here.

It is separate because operators, training and prediction all take a device from the user.
"""

import torch

from flashheat.errors import FlashheatError


def check_device(device: torch.device | str) -> None:
    """Raise a FlashheatError unless the device is the CPU or a CUDA device that works here.

    Other kinds that PyTorch knows by name (meta, mps, ...) are refused: nothing here has been run on them.
    """
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise _unusable(device, "that is no name of a device") from error
    if wanted.type not in ("cpu", "cuda"):
        raise _unusable(device, f"{wanted.type} is not supported")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted.type == "cuda" and (wanted.index or 0) >= count:
        raise _unusable(device, f"CUDA devices that PyTorch sees here: {count}")
    try:
        torch.empty(0, device=wanted)
    except RuntimeError as error:  # a driver that does not fit, or a card that another process holds alone
        raise _unusable(device, str(error).splitlines()[0]) from error


def _unusable(device: torch.device | str, reason: str) -> FlashheatError:
    return FlashheatError(
        f"the device must be cpu, cuda or cuda:N; got {str(device)!r}: {reason}; choose cpu or another"
    )
