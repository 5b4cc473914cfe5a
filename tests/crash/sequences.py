"""Sequences of faults: a run, and what happens in each of its sessions. A seed stands for one sequence.

The details of a fault, such as the moment of a kill, follow from the seed, the session and the name of the fault. So a
part of a sequence is the same whether or not the other parts happen, and a failing sequence can be made smaller.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

SESSIONS = (2, 4)
"""How many sessions have faults, at least and at most; a run is then finished by a session without any."""
COUNTS = {1: 0.35, 2: 0.4, 3: 0.25}
"""How often a session has so many faults."""


@dataclass(frozen=True, kw_only=True)
class Faults:
    """The faults of one session."""

    number: int
    """The place of the session in the whole sequence of its seed."""
    names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class FaultSequence:
    """A run and the faults of its sessions."""

    seed: int
    configuration: str
    sessions: tuple[Faults, ...]

    def generator(self, *names: object) -> random.Random:
        """Return the generator of the choices that these names stand for; it does not depend on other choices."""
        return random.Random("/".join(map(str, (self.seed, *names))))

    def json(self) -> str:
        sessions = [{"number": session.number, "names": session.names} for session in self.sessions]
        return json.dumps({"seed": self.seed, "configuration": self.configuration, "sessions": sessions})


def parse(text: str) -> FaultSequence:
    """Return the sequence that `json` has written."""
    content = json.loads(text)
    sessions = tuple(Faults(number=item["number"], names=tuple(item["names"])) for item in content["sessions"])
    return FaultSequence(seed=content["seed"], configuration=content["configuration"], sessions=sessions)


def of_seed(seed: int, configurations: Sequence[str], areas: Mapping[str, Sequence[str]]) -> FaultSequence:
    """Return the sequence of a seed. `areas` has the names of faults: a session has one fault of an area at most."""
    generator = random.Random(f"{seed}/sequence")
    sessions = []
    for number in range(generator.randint(*SESSIONS)):
        (count,) = generator.choices(list(COUNTS), weights=list(COUNTS.values()))
        chosen = generator.sample(list(areas), k=min(count, len(areas)))
        sessions.append(Faults(number=number, names=tuple(sorted(generator.choice(areas[area]) for area in chosen))))
    return FaultSequence(seed=seed, configuration=configurations[seed % len(configurations)], sessions=tuple(sessions))


def smaller(sequence: FaultSequence) -> Iterator[FaultSequence]:
    """Yield the sequences without one of the sessions, then those without one of the faults."""
    for place in range(len(sequence.sessions)):
        yield replace(sequence, sessions=sequence.sessions[:place] + sequence.sessions[place + 1 :])
    for place, session in enumerate(sequence.sessions):
        for name in session.names if len(session.names) > 1 else ():
            names = tuple(other for other in session.names if other != name)
            sessions = (*sequence.sessions[:place], replace(session, names=names), *sequence.sessions[place + 1 :])
            yield replace(sequence, sessions=sessions)


def shrink(sequence: FaultSequence, fails: Callable[[FaultSequence], bool], *, attempts: int) -> FaultSequence:
    """Return the smallest sequence that still fails, of those that at most so many `attempts` reach."""
    remaining = attempts
    while True:
        for candidate in smaller(sequence):
            if remaining == 0:
                return sequence
            remaining -= 1
            if fails(candidate):
                sequence = candidate
                break
        else:
            return sequence
