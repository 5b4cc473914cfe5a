"""Heartbeats, how long processes have been silent, and the job of a rank."""

import os
import socket
import time

from shoestring.training.engine.parallel import rank_channel
from shoestring.training.engine.parallel.rank_channel import PEER_LOST_STATUS, Silence


def test_silence_counts_only_while_this_process_runs(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(rank_channel.time, "monotonic", lambda: now[0])
    silence = Silence([0, 1], 3.0)
    dead = []
    for tick in (1.0, 1.0, 500.0, 1.0):  # the machine slept in between
        now[0] += tick
        dead.append(silence.update([0]))
    assert dead == [[], [], [], [1]]
    now[0] += 1.0
    assert silence.update([1]) == []


def test_heartbeats_of_a_child_are_received():
    heartbeats = rank_channel.Heartbeats(0.2)
    time.sleep(0.25)
    assert heartbeats.are_missing()
    heartbeats.start()
    for _ in range(5):
        time.sleep(0.08)
        assert not heartbeats.are_missing()
    heartbeats.close()


def test_rank_without_a_job_leaves(monkeypatch):
    monkeypatch.setattr(rank_channel, "_JOB_SECONDS", 0.1)
    agents_end, ranks_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    pid = os.fork()
    if pid == 0:
        os.dup2(ranks_end.fileno(), 0)
        rank_channel.RankChannel()
        os._exit(0)
    agents_end.close()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == PEER_LOST_STATUS
    ranks_end.close()
