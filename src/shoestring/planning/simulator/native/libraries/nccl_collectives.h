// Collectives over the shared memory.
#pragma once

#include "libraries/nccl_communicator.h"

namespace simulator::nccl {

// Runs a collective, not a send or receive; returns when this rank's part is done. Where the data are too large to be copied, the
// ranks still wait for each other.
Status run_collective(Communicator& communicator, const Operation& operation);

}  // namespace simulator::nccl
