"""The standard gRPC services of a process, typed; the stubs of their packages are not."""

from collections.abc import AsyncGenerator

import grpc.aio
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

__all__ = ["is_serving", "service_names", "watch_serving"]


async def is_serving(channel: grpc.aio.Channel, service: str = "") -> bool:
    """What health says now of a service, of the whole process if none is named."""
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    return _serves(await check(health_pb2.HealthCheckRequest(service=service)))


async def watch_serving(channel: grpc.aio.Channel) -> AsyncGenerator[bool]:
    """What health says now, and then every change."""
    watch = channel.unary_stream(
        "/grpc.health.v1.Health/Watch",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    async for answer in watch(health_pb2.HealthCheckRequest(), wait_for_ready=True):
        yield _serves(answer)


async def service_names(channel: grpc.aio.Channel) -> set[str]:
    """What reflection lists."""
    ask = channel.stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    question = reflection_pb2.ServerReflectionRequest(list_services="")
    answers = [answer async for answer in ask(iter([question]))]
    return {found.name for answer in answers for found in answer.list_services_response.service}


def _serves(answer: health_pb2.HealthCheckResponse) -> bool:
    return answer.status == health_pb2.HealthCheckResponse.SERVING
