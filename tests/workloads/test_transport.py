"""The transport: who is heard, what is counted, and what the kernel says of it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
import zmq
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.errors import TransportError
from laggard.workloads.serving.parameter_server import stay_for
from laggard.workloads.transport.endpoint import Endpoint
from laggard.workloads.transport.frames import Message, pack, unpack
from laggard.workloads.transport.inet_diag import (
    list_connections,
    list_own_connections,
    open_in_namespace,
)
from laggard.workloads.transport.keys import make_endpoints
from laggard.workloads.transport.plan import EndpointPlan
from tests.faults import Fault, holds
from tests.workloads.conftest import HUNG_S, free_ports

ASK, TELL = 1, 2


@pytest.fixture
def plans() -> tuple[EndpointPlan, ...]:
    first = free_ports(3)
    addresses = [f"127.0.0.1:{port}" for port in range(first, first + 3)]
    return make_endpoints(addresses, timeout_s=HUNG_S)


@contextmanager
def echoing(plan: EndpointPlan) -> Iterator[list[Message]]:
    """A node that listens, keeps what it hears and answers with what it got, until told to end."""
    heard: list[Message] = []
    failed: list[BaseException] = []
    ready, over = threading.Event(), threading.Event()

    def serve() -> None:
        try:
            with Endpoint(plan, listens=True) as endpoint:
                ready.set()
                while not over.is_set():
                    message = endpoint.take(0.02)
                    if message is not None:
                        heard.append(message)
                        if message.kind == ASK:
                            endpoint.send(
                                message.sender, Message(TELL, 1, message.values, message.tensor)
                            )
        except BaseException as error:  # noqa: BLE001 - told below, in the test's own thread
            failed.append(error)
            ready.set()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert ready.wait(HUNG_S)
        yield heard
    finally:
        over.set()
        thread.join(HUNG_S)
        assert not failed, failed


@given(
    kind=st.integers(1, 255),
    version=st.integers(-(2**63), 2**63 - 1),
    values=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=16),
    numbers=st.none() | st.lists(st.floats(width=32, allow_nan=False), max_size=20),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]),
)
def test_a_message_is_read_as_it_was_written(
    kind: int, version: int, values: list[int], numbers: list[float] | None, dtype: torch.dtype
) -> None:
    tensor = None if not numbers else torch.tensor(numbers, dtype=dtype)
    written = Message(kind, version, tuple(values), tensor)
    header, *rest = pack(written, 7)
    read = unpack(bytes(header), bytearray(rest[0]) if rest else None, 3)
    assert (read.kind, read.version, read.values, read.sender, read.number) == (
        kind,
        version,
        tuple(values),
        3,
        7,
    )
    assert (read.tensor is None) == (tensor is None)
    if tensor is not None:
        assert read.tensor is not None
        assert read.tensor.dtype == dtype
        assert torch.equal(read.tensor, tensor)
    assert read.payload_bytes == written.payload_bytes


def test_a_tensor_comes_back_and_senders_are_known(plans: tuple[EndpointPlan, ...]) -> None:
    with echoing(plans[2]) as heard, Endpoint(plans[0]) as first, Endpoint(plans[1]) as second:
        first.connect(2)
        second.connect(2)
        values = torch.arange(1000, dtype=torch.float32)
        second.deliver(2, Message(ASK, 5, (8, -9), values))
        first.deliver(2, Message(ASK, 6))
        answer = second.receive()
        assert answer.tensor is not None
        assert torch.equal(answer.tensor, values)
        assert (answer.kind, answer.version, answer.values, answer.sender) == (TELL, 1, (8, -9), 2)
        assert first.receive().tensor is None
        assert [(each.sender, each.version) for each in heard] == [(1, 5), (0, 6)]
        assert (second.sent_bytes[2], second.received_bytes[2], first.sent_bytes[2]) == (
            4000,
            4000,
            0,
        )


def test_payload_agrees_with_what_the_kernel_says_was_acknowledged(
    plans: tuple[EndpointPlan, ...],
) -> None:
    """Both ways, 6 MB in four messages."""
    values = torch.rand(1_500_000 // 4)
    with echoing(plans[2]), Endpoint(plans[0]) as endpoint:
        endpoint.connect(2)
        for _ in range(4):
            endpoint.deliver(2, Message(ASK, 1, (), values))
            assert endpoint.receive().payload_bytes == values.numel() * 4
        port = int(plans[2].addresses[2].rpartition(":")[2])
        diagnosis = open_in_namespace(None)
        # The last acknowledgement of TCP may be a moment behind that of the transport.
        until_s = time.monotonic() + HUNG_S
        acked: dict[str, int] = {}
        while time.monotonic() < until_s and min(acked.values(), default=0) < 6_000_000:
            acked = {
                "sent" if each.dst_port == port else "received": each.bytes_acked
                for each in list_connections(diagnosis)
                if port in (each.src_port, each.dst_port)
            }
        diagnosis.close()
        assert endpoint.sent_bytes[2] == 6_000_000
        assert acked["sent"] == pytest.approx(endpoint.sent_bytes[2], rel=0.01)
        assert acked["received"] == pytest.approx(endpoint.received_bytes[2], rel=0.01)


def knock(address: str, change: Callable[[zmq.Socket[bytes]], None]) -> list[int]:
    """A stranger sends and listens; what became of its handshake."""
    context = zmq.Context()
    stranger: zmq.Socket[bytes] = context.socket(zmq.DEALER)
    change(stranger)
    stranger.linger = 0
    monitor = stranger.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
    stranger.connect(f"tcp://{address}")
    stranger.send_multipart([bytes(pack(Message(ASK, 66), 1)[0])])
    heard: list[int] = []
    if monitor.poll(HUNG_S * 1e3):
        from zmq.utils.monitor import recv_monitor_message

        heard.append(recv_monitor_message(monitor)["event"])
    assert not stranger.poll(300)
    stranger.disable_monitor()
    monitor.close(0)
    stranger.close()
    context.term()
    return heard


@holds(Fault.STRANGER_AT_DOOR)
def test_a_stranger_can_neither_push_nor_read(plans: tuple[EndpointPlan, ...]) -> None:
    """Without keys, with keys of its own, and with keys of its own and the right name of the
    server."""

    def keyed(server: bytes) -> Callable[[zmq.Socket[bytes]], None]:
        def change(stranger: zmq.Socket[bytes]) -> None:
            stranger.curve_publickey, stranger.curve_secretkey = zmq.curve_keypair()
            stranger.curve_serverkey = server
            stranger.routing_id = b"0"

        return change

    own, _ = zmq.curve_keypair()
    strangers = [lambda _: None, keyed(own), keyed(plans[2].public_keys[2].encode())]
    with echoing(plans[2]) as heard, Endpoint(plans[0]) as friend:
        friend.connect(2)
        for stranger in strangers:
            assert zmq.EVENT_HANDSHAKE_SUCCEEDED not in knock(plans[2].addresses[2], stranger)
            friend.deliver(2, Message(ASK, 5))
            assert friend.receive().kind == TELL
        assert [(each.sender, each.version) for each in heard] == [(0, 5)] * 3


def test_a_server_that_is_another_is_not_spoken_to(plans: tuple[EndpointPlan, ...]) -> None:
    others = make_endpoints(plans[0].addresses, HUNG_S)
    deceived = plans[0].model_copy(update={"timeout_s": 0.5})
    with echoing(others[2]) as heard, Endpoint(deceived) as endpoint:
        endpoint.connect(2)
        with pytest.raises(TransportError, match="node 2"):
            endpoint.deliver(2, Message(ASK, 1))
    assert heard == []


def test_a_node_listens_at_its_own_address_alone(plans: tuple[EndpointPlan, ...]) -> None:
    port = plans[2].addresses[2].rpartition(":")[2]
    with echoing(plans[2]):
        with socket.create_connection(("127.0.0.1", int(port)), HUNG_S):
            pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", int(port)), HUNG_S)


def test_a_node_that_goes_is_missed_and_a_silent_one_is_not_waited_for(
    plans: tuple[EndpointPlan, ...],
) -> None:
    with echoing(plans[2]), Endpoint(plans[1]) as impatient:
        impatient.connect(2)
        impatient.deliver(2, Message(TELL))
        impatient.plan = impatient.plan.model_copy(update={"timeout_s": 0.3})
        with pytest.raises(TransportError, match=r"received no message for 0\.3 s"):
            impatient.receive()
    with Endpoint(plans[2], listens=True) as server:
        with Endpoint(plans[0]) as endpoint:
            endpoint.connect(2)
            endpoint.send(2, Message(TELL, 4))
            assert server.receive().version == 4
        until_s = time.monotonic() + HUNG_S
        while 0 not in server.gone and time.monotonic() < until_s:
            server.take(0.05)
        assert server.gone == {0}
        with pytest.raises(TransportError, match="broken"):
            server.send(0, Message(TELL))


def test_a_server_stays_until_workers_have_counted_what_they_sent(
    plans: tuple[EndpointPlan, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel forgets what was acknowledged as soon as either end closes; a worker with a small
    share of a core counts late."""
    counted: list[int] = []
    stays = threading.Event()

    def work() -> None:
        with Endpoint(plans[0]) as worker:
            worker.connect(2)
            worker.deliver(2, Message(TELL, 0, (), torch.zeros(100_000)))
            assert stays.wait(HUNG_S)
            counted.append(sum(each.bytes_acked for each in list_own_connections()))

    with Endpoint(plans[2], listens=True) as server:
        worker = threading.Thread(
            target=work,
        )
        worker.start()
        assert server.receive().tensor is not None
        take = server.take

        def take_while_staying(timeout_s: float = 0.0) -> Message | None:
            message = take(timeout_s)
            stays.set()
            return message

        monkeypatch.setattr(server, "take", take_while_staying)
        stay_for(server, {0}, HUNG_S)
        assert counted, "it stayed until the worker had closed its connection"
        assert counted[0] >= 400_000
        begun_s = time.monotonic()
        stay_for(server, {0, 1}, 0.1)
        assert time.monotonic() - begun_s >= 0.1
    worker.join(HUNG_S)


