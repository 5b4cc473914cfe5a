#include "copies.h"

#include <algorithm>
#include <cstring>

#include "arena.h"
#include "configuration.h"
#include "interface.h"

namespace simulator {
namespace {

constexpr size_t page = 4096;
constexpr size_t worth_dropping = 16 * page;
// Without values, what is copied to a device is read back at most by a script's own checks of small tensors.
constexpr size_t largest_without_values = size_t{1} << 20;

// Zeros; whole pages of device memory are given back instead of written.
void zero_memory(void* to, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(to);
  const uintptr_t first_page = round_up(begin, page);
  const uintptr_t end_of_pages = (begin + bytes) / page * page;
  if (bytes < worth_dropping || !simulator_is_device(to)) {
    std::memset(to, 0, bytes);
    return;
  }
  std::memset(to, 0, first_page - begin);
  Arena::get().drop_pages(reinterpret_cast<void*>(first_page), end_of_pages - first_page);
  std::memset(reinterpret_cast<void*>(end_of_pages), 0, begin + bytes - end_of_pages);
}

bool is_left_out(const void* to, size_t bytes) { return simulator_is_device(to) && !simulator_copies(bytes); }

}  // namespace

void copy_memory(void* to, const void* from, size_t bytes) {
  if (bytes == 0 || to == from) return;
  if (is_left_out(to, bytes))
    zero_memory(to, bytes);
  else
    std::memmove(to, from, bytes);
}

void copy_rows(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t rows) {
  const bool left_out = is_left_out(to, width * rows);
  for (size_t row = 0; row < rows; ++row) {
    char* to_row = static_cast<char*>(to) + row * to_pitch;
    if (left_out)
      zero_memory(to_row, width);
    else
      std::memmove(to_row, static_cast<const char*>(from) + row * from_pitch, width);
  }
}

void fill_memory(void* to, const void* element, size_t element_bytes, size_t count) {
  const size_t bytes = element_bytes * count;
  if (bytes == 0) return;
  const char* first = static_cast<const char*>(element);
  const bool is_zero = std::all_of(first, first + element_bytes, [](char byte) { return byte == 0; });
  if (is_zero || is_left_out(to, bytes)) return zero_memory(to, bytes);
  if (element_bytes == 1) {
    std::memset(to, *first, bytes);
    return;
  }
  // What is written doubles with each copy, so a fill is as fast as a copy.
  char* target = static_cast<char*>(to);
  std::memcpy(target, element, element_bytes);
  for (size_t filled = element_bytes; filled < bytes;) {
    const size_t more = std::min(filled, bytes - filled);
    std::memcpy(target + filled, target, more);
    filled += more;
  }
}

}  // namespace simulator

EXPORT bool simulator_is_device(const void* address) { return simulator::Arena::get().contains(address); }

EXPORT bool simulator_copies(size_t bytes) {
  const simulator::Configuration& configuration = simulator::configuration();
  switch (configuration.values) {
    case simulator::Values::all:
      return true;
    case simulator::Values::automatic:
      return bytes <= std::max(configuration.value_bytes, size_t(1) << 20);
    case simulator::Values::none:
      break;
  }
  return bytes <= simulator::largest_without_values;
}
