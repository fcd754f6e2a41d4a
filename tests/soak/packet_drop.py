"""Sockets that drop what the peer sends, as if their host had vanished without a word."""

import ctypes
import socket
import struct

# asm-generic/socket.h
SO_ATTACH_FILTER = 26
# BPF_RET | BPF_K (linux/bpf_common.h) with 0: accepts no byte of any packet.
DROP = struct.pack("HBBI", 0x06, 0, 0, 0)


def drop_packets(connection):
    """Drop every packet that arrives from now on, before it is acknowledged."""
    program = ctypes.create_string_buffer(DROP)
    connection.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(program)))
