// How the host computes operators that have a CUDA kernel and none for the CPU, or one that computes something else.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace simulator {

using torch::jit::Stack;

// Takes the arguments from the stack, and leaves the results there. `genuine` are the results of the genuine kernel, from which
// shapes are taken, and the memory in which a forward operator keeps seeds for its backward. All tensors are the host's.
using Reference = void (*)(Stack& stack, const Stack& genuine);
using ReferenceTable = std::unordered_map<std::string, Reference>;

// Returns nullptr for an operator that the host computes by itself. `name` as in aten::mm.dtype.
Reference find_reference(const std::string& name);

// By subject; each adds its own.
void add_attention(ReferenceTable& table);
void add_recurrent(ReferenceTable& table);
void add_convolution(ReferenceTable& table);
void add_normalization(ReferenceTable& table);
void add_products(ReferenceTable& table);
void add_others(ReferenceTable& table);

// The argument as a tensor; undefined if it is None.
at::Tensor tensor_at(const Stack& stack, size_t index);

// The same in float32.
at::Tensor float_at(const Stack& stack, size_t index);

std::optional<at::Tensor> optional_float_at(const Stack& stack, size_t index);

// Replaces the arguments on the stack by the results.
void set_results(Stack& stack, std::vector<c10::IValue> results);

}  // namespace simulator
