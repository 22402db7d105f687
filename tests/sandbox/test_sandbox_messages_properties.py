"""Whatever a peer sends, the receiver ends with an object or a documented error, and holds no descriptor too many."""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
import struct
import threading

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from kernelwright.sandbox import PeerClosed, ProtocolError, recv_message, send_message
from kernelwright.sandbox.messages import MAX_DEPTH, MAX_MESSAGE_BYTES, parse_object, receive

bounded = settings(max_examples=60, derandomize=True, deadline=None, database=None)
any_text = st.text(st.characters(), max_size=8)  # lone surrogates included: JSON can say them
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**300), 10**300)
    | st.floats(allow_nan=False, allow_infinity=False)
    | any_text
)
values = st.recursive(
    scalars, lambda v: st.lists(v, max_size=4) | st.dictionaries(any_text, v, max_size=3), max_leaves=10
)
objects = st.dictionaries(any_text, values, max_size=4)


def depth(value) -> int:
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(depth, value.values() if isinstance(value, dict) else value), default=0)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@contextlib.contextmanager
def no_descriptor_leaks():
    before = open_descriptors()
    yield
    assert open_descriptors() == before


def framed(body: bytes) -> bytes:
    return struct.pack("!I", len(body)) + body


def received(pieces, *, descriptors=0, **options):
    """What the receiver makes of bytes that come piece by piece, the first with descriptors; then the peer hangs up."""
    ours, theirs = socket.socketpair()

    def send() -> None:
        with contextlib.suppress(OSError):  # the receiver may have gone
            for i, piece in enumerate(pieces):
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * descriptors))]
                theirs.sendmsg([piece], rights if i == 0 and descriptors else [])
            theirs.shutdown(socket.SHUT_WR)

    with ours, theirs:
        sender = threading.Thread(target=send)
        sender.start()
        try:
            return receive(ours, timeout_s=20.0, **options)
        finally:
            ours.close()
            sender.join()


# ------------------------------------------------------------------------------------------------- round trips


@bounded
@given(objects)
@example({"a": 1.7976931348623157e308, "b": 5e-324, "c": -0.0, "d": "\ud800", "e": "\0"})
@example({"x" * 60_000: []})
def test_any_object_that_fits_is_received_as_it_was_sent(message):
    assume(len(json.dumps(message, separators=(",", ":"))) <= MAX_MESSAGE_BYTES and depth(message) <= MAX_DEPTH)
    ours, theirs = socket.socketpair()
    with ours, theirs, no_descriptor_leaks():
        send_message(ours, message)
        got, fds = recv_message(theirs, timeout_s=20.0)
    assert (got, fds) == (message, ())
    assert json.dumps(got) == json.dumps(message)  # -0.0, 1 and 1.0 and True are equal, and yet not the same


@bounded
@given(objects)
def test_what_is_too_deep_is_refused_and_nothing_else(message):
    body = json.dumps(message).encode()
    for limit in range(1, MAX_DEPTH):
        try:
            parse_object(body, max_depth=limit)
        except ProtocolError:
            assert depth(message) > limit
        else:
            assert depth(message) <= limit


@bounded
@given(objects, st.data())
def test_a_message_may_come_in_any_pieces(message, data):
    body = json.dumps(message).encode()
    assume(len(body) <= MAX_MESSAGE_BYTES and depth(message) <= MAX_DEPTH)
    whole = framed(body)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(whole) - 1), max_size=6)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    with no_descriptor_leaks():
        assert received(pieces).message == message


# --------------------------------------------------------------------------------------------------- hostility


@bounded
@given(objects, st.data(), st.integers(0, 24))
def test_damaged_messages_leak_no_descriptors(message, data, descriptors):
    whole = bytearray(framed(json.dumps(message).encode()))
    for at, value in data.draw(st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)), max_size=3)):
        whole[at] = value
    whole = whole[: data.draw(st.integers(1, len(whole)))]
    allowed = data.draw(st.integers(0, 24))
    with no_descriptor_leaks():
        try:
            got = received([bytes(whole)], descriptors=descriptors, max_fds=allowed)
        except ProtocolError:
            return
        assert isinstance(got.message, dict)
        assert len(got.fds) == descriptors <= allowed
        assert not any(os.get_inheritable(fd) for fd in got.fds)
        for fd in got.fds:
            os.close(fd)


@bounded
@given(st.binary(max_size=300), st.integers(0, 24))
def test_garbage_with_descriptors_leaks_none(garbage, descriptors):
    assume(garbage)
    with no_descriptor_leaks():
        try:
            got = received([garbage], descriptors=descriptors, max_fds=0)
        except ProtocolError:
            return
        assert got.fds == ()


@bounded
@given(st.integers(0, 2**32 - 1), st.integers(0, 400))
def test_a_length_that_lies_ends_as_closed_or_refused(claimed, sent):
    assume(claimed != sent)
    with no_descriptor_leaks():
        try:
            received([struct.pack("!I", claimed) + b" " * sent])
        except PeerClosed:
            assert sent < claimed <= MAX_MESSAGE_BYTES
        except ProtocolError:
            assert claimed > MAX_MESSAGE_BYTES or claimed < sent


NUMBERS = ("1", "-", "1e999", "-1E+400", "9" * 400, "0.0000001", "01", "NaN", "Infinity", "-Infinity")
MARKS = ("{", "}", "[", "]", ",", ":", '"a"', '"b"', '"', "\\", "true", "null", " ", "\t", "\ufeff", "'a'", "/*", "\0")
fragments = st.sampled_from((*NUMBERS, *MARKS, "\x1f", "\ud83d"))


@settings(bounded, max_examples=200)
@given(st.lists(fragments, max_size=25).map("".join))
@example('{"a":' + "9" * 5000 + "}")
@example('{"a":1e400}')
@example('{"a":' + "[" * 20_000)
@example('{"a":1,"a":1}')
@example('{"a":{"b":1,"b":2}}')
@example('{"a":-NaN}')
@example("\ufeff{}")
def test_near_json_is_an_object_of_finite_depth_or_an_error(text):
    body = text.encode(errors="surrogatepass")
    try:
        value = parse_object(body)
    except ProtocolError:
        return
    assert isinstance(value, dict)
    assert depth(value) <= MAX_DEPTH
    assert "NaN" not in text
    assert not duplicate_keys(text)


def duplicate_keys(text: str) -> bool:
    found = []

    def note(pairs):
        found.append(len(dict(pairs)) != len(pairs))
        return dict(pairs)

    json.loads(text.removeprefix("\ufeff"), object_pairs_hook=note)
    return any(found)


@bounded
@given(
    st.dictionaries(
        any_text, scalars | st.sampled_from([float("nan"), float("inf"), object(), 1j, {1, 2}, b"x"]), max_size=4
    )
)
def test_what_is_sent_is_plain_json_or_not_sent_at_all(message):
    ours, theirs = socket.socketpair()
    with ours, theirs, no_descriptor_leaks():
        try:
            send_message(ours, message, [0], max_bytes=2000, timeout_s=20.0)
        except ProtocolError:
            theirs.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                assert theirs.recv(1) == b""  # nothing was sent
            return
        got, fds = recv_message(theirs, timeout_s=20.0, max_depth=100)
        os.close(*fds)
        assert got == message
