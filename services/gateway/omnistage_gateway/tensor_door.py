"""The gateway's gRPC door for tensors: stages on other hosts fetch the media of requests here.

Optional: where all stages share the gateway's host they read its shared memory, and the gateway
listens for HTTP alone.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio

from omnistage_common.addresses import Address
from omnistage_common.channels import SERVER_OPTIONS
from omnistage_common.errors import SetupError
from omnistage_common.tensors import TensorPlane
from omnistage_common.tensors.door import open_door

__all__ = ["tensor_door"]


@asynccontextmanager
async def tensor_door(plane: TensorPlane, address: Address | None) -> AsyncIterator[None]:
    """Serves the plane's TensorService while the context lasts; without an address it does nothing.

    Raises:
        SetupError: The address cannot be listened on.
    """
    if address is None:
        yield
        return
    server = grpc.aio.server(options=SERVER_OPTIONS)
    open_door(server, plane)
    try:
        server.add_insecure_port(str(address))
    except RuntimeError as taken:
        raise SetupError(
            f"cannot listen on {address}: another process has the port, or the address is not"
            " of this host",
            field="--tensors",
        ) from taken
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)
