// Descriptors of cuDNN's older interface that several of its parts read.
#pragma once

#include <cstddef>
#include <vector>

namespace simulator {

// A tensor or a filter.
struct TensorDescriptor {
  int type = 0;    // cudnnDataType_t
  int format = 0;  // cudnnTensorFormat_t, of filters
  std::vector<int> sizes;
  std::vector<int> strides;

  size_t elements() const {
    size_t count = 1;
    for (const int size : sizes) count *= static_cast<size_t>(size);
    return sizes.empty() ? 0 : count;
  }
};

struct DropoutDescriptor {
  float probability = 0;
  void* states = nullptr;
  unsigned long long seed = 0;
};

// Bytes of an element of a cudnnDataType_t.
inline size_t element_bytes(int type) {
  switch (type) {
    case 1: case 10: return 8;                   // double, 64-bit integers
    case 2: case 9: return 2;                    // half, bfloat16
    case 3: case 6: case 11: case 12: case 13: return 1;  // 8-bit integers, booleans, 8-bit floats
    case 8: return 32;                           // 32 integers of 8 bits
    default: return 4;                           // float, 32-bit integers, 4 integers of 8 bits
  }
}

}  // namespace simulator
