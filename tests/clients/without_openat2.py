"""Run a program for which the system call `openat2` fails: `without_openat2.py ENOSYS program arguments...`.

The call is refused by a seccomp filter, as in a sandbox. Every child process inherits the filter."""

import ctypes
import errno
import os
import struct
import sys

OPENAT2 = 437  # on every architecture
PR_SET_SECCOMP, SECCOMP_MODE_FILTER, PR_SET_NO_NEW_PRIVS = 22, 2, 38
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def refuse(code: int) -> None:
    steps = [(LOAD, 0, 0, 0), (JUMP_IF_EQUAL, 0, 1, OPENAT2), (RETURN, 0, 0, FAIL | code), (RETURN, 0, 0, ALLOW)]
    text = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = Program(len(steps), ctypes.cast(text, ctypes.c_void_p))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0):
        raise OSError(ctypes.get_errno(), "cannot install the system call filter")


if __name__ == "__main__":
    refuse(getattr(errno, sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
