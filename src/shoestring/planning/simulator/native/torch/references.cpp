#include "torch/references.h"

#include <ATen/ATen.h>

namespace simulator {

Reference find_reference(const std::string& name) {
  static const ReferenceTable* const table = [] {
    auto* filled = new ReferenceTable;
    add_attention(*filled);
    add_recurrent(*filled);
    add_convolution(*filled);
    add_normalization(*filled);
    add_products(*filled);
    add_others(*filled);
    return filled;
  }();
  const auto found = table->find(name);
  return found == table->end() ? nullptr : found->second;
}

at::Tensor tensor_at(const Stack& stack, size_t index) {
  return stack[index].isTensor() ? stack[index].toTensor() : at::Tensor();
}

at::Tensor float_at(const Stack& stack, size_t index) {
  const at::Tensor tensor = tensor_at(stack, index);
  return tensor.defined() ? tensor.to(at::kFloat) : tensor;
}

std::optional<at::Tensor> optional_float_at(const Stack& stack, size_t index) {
  const at::Tensor tensor = float_at(stack, index);
  return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
}

void set_results(Stack& stack, std::vector<c10::IValue> results) {
  stack.clear();
  for (c10::IValue& result : results) stack.push_back(std::move(result));
}

}  // namespace simulator
