"""Weights of the model hub (foreign: huggingface_hub), taken from its local cache where they are.

The hub's own client downloads, checks and caches; with `HF_HUB_OFFLINE=1` it only looks. What it
raises is told here in terms of what to do.
"""

from pathlib import Path

from omnistage_common.errors import InvalidWeights, MissingDependency, truncated
from omnistage_stage.weights.sources import HubSource

__all__ = ["hub_folder"]


def hub_folder(source: HubSource, *, local_only: bool = False) -> Path:
    """The folder of a repository's snapshot.

    Args:
        source: What to take.
        local_only: Take what the local cache has and ask nobody.

    Raises:
        MissingDependency: `huggingface_hub` is not installed.
        InvalidWeights: The snapshot is neither cached nor to be had.
    """
    try:
        from huggingface_hub import snapshot_download  # noqa: PLC0415
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError  # noqa: PLC0415
    except ImportError as error:
        raise MissingDependency(
            "models of the hub need huggingface_hub. Install it: pip install 'omnistage[vllm]'",
            field="model",
        ) from error
    name = f"hf://{source.repository}@{source.revision}"
    try:
        folder = snapshot_download(
            source.repository, revision=source.revision, local_files_only=local_only
        )
    except HFValidationError as error:
        raise InvalidWeights(f"{name} names no repository: {error}", field="model") from error
    except (HfHubHTTPError, OSError) as error:
        raise InvalidWeights(
            f"{name} is neither in the local hub cache nor to be had: {truncated(str(error))}. "
            "Check name and revision; set HF_TOKEN for a gated repository; without a network, "
            "copy the repository to a folder and name it as file:///folder",
            field="model",
        ) from error
    return Path(folder)
