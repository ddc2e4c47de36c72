"""Where data sets with a name are kept: the folder in CLOSEKNIT_DATA, and the Hugging Face hub."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from closeknit.errors import DataError, MissingExtra


class HubUnreachable(DataError):
    """The hub does not answer, whatever data set is asked for."""


def data_folder() -> Path | None:
    """The folder that the environment variable CLOSEKNIT_DATA names, if it is set."""
    value = os.environ.get("CLOSEKNIT_DATA")
    return Path(value) if value else None


def existing_data_folder() -> Path | None:
    """The folder that CLOSEKNIT_DATA names, if it is set; raises an error if it does not exist."""
    folder = data_folder()
    if folder is not None and not folder.is_dir():
        raise DataError(f"CLOSEKNIT_DATA is {folder}, which is not a folder")
    return folder


def load_from_hub(name: str, repository: str, *configuration: str | None, **options: Any) -> Any:
    """A data set of the hub, as the library `datasets` gives it.

    `name` is what Closeknit calls the data set; `repository` is its name on the hub.
    """
    try:
        import datasets
    except ImportError:
        raise MissingExtra(
            f"loading {name} from the hub (or set CLOSEKNIT_DATA to a folder that has it)", "hub"
        ) from None
    try:
        return datasets.load_dataset(repository, *configuration, **options)
    except Exception as error:  # the library documents no closed list of the errors it raises
        message = str(error).strip()
        reason = message.splitlines()[0] if message else type(error).__name__
        kind = HubUnreachable if isinstance(error, ConnectionError) else DataError
        raise kind(
            f"{name} could not be loaded from the hub ({repository}: {reason}); "
            "if this machine is offline, set CLOSEKNIT_DATA to a folder that has it"
        ) from None
