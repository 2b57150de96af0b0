"""On what, with what and of what a row of results was measured; the same for every benchmark."""

import datetime
from importlib import metadata

import torch


def about(commit: str) -> dict[str, str]:
    """Device, versions, commit and date, to be merged into a row.

    Args:
        commit: the commit that was measured.
    """
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": metadata.version("triton"),
        "commit": commit,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
