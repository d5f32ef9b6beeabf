"""What a client says to a manager: the kinds of messages, and the names they may carry.

A message is one letter and its argument. `SOCK_SEQPACKET` keeps the boundaries of
messages, so that a client that is killed leaves no half of one. Nothing is answered but
SYNC and STATUS.

==================== = =================================================================
REGISTER             H name: the sender of the message uses the name once more
REGISTER_AGAIN       A name: as REGISTER, to the successor of a manager that was killed
RELEASE              R name: one REGISTER less (without effect where there is none)
ANNOUNCE             P names, separated by 0, and a descriptor: a message that carries
                       the names is about to be sent, and with it the other end of the
                       pipe that the descriptor is an end of
REGISTER_ANNOUNCED   G name and a descriptor: REGISTER and ANNOUNCE of one name
ANNOUNCE_COUNTED     + name: the same of a message that cannot carry descriptors
ACKNOWLEDGE_COUNTED  C name: that one was received; sent after the receiver's REGISTER
WITHDRAW_COUNTED     X name: that one will never be received
PREFORK              F a descriptor: it is the connection of a child that is about to be
                       forked, which holds what the sender holds
LISTENING            L the socket for clients is ready (first client only)
ABANDON              N forget the directory and exit (first client only)
SYNC                 S token: answered with the token once all before it is done
STATUS               T token: answered with the token and the counts (`COUNTS`)
==================== = =================================================================

The letters stay whatever the messages are called, since the manager that a client finds
may have been started by another version.
"""

import struct

REGISTER, REGISTER_AGAIN, RELEASE = b"H", b"A", b"R"
ANNOUNCE, REGISTER_ANNOUNCED = b"P", b"G"
ANNOUNCE_COUNTED, ACKNOWLEDGE_COUNTED, WITHDRAW_COUNTED = b"+", b"C", b"X"
PREFORK, LISTENING, ABANDON = b"F", b"L", b"N"
SYNC, STATUS = b"S", b"T"

COUNTS = struct.Struct("<QQQQq")  # pid, clients, names, holds, in flight
TOKEN = 8
PREFIX = b"sharedtensor-"
NAME_LETTERS = b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
LONGEST_NAME = 255
LONGEST_MESSAGE = 1 << 14
BUFFER = 106496  # bytes of a client's socket, which Linux doubles: 278 short messages
SEPARATOR = b"\0"


def is_name(name: bytes) -> bool:
    """Return whether this is a name that the manager may touch. Clause MGR-16."""
    return (
        len(PREFIX) < len(name) <= LONGEST_NAME
        and name.startswith(PREFIX)
        and not name.translate(None, NAME_LETTERS)
    )
