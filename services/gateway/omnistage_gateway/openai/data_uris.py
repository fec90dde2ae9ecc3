"""`data:` URIs: the only URLs in which media come and go, since nothing is fetched."""

import re
from typing import Final

from omnistage_common.errors import InvalidRequest
from omnistage_gateway.media.formats import EncodedImage

__all__ = ["image_in"]

_HEAD: Final = re.compile(r"data:(image/[a-z0-9.+-]+);base64,", re.IGNORECASE)
_HEAD_LENGTH: Final = 100
"""Characters in which a head has to end."""


def image_in(url: str, field: str) -> EncodedImage:
    """The image that a URI holds. What kind of image it is, its bytes say.

    Raises:
        InvalidRequest: It is no `data:` URI of an image.
    """
    head = _HEAD.match(url, 0, _HEAD_LENGTH)
    if head is not None:
        return EncodedImage(base64=url[head.end() :], field=field)
    scheme = url[:_HEAD_LENGTH].partition(":")[0].lower()
    if scheme == "data":
        raise InvalidRequest(
            f"`{field}`: expected `data:image/png;base64,` (or jpeg, webp, gif) and the file in"
            " base64",
            field=field,
        )
    if scheme in {"http", "https", "ftp", "file", "s3", "gs"}:
        raise InvalidRequest(
            f"`{field}`: images are not fetched from URLs; send the image itself, as"
            " `data:image/png;base64,` and the file in base64",
            field=field,
        )
    raise InvalidRequest(
        f"`{field}`: expected a `data:` URI; send `data:image/png;base64,` and the file in base64",
        field=field,
    )
