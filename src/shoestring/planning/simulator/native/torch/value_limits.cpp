#include "torch/value_limits.h"

#include <limits>

#include "configuration.h"

namespace simulator {
namespace {

// Where no values are asked for, single numbers are computed nevertheless: flags and counters that a program reads stay
// consistent with each other.
constexpr size_t bytes_of_numbers = 64;

// Masks, labels, positions, and the bytes of Python objects that processes exchange decide what a program does and how large
// what follows is, and are few beside weights and activations: larger ones are computed.
size_t factor(at::ScalarType type) {
  switch (type) {
    case at::kBool:
      return 256;
    case at::kByte:
    case at::kInt:
    case at::kLong:
      return 64;
    default:
      return 1;
  }
}

}  // namespace

size_t largest_computed_bytes(const at::Tensor& tensor) {
  switch (configuration().values) {
    case Values::all:
      return std::numeric_limits<size_t>::max();
    case Values::automatic:
      return factor(tensor.scalar_type()) * configuration().value_bytes;
    default:
      return bytes_of_numbers;
  }
}

std::string why_too_large() {
  if (configuration().values == Values::none) return "no values are computed";
  const std::string bytes = std::to_string(configuration().value_bytes);
  return "a tensor is larger than " + bytes + " bytes";
}

}  // namespace simulator
