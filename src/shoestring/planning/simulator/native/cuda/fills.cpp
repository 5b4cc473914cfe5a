#include "fills.h"

#include <array>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <utility>

#include "copies.h"

namespace simulator {
namespace {

constexpr size_t largest_element = 16;

// Bytes of the element type that a mangled name begins with; 0 if it is not known.
size_t element_bytes(std::string_view type) {
  constexpr std::pair<std::string_view, size_t> named[] = {
      {"N3c104HalfE", 2}, {"N3c108BFloat16E", 2}, {"N3c107complexIfEE", 8}, {"N3c107complexIdEE", 16}};
  for (const auto& [name, bytes] : named)
    if (type.substr(0, name.size()) == name) return bytes;
  switch (type.empty() ? '\0' : type.front()) {
    case 'a':  // signed char, bool, char, unsigned char
    case 'b':
    case 'c':
    case 'h':
      return 1;
    case 's':  // short, unsigned short
    case 't':
      return 2;
    case 'f':  // float, int, unsigned
    case 'i':
    case 'j':
      return 4;
    case 'd':  // double, long, unsigned long
    case 'l':
    case 'm':
      return 8;
    default:
      return 0;
  }
}

}  // namespace

std::function<void()> fill_of(const char* kernel_name, void** arguments) {
  const std::string_view name = kernel_name;
  constexpr std::string_view functor = "11FillFunctorI";
  const size_t at = name.find(functor);
  if (at == std::string_view::npos) return nullptr;
  const bool has_known_arguments = name.find("29vectorized_elementwise_kernelI") != std::string_view::npos ||
                                   name.find("27unrolled_elementwise_kernelI") != std::string_view::npos;
  const size_t bytes = element_bytes(name.substr(at + functor.size()));
  if (!has_known_arguments || bytes == 0) return nullptr;
  // ATen/native/cuda/CUDALoops.cuh: (int count, FillFunctor<T> {T value}, std::array<char*, 1> addresses, ...).
  const int count = *static_cast<int*>(arguments[0]);
  std::array<char, largest_element> value{};
  std::memcpy(value.data(), arguments[1], bytes);
  char* const to = *static_cast<char**>(arguments[2]);
  return [=] { fill_memory(to, value.data(), bytes, static_cast<size_t>(count)); };
}

}  // namespace simulator
