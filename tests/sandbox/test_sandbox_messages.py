"""Messages: what a peer may send, and everything that it may not."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelwright.errors import KernelwrightError
from kernelwright.sandbox import PeerClosed, PeerTimeout, ProtocolError, recv_message, send_message

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
objects = st.dictionaries(
    st.text(), st.recursive(scalars, lambda v: st.lists(v) | st.dictionaries(st.text(), v), max_leaves=20)
)


def receive_raw(data, **options):
    """What a receiver makes of bytes after which the peer hangs up."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        return recv_message(ours, timeout_s=5.0, **options)


def framed(body):
    return struct.pack("!I", len(body)) + body


@given(objects)
@settings(max_examples=50, deadline=None)
def test_what_is_sent_is_received(message):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send_message(ours, message)
        assert recv_message(theirs, timeout_s=5.0, max_depth=64) == (message, ())


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_garbage_is_a_protocol_error_or_an_object(data):
    try:
        message, fds = receive_raw(data)
    except ProtocolError:
        return
    assert isinstance(message, dict)
    assert fds == ()


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_a_garbage_body_is_a_protocol_error_or_an_object(body):
    try:
        message, _ = receive_raw(framed(body))
    except ProtocolError:
        return
    assert message == json.loads(body)


@pytest.mark.parametrize("length", range(13))
def test_truncation_anywhere_is_the_peers_end(length):
    with pytest.raises(PeerClosed):
        receive_raw(framed(b'{"a":1.5}')[:length])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'"text"',
        b"7",
        b'{"a":1}{"b":2}',
        b'{"a":1,"a":2}',
        b'{"a":{"b":1,"b":1}}',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":-Infinity}',
        b'{"a":\xff}',
        b'{"a":' + b"9" * 5000 + b"}",
        b'{"a":' * 17 + b"1" + b"}" * 17,
        b'{"a":' + b"[" * 30000 + b"]" * 30000 + b"}",
    ],
    ids=lambda body: body[:12].decode(errors="replace"),
)
def test_refused_bodies(body):
    with pytest.raises(ProtocolError):
        receive_raw(framed(body))


def test_sixteen_levels_are_accepted():
    body = b'{"a":' * 16 + b"1" + b"}" * 16
    assert receive_raw(framed(body))[0] == json.loads(body)


def test_an_oversized_message_is_refused_before_it_is_read():
    with pytest.raises(ProtocolError, match="exceeds") as caught:
        receive_raw(struct.pack("!I", 0xFFFFFFFF))
    assert caught.value.data["size_bytes"] == 0xFFFFFFFF
    assert receive_raw(framed(b'{"a":"' + b"x" * 65528 + b'"}'))
    with pytest.raises(ProtocolError, match="exceeds"):
        receive_raw(framed(b'{"a":"' + b"x" * 65529 + b'"}'))


def test_a_bomb_of_containers_is_refused_before_it_is_parsed():
    body = b'{"a":[' + b"[]," * (1 << 20) + b"[]]}"
    with pytest.raises(ProtocolError, match="too many items"):
        receive_raw_large(body)


def receive_raw_large(body):
    import threading

    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = threading.Thread(target=theirs.sendall, args=(framed(body),))
        sender.start()
        try:
            return recv_message(ours, timeout_s=20.0, max_bytes=1 << 24)
        finally:
            sender.join()


@pytest.mark.parametrize("message", [{"a": float("nan")}, {"a": object()}, {"a": "x" * 65536}])
def test_what_cannot_be_a_message_is_not_sent(pair, message):
    ours, theirs = pair
    with pytest.raises(ProtocolError):
        send_message(ours, message)
    send_message(ours, {"next": 1})
    assert recv_message(theirs, timeout_s=5.0)[0] == {"next": 1}


@pytest.mark.parametrize("sent", [b"", b"\0\0", b"\0\0\0\x09", b'\0\0\0\x09{"a"'])
def test_silence_or_a_trickle_ends_at_the_deadline(pair, sent):
    ours, theirs = pair
    theirs.sendall(sent)
    with pytest.raises(PeerTimeout):
        recv_message(ours, timeout_s=0.01)


def test_a_peer_that_does_not_read_ends_at_the_deadline(pair):
    ours, _ = pair
    ours.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while ours.send(b"x" * 65536):
            continue
    with pytest.raises(PeerTimeout):
        send_message(ours, {"a": 1}, timeout_s=0.01)


def test_sending_to_a_closed_peer(pair):
    ours, theirs = pair
    theirs.close()
    with pytest.raises(PeerClosed):
        send_message(ours, {})


def test_descriptors_arrive_as_the_same_file(pair, tmp_path, open_fds):
    ours, theirs = pair
    before = open_fds()
    with open(tmp_path / "file", "w+b") as file:
        send_message(ours, {"file": 1}, [file.fileno()])
        send_message(ours, {"none": 1})
        message, (fd,) = recv_message(theirs, timeout_s=5.0)
        assert message == {"file": 1}
        assert recv_message(theirs, timeout_s=5.0) == ({"none": 1}, ())
        assert os.path.sameopenfile(fd, file.fileno())
        assert not os.get_inheritable(fd)
        os.close(fd)
    assert open_fds() == before


@pytest.mark.parametrize("body", [framed(b"{}"), framed(b"nonsense"), struct.pack("!I", 1 << 30), b"\0\0"])
def test_descriptors_that_nobody_asked_for_are_closed(pair, body, open_fds):
    ours, theirs = pair
    socket.send_fds(theirs, [body], [0] * 20)
    theirs.close()
    before = open_fds()
    with pytest.raises(ProtocolError):
        recv_message(ours, timeout_s=5.0, max_fds=0)
    assert open_fds() == before


def test_descriptors_in_the_middle_of_a_message_are_not_taken(pair, open_fds):
    ours, theirs = pair
    theirs.sendall(struct.pack("!I", 2) + b"{")
    socket.send_fds(theirs, [b"}"], [0, 1])
    before = open_fds()
    assert recv_message(ours, timeout_s=5.0, max_fds=0) == ({}, ())
    assert open_fds() == before


def test_the_errors_form_one_family():
    assert issubclass(PeerClosed, ProtocolError)
    assert issubclass(PeerTimeout, ProtocolError)
    assert issubclass(ProtocolError, KernelwrightError)
