// How large a tensor may be so that its values are computed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>

namespace simulator {

size_t largest_computed_bytes(const at::Tensor& tensor);

// Why the results of an operator with a larger tensor are assumed.
std::string why_too_large();

}  // namespace simulator