def wait_until_gone(endpoint: Endpoint, node: int, *, gone: bool = True) -> None:
    until_s = time.monotonic() + HUNG_S
    while (node in endpoint.gone) != gone:
        assert endpoint.take(0.05) is None
        assert time.monotonic() < until_s


def test_a_node_that_went_may_come_back(plans: tuple[EndpointPlan, ...]) -> None:
    """Again and again: its connections have one descriptor, as likely as not."""
    with Endpoint(plans[2], listens=True) as server, Endpoint(plans[1]) as other:
        other.connect(2)
        for life in range(4):
            with Endpoint(plans[0]) as endpoint:
                endpoint.connect(2)
                endpoint.send(2, Message(TELL, life))
                assert (heard := server.receive()).version == life
                assert heard.sender == 0
                assert server.gone == set()
                server.send(0, Message(TELL, 100 + life))
                assert endpoint.receive().version == 100 + life
                server.drain(HUNG_S)
                other.send(2, Message(TELL, 7))
                assert server.receive().sender == 1
                server.send(0, Message(TELL, 0))  # which nobody takes
            wait_until_gone(server, 0)
            assert server.departed == {0}
        with Endpoint(plans[0]) as endpoint:
            endpoint.connect(2)
            endpoint.send(2, Message(TELL, 9))
            assert server.receive().version == 9
            until_s = time.monotonic() + HUNG_S
            server.drain(2 * HUNG_S)
            assert time.monotonic() < until_s, (
                "what its earlier connections took along is not waited for"
            )


