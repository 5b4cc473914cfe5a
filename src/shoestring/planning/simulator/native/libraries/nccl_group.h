// Groups of operations: what is called between ncclGroupStart and ncclGroupEnd runs together at the end.
#pragma once

#include "libraries/nccl_communicator.h"

namespace simulator::nccl {

void start_group();
Status end_group();

// Runs the operation, or at the end of the group that this thread has open. On a stream that is being captured it becomes part of
// the
// graph instead.
Status submit(Communicator& communicator, const Operation& operation, void* stream);
Status submit_join(Communicator& communicator);

// What went wrong last in this process.
const char* last_message();
void set_last_message(const std::string& text);

}  // namespace simulator::nccl
