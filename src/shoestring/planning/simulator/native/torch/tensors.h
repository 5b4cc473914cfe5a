// Tensors of the simulated device as tensors of the host over the same memory, singly and within arguments of operators.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>

namespace simulator {

// Whether it is a plain (strided) CUDA tensor: those of other layouts consist of several.
bool is_device_tensor(const at::Tensor& tensor);

// A host tensor over the memory of a device tensor; others are returned as they are. It does not keep the memory.
at::Tensor on_host(const at::Tensor& tensor);

// Calls `visit` with each tensor in a value: a tensor or a list of them, also of optional ones.
void for_each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit);

// The value with each tensor replaced, and CUDA devices by the host.
c10::IValue replace_tensors(const c10::IValue& value, const std::function<at::Tensor(const at::Tensor&)>& replace);

}  // namespace simulator
