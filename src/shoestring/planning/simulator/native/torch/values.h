// What operators compute on the simulated device.
//
// Each operator with a CUDA kernel gets a kernel around it. The genuine kernel runs first: its allocations, checks and errors
// are PyTorch's own, but nothing is computed. Then the same operator runs on host tensors over the device's memory. As this is
// a registration with the dispatcher, it holds in all threads, and neither a mode nor a subclass is visible to the program.
#pragma once

namespace simulator {

// Puts the kernels around the operators. To be called once.
void start_values();

}  // namespace simulator
