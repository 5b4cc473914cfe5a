// cuBLAS: handles and their settings, and the functions that report to the host. The products and factorizations are kernels, which
// do nothing here: the build gives each of them a stub that succeeds.
// Declarations after cublas_api.h of CUDA 12.8.
#include <cstddef>
#include <cstring>

#include "interface.h"
#include "libraries/library.h"

namespace {

// Settings that a program reads back: it saves a mode, sets its own and restores the first.
struct Handle {
  int math_mode = 0;     // CUBLAS_DEFAULT_MATH
  int pointer_mode = 0;  // CUBLAS_POINTER_MODE_HOST
  int atomics_mode = 0;  // CUBLAS_ATOMICS_NOT_ALLOWED
  int multiprocessors = 0;
  void* stream = nullptr;
};

constexpr int SUCCESS = 0;
constexpr int VERSION = SIMULATED_CUDA_VERSION / 1000 * 10000 + SIMULATED_CUDA_VERSION % 1000 / 10 * 100;

Handle& settings(void* handle) { return *static_cast<Handle*>(handle); }

// A factorization that cannot fail reports so in memory of the device, where programs read it later.
void report_success(int* device_statuses, int count) {
  if (device_statuses == nullptr || count <= 0) return;
  std::memset(device_statuses, 0, sizeof(int) * static_cast<size_t>(count));
}

// Copies a matrix of `columns` columns between two leading dimensions.
void copy_matrix(int rows, int columns, int element, const void* from, int from_leading, void* to, int to_leading) {
  const size_t bytes = static_cast<size_t>(rows) * element;
  if (!simulator_copies(bytes * columns)) return;
  for (int column = 0; column < columns; ++column) {
    std::memcpy(static_cast<char*>(to) + static_cast<size_t>(column) * to_leading * element,
                static_cast<const char*>(from) + static_cast<size_t>(column) * from_leading * element, bytes);
  }
}

}  // namespace

EXPORT int cublasCreate_v2(void** handle) { return simulator::give<Handle>(handle); }
EXPORT int cublasDestroy_v2(void* handle) { return simulator::take_back<Handle>(handle); }

EXPORT int cublasGetVersion_v2(void*, int* version) {
  *version = VERSION;
  return SUCCESS;
}

EXPORT int cublasGetProperty(int part, int* value) {
  const int parts[] = {VERSION / 10000, VERSION / 100 % 100, VERSION % 100};
  if (part < 0 || part > 2) return 7;  // CUBLAS_STATUS_INVALID_VALUE
  *value = parts[part];
  return SUCCESS;
}

EXPORT size_t cublasGetCudartVersion() { return SIMULATED_CUDA_VERSION; }

EXPORT int cublasSetMathMode(void* handle, int mode) {
  settings(handle).math_mode = mode;
  return SUCCESS;
}

EXPORT int cublasGetMathMode(void* handle, int* mode) {
  *mode = settings(handle).math_mode;
  return SUCCESS;
}

EXPORT int cublasSetPointerMode_v2(void* handle, int mode) {
  settings(handle).pointer_mode = mode;
  return SUCCESS;
}

EXPORT int cublasGetPointerMode_v2(void* handle, int* mode) {
  *mode = settings(handle).pointer_mode;
  return SUCCESS;
}

EXPORT int cublasSetAtomicsMode(void* handle, int mode) {
  settings(handle).atomics_mode = mode;
  return SUCCESS;
}

EXPORT int cublasGetAtomicsMode(void* handle, int* mode) {
  *mode = settings(handle).atomics_mode;
  return SUCCESS;
}

EXPORT int cublasSetSmCountTarget(void* handle, int multiprocessors) {
  settings(handle).multiprocessors = multiprocessors;
  return SUCCESS;
}

EXPORT int cublasGetSmCountTarget(void* handle, int* multiprocessors) {
  *multiprocessors = settings(handle).multiprocessors;
  return SUCCESS;
}

EXPORT int cublasSetStream_v2(void* handle, void* stream) {
  settings(handle).stream = stream;
  return SUCCESS;
}

EXPORT int cublasGetStream_v2(void* handle, void** stream) {
  *stream = settings(handle).stream;
  return SUCCESS;
}

// The workspace is the program's own memory; nothing is computed in it.
EXPORT int cublasSetWorkspace_v2(void*, void*, size_t) { return SUCCESS; }

