"""Loads the codecs of a gateway's pipelines when it starts, so that no first request waits for them."""

from collections.abc import Collection

from omnistage_common.payloads import PayloadKind
from omnistage_gateway.media.audio import prepare_decoding
from omnistage_gateway.media.images import prepare_images
from omnistage_gateway.media.video import prepare_video

__all__ = ["prepare_media"]


def prepare_media(takes: Collection[PayloadKind], makes: Collection[PayloadKind]) -> None:
    """Imports what a pipeline's media need.

    Args:
        takes: What requests bring.
        makes: What answers consist of.

    Raises:
        MissingDependency: What decodes or encodes them is not installed.
    """
    if PayloadKind.WAVEFORM in takes:
        prepare_decoding()
    if PayloadKind.IMAGE in takes or PayloadKind.IMAGE in makes:
        prepare_images()
    if PayloadKind.VIDEO in makes:
        prepare_video()
