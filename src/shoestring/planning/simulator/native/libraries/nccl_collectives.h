// Collectives over the shared memory.
#pragma once

#include "libraries/nccl_communicator.h"

namespace simulator::nccl {

// Runs a collective, not a send or receive; returns when this rank's part is done. Where the data are too large to be copied, the
// ranks still wait for each other.
Status run_collective(Communicator& communicator, const Operation& operation);

// Whether data are copied between the ranks: all that a copy on the device would be (see simulator_copies), and more where they
// are whole numbers, such as the bytes of Python objects.
bool is_moved(int type, size_t bytes);

}  // namespace simulator::nccl
