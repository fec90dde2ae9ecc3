"""A pipeline's choice of transport: every one means something, and what may not fall back does not."""

import pytest

from omnistage_common.pipeline.plan import TransportChoice
from omnistage_common.tensors import EVERY_TRANSPORT, TransportKind
from omnistage_common.transfers import transports_for


@pytest.mark.parametrize("choice", TransportChoice)
def test_every_choice_is_a_list_of_ways_between_processes(choice: TransportChoice) -> None:
    kinds = transports_for(choice)

    assert kinds
    assert set(kinds) <= set(EVERY_TRANSPORT)
    assert TransportKind.INLINE not in kinds


def test_the_default_is_the_best_that_can_be_had() -> None:
    assert transports_for(TransportChoice.AUTO) == EVERY_TRANSPORT


@pytest.mark.parametrize(
    ("choice", "kind"),
    [
        (TransportChoice.RDMA, TransportKind.RDMA),
        (TransportChoice.SHARED_MEMORY, TransportKind.SHARED_MEMORY),
        (TransportChoice.STREAM, TransportKind.STREAM),
    ],
)
def test_some_are_that_or_nothing(choice: TransportChoice, kind: TransportKind) -> None:
    assert transports_for(choice) == (kind,)


def test_tcp_stays_tcp() -> None:
    assert transports_for(TransportChoice.TCP) == (TransportKind.TCP, TransportKind.STREAM)
