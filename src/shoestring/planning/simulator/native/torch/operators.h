// Records the operators that run on the simulated devices, from which the time of an update on a real GPU is estimated.
// Nothing is recorded unless SHOESTRING_SIMULATOR_OPERATORS is 1 and the rehearsal has a folder.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <vector>

// Starts to count views and to record collectives, which have no kernel of torch's around which values are computed. To be
// called once, after the wrappers of all operators are registered; the first recorded operator does it otherwise.
void operators_start();

// Records a call of an operator with a kernel for CUDA, at the outermost depth: not those that its kernel calls itself.
// It never throws. The results are undefined tensors' IValues or the like if the operator has none.
void record_operator(const c10::OperatorHandle& handle, const std::vector<c10::IValue>& arguments,
                     const std::vector<c10::IValue>& results);

// What the process does from here on; the numbers of simulator_set_phase. Training, evaluation and generation are recorded.
void operators_phase(int phase);

// The update with this number begins, and the one before it has ended. The first one may have begun before it is announced.
void operators_update(int64_t update);
