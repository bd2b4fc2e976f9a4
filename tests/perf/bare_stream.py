#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long the bytes alone take over TCP, from the first rank to the second ("one") or both ways at once:

    scripts/two_hosts.sh 1 tests/perf/bare_stream.py both 67108864 5

Two ranks of mpiexec; the first is at 10.213.77.1, as two_hosts.sh places it. What goes one way is answered
by a byte. Prints the median.
"""
import os
import socket
import statistics
import sys
import threading
import time

ways, size, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
is_first = os.environ["PMI_RANK"] == "0"
outgoing, incoming = bytes(size), memoryview(bytearray(size))


def connect():
    if is_first:
        with socket.create_server(("10.213.77.1", 20999)) as listener:
            return listener.accept()[0]
    while True:
        try:
            return socket.create_connection(("10.213.77.1", 20999))
        except ConnectionRefusedError:
            time.sleep(0.01)


def receive(wanted):
    got = 0
    while got < wanted:
        got += link.recv_into(incoming[got:wanted])


def exchange():
    if ways == "both":
        sender = threading.Thread(target=link.sendall, args=(outgoing,))
        sender.start()
        receive(size)
        sender.join()
    elif is_first:
        link.sendall(outgoing)
        receive(1)
    else:
        receive(size)
        link.sendall(b"!")


link = connect()
link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
times = []
for _ in range(count + 1):
    start = time.monotonic()
    exchange()
    times.append(1e3 * (time.monotonic() - start))
if is_first:
    print(f"bare stream, {ways}, {size} bytes: p50 {statistics.median(times[1:]):.2f} ms", flush=True)
