// cuFFT: plans with the size of their work area. Transforms are kernels, which do nothing.
//
// The work area follows cuFFT's documentation: memory for the batch once, if all sizes are products of 2, 3, 5 and 7; other sizes
// are
// done by Bluestein's algorithm, which pads them to a power of two of at least twice the size and needs two such arrays.
//
// Declarations after cufft.h and cufftXt.h of CUDA 12.8.
#include <atomic>
#include <cstddef>

#include "interface.h"

namespace {

constexpr int SUCCESS = 0;
std::atomic<int> plans{0};

bool is_smooth(long long size) {
  for (const long long prime : {2, 3, 5, 7})
    while (size > 1 && size % prime == 0) size /= prime;
  return size <= 1;
}

long long padded(long long size) {
  long long power = 1;
  while (power < 2 * size - 1) power *= 2;
  return power;
}

// Bytes of a complex number in the precision of a cudaDataType_t (library_types.h).
size_t complex_bytes(int type) {
  switch (type) {
    case 1: case 5: return 16;           // CUDA_R_64F, CUDA_C_64F
    case 2: case 6: case 14: case 15: return 4;  // half precision and bfloat16
    default: return 8;                   // CUDA_R_32F, CUDA_C_32F
  }
}

size_t work_area(int rank, const long long* sizes, long long batch, int type) {
  size_t elements = static_cast<size_t>(batch);
  bool is_padded = false;
  for (int dimension = 0; dimension < rank; ++dimension) {
    const bool smooth = is_smooth(sizes[dimension]);
    is_padded = is_padded || !smooth;
    elements *= static_cast<size_t>(smooth ? sizes[dimension] : padded(sizes[dimension]));
  }
  return elements * complex_bytes(type) * (is_padded ? 2 : 1);
}

}  // namespace

EXPORT int cufftCreate(int* plan) {
  *plan = ++plans;
  return SUCCESS;
}
EXPORT int cufftDestroy(int) { return SUCCESS; }
EXPORT int cufftSetAutoAllocation(int, int) { return SUCCESS; }
EXPORT int cufftSetStream(int, void*) { return SUCCESS; }
EXPORT int cufftSetWorkArea(int, void*) { return SUCCESS; }

EXPORT int cufftXtMakePlanMany(int, int rank, long long* sizes, long long*, long long, long long, int, long long*, long long,
                               long long, int, long long batch, size_t* bytes, int execution_type) {
  *bytes = work_area(rank, sizes, batch, execution_type);
  return SUCCESS;
}
EXPORT int cufftXtExec(int, void*, void*, int) { return SUCCESS; }

EXPORT int cufftGetVersion(int* version) {
  *version = SIMULATED_CUDA_VERSION >= 13000 ? 12000 : 11303;
  return SUCCESS;
}
