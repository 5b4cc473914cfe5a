// cuBLASLt: descriptors, and a heuristic that offers one algorithm without a workspace. Products are kernels, which do nothing.
// Declarations after cublasLt.h of CUDA 12.8 and 13.0, whose result of the heuristic is the same.
#include <cstddef>
#include <cstdint>

#include "interface.h"
#include "libraries/library.h"

namespace {

constexpr int SUCCESS = 0;

// cublasLtMatmulHeuristicResult_t
struct HeuristicResult {
  uint64_t algorithm[8];
  size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};
static_assert(sizeof(HeuristicResult) == 96, "the layout of cublasLt.h");

// The toolkit 13.0.2, which PyTorch's builds for CUDA 13.0 depend on, has version 13.1 of the library.
constexpr size_t VERSION =
    SIMULATED_CUDA_VERSION == 13000 ? 130100 : SIMULATED_CUDA_VERSION / 1000 * 10000 + SIMULATED_CUDA_VERSION % 1000 / 10 * 100;

}  // namespace

EXPORT size_t cublasLtGetVersion() { return VERSION; }
EXPORT size_t cublasLtGetCudartVersion() { return SIMULATED_CUDA_VERSION; }

EXPORT int cublasLtCreate(void** handle) { return simulator::give(handle); }
EXPORT int cublasLtDestroy(void* handle) { return simulator::take_back(handle); }

EXPORT int cublasLtMatmulDescCreate(void** description, int, int) { return simulator::give(description); }
EXPORT int cublasLtMatmulDescDestroy(void* description) { return simulator::take_back(description); }
EXPORT int cublasLtMatmulDescSetAttribute(void*, int, const void*, size_t) { return SUCCESS; }

EXPORT int cublasLtMatrixLayoutCreate(void** layout, int, uint64_t, uint64_t, int64_t) {
  return simulator::give(layout);
}
EXPORT int cublasLtMatrixLayoutDestroy(void* layout) { return simulator::take_back(layout); }
EXPORT int cublasLtMatrixLayoutSetAttribute(void*, int, const void*, size_t) { return SUCCESS; }

EXPORT int cublasLtMatmulPreferenceCreate(void** preference) { return simulator::give(preference); }
EXPORT int cublasLtMatmulPreferenceDestroy(void* preference) { return simulator::take_back(preference); }
EXPORT int cublasLtMatmulPreferenceSetAttribute(void*, int, const void*, size_t) { return SUCCESS; }

EXPORT int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int requested, HeuristicResult* results,
                                          int* returned) {
  *returned = requested > 0 ? 1 : 0;
  if (requested > 0) results[0] = HeuristicResult{};
  return SUCCESS;
}

EXPORT int cublasLtMatmul(void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*, void*, void*,
                          void*, const void*, void*, size_t, void*) {
  return SUCCESS;
}
