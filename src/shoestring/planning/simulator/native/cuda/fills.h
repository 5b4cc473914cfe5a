// PyTorch's fill kernels, recognized by their mangled names.
#pragma once

#include <functional>

namespace simulator {

// The fill that the kernel of this name does with these arguments; empty if it is none.
std::function<void()> fill_of(const char* kernel_name, void** arguments);

}  // namespace simulator