EXPORT const char* cublasGetStatusName(int status) {
  return status == SUCCESS ? "CUBLAS_STATUS_SUCCESS" : "CUBLAS_STATUS_NOT_SUPPORTED";
}
EXPORT const char* cublasGetStatusString(int status) {
  return status == SUCCESS ? "success" : "not supported by the simulated cuBLAS";
}

EXPORT int cublasSetVectorAsync(int count, int element, const void* host, int host_step, void* device, int device_step, void*) {
  copy_matrix(1, count, element, host, host_step, device, device_step);
  return SUCCESS;
}

EXPORT int cublasGetVectorAsync(int count, int element, const void* device, int device_step, void* host, int host_step, void*) {
  copy_matrix(1, count, element, device, device_step, host, host_step);
  return SUCCESS;
}

EXPORT int cublasSetMatrixAsync(int rows, int columns, int element, const void* host, int host_leading, void* device,
                                int device_leading, void*) {
  copy_matrix(rows, columns, element, host, host_leading, device, device_leading);
  return SUCCESS;
}

EXPORT int cublasGetMatrixAsync(int rows, int columns, int element, const void* device, int device_leading, void* host,
                                int host_leading, void*) {
  copy_matrix(rows, columns, element, device, device_leading, host, host_leading);
  return SUCCESS;
}

// Batched factorizations. The four types of elements differ in pointers only, so that one function serves all.

// LU: the rows stay where they are, so that what reads the pivots finds valid indices.
EXPORT int cublasSgetrfBatched(void*, int n, void*, int, int* pivots, int* statuses, int batch) {
  if (pivots != nullptr && simulator_copies(sizeof(int) * static_cast<size_t>(n) * batch)) {
    for (int matrix = 0; matrix < batch; ++matrix)
      for (int row = 0; row < n; ++row) pivots[static_cast<size_t>(matrix) * n + row] = row + 1;
  }
  report_success(statuses, batch);
  return SUCCESS;
}
EXPORT int cublasDgetrfBatched(void*, int, void*, int, int*, int*, int) SAME_AS(cublasSgetrfBatched);
EXPORT int cublasCgetrfBatched(void*, int, void*, int, int*, int*, int) SAME_AS(cublasSgetrfBatched);
EXPORT int cublasZgetrfBatched(void*, int, void*, int, int*, int*, int) SAME_AS(cublasSgetrfBatched);

EXPORT int cublasSgetrsBatched(void*, int, int, int, void*, int, const int*, void*, int, int* host_status, int) {
  report_success(host_status, 1);
  return SUCCESS;
}
EXPORT int cublasDgetrsBatched(void*, int, int, int, void*, int, const int*, void*, int, int*, int) SAME_AS(cublasSgetrsBatched);
EXPORT int cublasCgetrsBatched(void*, int, int, int, void*, int, const int*, void*, int, int*, int) SAME_AS(cublasSgetrsBatched);
EXPORT int cublasZgetrsBatched(void*, int, int, int, void*, int, const int*, void*, int, int*, int) SAME_AS(cublasSgetrsBatched);

EXPORT int cublasSgeqrfBatched(void*, int, int, void*, int, void*, int* host_status, int) {
  report_success(host_status, 1);
  return SUCCESS;
}
EXPORT int cublasDgeqrfBatched(void*, int, int, void*, int, void*, int*, int) SAME_AS(cublasSgeqrfBatched);
EXPORT int cublasCgeqrfBatched(void*, int, int, void*, int, void*, int*, int) SAME_AS(cublasSgeqrfBatched);
EXPORT int cublasZgeqrfBatched(void*, int, int, void*, int, void*, int*, int) SAME_AS(cublasSgeqrfBatched);

EXPORT int cublasSgelsBatched(void*, int, int, int, int, void*, int, void*, int, int* host_status, int* statuses, int batch) {
  report_success(host_status, 1);
  report_success(statuses, batch);
  return SUCCESS;
}
EXPORT int cublasDgelsBatched(void*, int, int, int, int, void*, int, void*, int, int*, int*, int) SAME_AS(cublasSgelsBatched);
EXPORT int cublasCgelsBatched(void*, int, int, int, int, void*, int, void*, int, int*, int*, int) SAME_AS(cublasSgelsBatched);
EXPORT int cublasZgelsBatched(void*, int, int, int, int, void*, int, void*, int, int*, int*, int) SAME_AS(cublasSgelsBatched);
