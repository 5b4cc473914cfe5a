// Copies and fills of simulated memory. Everything is done at once, in the order of the calls.
#pragma once

#include <cstddef>
#include <cstdint>

namespace simulator {

// Copies as cudaMemcpy does. A copy to or on a device that is larger than what is made (see simulator_copies) leaves zeros.
void copy_memory(void* to, const void* from, size_t bytes);

// A copy of `rows` rows, each `width` bytes wide.
void copy_rows(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t rows);

// Writes `count` elements of `element_bytes` bytes each.
void fill_memory(void* to, const void* element, size_t element_bytes, size_t count);

}  // namespace simulator
