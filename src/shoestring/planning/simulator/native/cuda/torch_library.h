// Loads libshoestring_torch.so, which computes values and records memory, into a process that uses PyTorch's CUDA part.
#pragma once

namespace simulator {

// Loads it once, as soon as libtorch_cuda.so is loaded; cheap afterwards.
void load_torch_library();

}  // namespace simulator
