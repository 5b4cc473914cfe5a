#include "libraries/nccl_reduction.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace simulator::nccl {

namespace {

// Types of 16 bits are summed in float and rounded once.
struct Half {
  uint16_t bits;

  explicit operator float() const {
    const int exponent = bits >> 10 & 31;
    const float fraction = static_cast<float>(bits & 1023);
    float value = 0;
    if (exponent == 31) {
      value = fraction == 0 ? INFINITY : NAN;
    } else if (exponent == 0) {
      value = std::ldexp(fraction, -24);
    } else {
      value = std::ldexp(fraction + 1024, exponent - 25);
    }
    return bits & 0x8000 ? -value : value;
  }

  static Half from(float value) {
    const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
    const float size = std::fabs(value);
    if (std::isnan(value)) return {static_cast<uint16_t>(sign | 0x7e00)};
    if (size >= 65520.0f) return {static_cast<uint16_t>(sign | 0x7c00)};  // rounds beyond the largest
    if (size < 0x1p-14f) return {static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(std::ldexp(size, 24))))};
    int exponent = 0;
    const float fraction = std::frexp(size, &exponent);  // from 0.5 to 1
    // A fraction that rounds up to the next power of two carries over into the exponent.
    const auto rounded = static_cast<uint16_t>(std::nearbyint(std::ldexp(fraction, 11)));
    return {static_cast<uint16_t>(sign | static_cast<uint16_t>(((exponent + 13) << 10) + rounded))};
  }
};

struct Brain {
  uint16_t bits;

  explicit operator float() const {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value = 0;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  }

  static Brain from(float value) {
    if (std::isnan(value)) return {0x7fc0};
    uint32_t wide = 0;
    std::memcpy(&wide, &value, sizeof wide);
    wide += 0x7fff + (wide >> 16 & 1);  // to the nearest, ties to even
    return {static_cast<uint16_t>(wide >> 16)};
  }
};

// What is computed with for elements of a type.
template <typename Element>
using Value = std::conditional_t<std::is_class_v<Element>, float, Element>;

template <typename Element>
Value<Element> read(const Element& element) {
  return static_cast<Value<Element>>(element);
}

template <typename Element>
Element write(Value<Element> value) {
  if constexpr (std::is_class_v<Element>) return Element::from(value);
  else return value;
}

// Integers wrap around, as on a GPU.
template <typename Number, typename Apply>
Number wrapping(Number first, Number second, Apply apply) {
  if constexpr (std::is_integral_v<Number>) return static_cast<Number>(apply(static_cast<uint64_t>(first),
      static_cast<uint64_t>(second)));
  else return apply(first, second);
}

template <typename Number>
Number combine(int operation, Number first, Number second) {
  switch (operation) {
    case PRODUCT: return wrapping(first, second, [](auto a, auto b) { return a * b; });
    case MAXIMUM: return second > first ? second : first;
    case MINIMUM: return second < first ? second : first;
    default: return wrapping(first, second, [](auto a, auto b) { return a + b; });
  }
}

template <typename Element>
void reduce_elements(const std::vector<const char*>& inputs, size_t count, const Reduction& reduction, char* output) {
  const auto* scale_place = static_cast<const Element*>(reduction.device_scale);
  const Value<Element> scale = scale_place != nullptr ? read(*scale_place) : static_cast<Value<Element>>(reduction.scale);
  const auto ranks = static_cast<Value<Element>>(inputs.size());
  const auto input = [&](size_t rank, size_t index) {
    const Value<Element> value = read(reinterpret_cast<const Element*>(inputs[rank])[index]);
    return reduction.is_scaled ? wrapping(value, scale, [](auto a, auto b) { return a * b; }) : value;
  };
  auto* results = reinterpret_cast<Element*>(output);
  for (size_t index = 0; index < count; ++index) {
    Value<Element> value = input(0, index);
    for (size_t rank = 1; rank < inputs.size(); ++rank) value = combine(reduction.operation, value, input(rank, index));
    if (reduction.operation == AVERAGE) value = static_cast<Value<Element>>(value / ranks);
    results[index] = write<Element>(value);
  }
}

}  // namespace

bool can_reduce(int type) { return type >= 0 && type < FLOAT8_E4M3; }

double read_number(const void* place, int type) {
  switch (type) {
    case INT8: return *static_cast<const int8_t*>(place);
    case UINT8: return *static_cast<const uint8_t*>(place);
    case INT32: return *static_cast<const int32_t*>(place);
    case UINT32: return *static_cast<const uint32_t*>(place);
    case INT64: return static_cast<double>(*static_cast<const int64_t*>(place));
    case UINT64: return static_cast<double>(*static_cast<const uint64_t*>(place));
    case FLOAT16: return static_cast<float>(*static_cast<const Half*>(place));
    case FLOAT64: return *static_cast<const double*>(place);
    case BFLOAT16: return static_cast<float>(*static_cast<const Brain*>(place));
    default: return *static_cast<const float*>(place);
  }
}

void reduce(const std::vector<const char*>& inputs, size_t count, int type, const Reduction& reduction, char* output) {
  switch (type) {
    case INT8: return reduce_elements<int8_t>(inputs, count, reduction, output);
    case UINT8: return reduce_elements<uint8_t>(inputs, count, reduction, output);
    case INT32: return reduce_elements<int32_t>(inputs, count, reduction, output);
    case UINT32: return reduce_elements<uint32_t>(inputs, count, reduction, output);
    case INT64: return reduce_elements<int64_t>(inputs, count, reduction, output);
    case UINT64: return reduce_elements<uint64_t>(inputs, count, reduction, output);
    case FLOAT16: return reduce_elements<Half>(inputs, count, reduction, output);
    case FLOAT64: return reduce_elements<double>(inputs, count, reduction, output);
    case BFLOAT16: return reduce_elements<Brain>(inputs, count, reduction, output);
    default: return reduce_elements<float>(inputs, count, reduction, output);
  }
}

}  // namespace simulator::nccl
