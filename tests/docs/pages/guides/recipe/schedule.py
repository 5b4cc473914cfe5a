import math


class Mine:
    # block


assert Mine().schedule(0, 10, 100) == 1
assert Mine().schedule(100, 10, 100) == 0
