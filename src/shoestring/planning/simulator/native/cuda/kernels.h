// Kernels: which a process has registered, and what a launch of one does. Only fills are computed; the others do nothing.
#pragma once

#include <cstddef>
#include <functional>

#include "errors.h"
#include "fatbinary.h"

namespace simulator {

// dim3 (vector_types.h).
struct Dim3 {
  unsigned x, y, z;
};

// A driver's function (cuModuleGetFunction): nothing of it is known but its name.
struct ModuleFunction {
  const char* name;
};

// The image that a registered kernel runs from on the simulated GPUs. A function that was not registered suits.
KernelImage image_of(const void* function);

// What a launch computes; empty for all but fills. The arguments are copied.
std::function<void()> kernel_work(const void* function, void** arguments);

// Checks and submits a launch.
Error launch_kernel(const void* function, Dim3 grid, Dim3 block, void** arguments, size_t shared_bytes, void* stream);

Error check_configuration(Dim3 grid, Dim3 block, size_t shared_bytes);

// How many blocks of this size fit on a multiprocessor.
int blocks_per_multiprocessor(int block_threads, size_t shared_bytes);

}  // namespace simulator
