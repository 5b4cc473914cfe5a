// Values that were not computed. What the program may read is plausible instead (finite, in range), and the storage is
// remembered, so that a read of it, or of what was computed from it, can be reported.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace simulator {

// Whether the tensor's storage holds an assumed value.
bool is_assumed(const at::Tensor& tensor);

void mark_assumed(const at::Tensor& tensor);

// The tensor was computed from values. Its storage counts as computed if the tensor covers all of it.
void mark_computed(const at::Tensor& tensor);

// The block of device memory at this address was freed. Takes no lock of PyTorch's.
void forget_assumed(const void* address);

// Gives a tensor of the device a value that a program can go on with. Large tensors read as zeros and take no memory.
void fill_plausible(const at::Tensor& tensor, const std::string& operator_name);

// Replaces what is not finite in a small tensor that was computed from assumed values.
void make_finite(const at::Tensor& tensor);

}  // namespace simulator