def test_a_connection_that_is_replaced_counts_no_more(plans: tuple[EndpointPlan, ...]) -> None:
    """A node is back before its end was noticed: what comes over its old connection is not heard,
    nor its end missed."""
    with Endpoint(plans[2], listens=True) as server, Endpoint(plans[0]) as second:
        with Endpoint(plans[0]) as first:
            first.connect(2)
            first.send(2, Message(TELL, 1))
            assert server.receive().version == 1
            second.connect(2)
            second.send(2, Message(TELL, 2))
            assert server.receive().version == 2
            first.send(2, Message(TELL, 3))
            assert server.take(0.2) is None
            server.send(0, Message(TELL, 4))
            assert second.receive().version == 4
            assert first.take(0.1) is None
        assert server.take(0.3) is None
        assert server.gone == set()
        second.send(2, Message(TELL, 5))
        assert server.receive().version == 5
    assert second.gone == set()


def test_a_node_that_is_called_may_come_back_too(plans: tuple[EndpointPlan, ...]) -> None:
    with Endpoint(plans[0]) as endpoint:
        endpoint.connect(2)
        for _ in range(2):
            with echoing(plans[2]) as heard:
                wait_until_gone(endpoint, 2, gone=False)
                endpoint.deliver(2, Message(ASK, 5))
                assert endpoint.receive().kind == TELL
                assert [each.version for each in heard] == [5]
            wait_until_gone(endpoint, 2)


def test_keys_are_not_shown(plans: tuple[EndpointPlan, ...]) -> None:
    assert plans[0].secret_key not in repr(plans[0])
    assert len({key for plan in plans for key in (plan.secret_key, *plan.public_keys)}) == 6
