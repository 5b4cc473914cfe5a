// Sums and the like over what the ranks contributed, always in the order of the ranks.
#pragma once

#include <cstddef>
#include <vector>

#include "libraries/nccl_types.h"

namespace simulator::nccl {

// Whether elements of this type can be reduced here: 8-bit floats can only be moved.
bool can_reduce(int type);

// Reads one element.
double read_number(const void* place, int type);

// Writes to `output` the reduction of `count` elements of each of the inputs.
void reduce(const std::vector<const char*>& inputs, size_t count, int type, const Reduction& reduction, char* output);

}  // namespace simulator::nccl
