// cuSOLVER: how large its workspaces are, and success in the memory where it reports it. The factorizations are kernels, which do
// nothing here.
//
// The sizes are estimates: the blocked algorithms of LAPACK need a panel of 32 columns or a copy of the matrix, which is what these
// functions answer. The library's own sizes are not documented.
//
// Declarations after cusolverDn.h of CUDA 12.8 and 13.0. The functions of the four types of elements differ in pointers only and
// count
// workspaces in elements, so that one serves all.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "interface.h"
#include "libraries/library.h"

namespace {

constexpr int SUCCESS = 0;
constexpr int64_t PANEL = 32;  // columns that a blocked factorization works on at once

int elements(int64_t count) { return static_cast<int>(std::clamp<int64_t>(count, 1, INT32_MAX)); }

int fill(int* place, int64_t count) {
  *place = elements(count);
  return SUCCESS;
}

// Bytes of an element of a cudaDataType_t (library_types.h).
size_t element_bytes(int type) {
  switch (type) {
    case 0: return 4;  // CUDA_R_32F
    case 4: return 8;  // CUDA_C_32F
    case 5: return 16;  // CUDA_C_64F
    default: return 8;  // CUDA_R_64F
  }
}

int fill_bytes(size_t* device, size_t* host, int64_t count, int type) {
  *device = static_cast<size_t>(std::max<int64_t>(count, 1)) * element_bytes(type);
  *host = 0;
  return SUCCESS;
}

int succeed(int* statuses, int64_t count = 1) {
  if (statuses != nullptr && count > 0) std::memset(statuses, 0, sizeof(int) * static_cast<size_t>(count));
  return SUCCESS;
}

}  // namespace

EXPORT int cusolverDnCreate(void** handle) { return simulator::give(handle); }
EXPORT int cusolverDnDestroy(void* handle) { return simulator::take_back(handle); }
EXPORT int cusolverDnSetStream(void*, void*) { return SUCCESS; }
EXPORT int cusolverDnCreateParams(void** parameters) { return simulator::give(parameters); }
EXPORT int cusolverDnDestroyParams(void* parameters) { return simulator::take_back(parameters); }
EXPORT int cusolverDnCreateGesvdjInfo(void** parameters) { return simulator::give(parameters); }
EXPORT int cusolverDnDestroyGesvdjInfo(void* parameters) { return simulator::take_back(parameters); }
EXPORT int cusolverDnCreateSyevjInfo(void** parameters) { return simulator::give(parameters); }
EXPORT int cusolverDnDestroySyevjInfo(void* parameters) { return simulator::take_back(parameters); }
EXPORT int cusolverDnXgesvdjSetTolerance(void*, double) { return SUCCESS; }
EXPORT int cusolverDnXgesvdjSetMaxSweeps(void*, int) { return SUCCESS; }
EXPORT int cusolverDnXgesvdjSetSortEig(void*, int) { return SUCCESS; }

EXPORT int cusolverGetVersion(int* version) {
  *version = SIMULATED_CUDA_VERSION >= 13000 ? 12000 : 11700;
  return SUCCESS;
}

// ---- Cholesky: potrf, potrs

EXPORT int cusolverDnSpotrf_bufferSize(void*, int, int n, void*, int, int* count) { return fill(count, n * PANEL); }
EXPORT int cusolverDnDpotrf_bufferSize(void*, int, int, void*, int, int*) SAME_AS(cusolverDnSpotrf_bufferSize);
EXPORT int cusolverDnCpotrf_bufferSize(void*, int, int, void*, int, int*) SAME_AS(cusolverDnSpotrf_bufferSize);
EXPORT int cusolverDnZpotrf_bufferSize(void*, int, int, void*, int, int*) SAME_AS(cusolverDnSpotrf_bufferSize);

EXPORT int cusolverDnSpotrf(void*, int, int, void*, int, void*, int, int* status) { return succeed(status); }
EXPORT int cusolverDnDpotrf(void*, int, int, void*, int, void*, int, int*) SAME_AS(cusolverDnSpotrf);
EXPORT int cusolverDnCpotrf(void*, int, int, void*, int, void*, int, int*) SAME_AS(cusolverDnSpotrf);
EXPORT int cusolverDnZpotrf(void*, int, int, void*, int, void*, int, int*) SAME_AS(cusolverDnSpotrf);

EXPORT int cusolverDnSpotrfBatched(void*, int, int, void*, int, int* statuses, int batch) { return succeed(statuses, batch); }
EXPORT int cusolverDnDpotrfBatched(void*, int, int, void*, int, int*, int) SAME_AS(cusolverDnSpotrfBatched);
EXPORT int cusolverDnCpotrfBatched(void*, int, int, void*, int, int*, int) SAME_AS(cusolverDnSpotrfBatched);
EXPORT int cusolverDnZpotrfBatched(void*, int, int, void*, int, int*, int) SAME_AS(cusolverDnSpotrfBatched);

EXPORT int cusolverDnSpotrs(void*, int, int, int, void*, int, void*, int, int* status) { return succeed(status); }
EXPORT int cusolverDnDpotrs(void*, int, int, int, void*, int, void*, int, int*) SAME_AS(cusolverDnSpotrs);
EXPORT int cusolverDnCpotrs(void*, int, int, int, void*, int, void*, int, int*) SAME_AS(cusolverDnSpotrs);
EXPORT int cusolverDnZpotrs(void*, int, int, int, void*, int, void*, int, int*) SAME_AS(cusolverDnSpotrs);

EXPORT int cusolverDnSpotrsBatched(void*, int, int, int, void*, int, void*, int, int* status, int) { return succeed(status); }
EXPORT int cusolverDnDpotrsBatched(void*, int, int, int, void*, int, void*, int, int*, int) SAME_AS(cusolverDnSpotrsBatched);
EXPORT int cusolverDnCpotrsBatched(void*, int, int, int, void*, int, void*, int, int*, int) SAME_AS(cusolverDnSpotrsBatched);
EXPORT int cusolverDnZpotrsBatched(void*, int, int, int, void*, int, void*, int, int*, int) SAME_AS(cusolverDnSpotrsBatched);

EXPORT int cusolverDnXpotrf_bufferSize(void*, void*, int, int64_t n, int type, const void*, int64_t, int, size_t* device,
                                       size_t* host) {
  return fill_bytes(device, host, n * PANEL, type);
}
EXPORT int cusolverDnXpotrf(void*, void*, int, int64_t, int, void*, int64_t, int, void*, size_t, void*, size_t, int* status) {
  return succeed(status);
}
EXPORT int cusolverDnXpotrs(void*, void*, int, int64_t, int64_t, int, const void*, int64_t, int, void*, int64_t, int* status) {
  return succeed(status);
}

// ---- LU: getrf, getrs; symmetric indefinite: sytrf, sytrs

EXPORT int cusolverDnSgetrf_bufferSize(void*, int m, int n, void*, int, int* count) {
  return fill(count, static_cast<int64_t>(m) * n);
}
EXPORT int cusolverDnDgetrf_bufferSize(void*, int, int, void*, int, int*) SAME_AS(cusolverDnSgetrf_bufferSize);
EXPORT int cusolverDnCgetrf_bufferSize(void*, int, int, void*, int, int*) SAME_AS(cusolverDnSgetrf_bufferSize);
EXPORT int cusolverDnZgetrf_bufferSize(void*, int, int, void*, int, int*) SAME_AS(cusolverDnSgetrf_bufferSize);

// The rows stay where they are, so that what reads the pivots finds valid indices.
EXPORT int cusolverDnSgetrf(void*, int m, int n, void*, int, void*, int* pivots, int* status) {
  const int count = std::min(m, n);
  if (pivots != nullptr && simulator_copies(sizeof(int) * static_cast<size_t>(count)))
    for (int row = 0; row < count; ++row) pivots[row] = row + 1;
  return succeed(status);
}
EXPORT int cusolverDnDgetrf(void*, int, int, void*, int, void*, int*, int*) SAME_AS(cusolverDnSgetrf);
EXPORT int cusolverDnCgetrf(void*, int, int, void*, int, void*, int*, int*) SAME_AS(cusolverDnSgetrf);
EXPORT int cusolverDnZgetrf(void*, int, int, void*, int, void*, int*, int*) SAME_AS(cusolverDnSgetrf);

EXPORT int cusolverDnSgetrs(void*, int, int, int, const void*, int, const int*, void*, int, int* status) { return succeed(status); }
EXPORT int cusolverDnDgetrs(void*, int, int, int, const void*, int, const int*, void*, int, int*) SAME_AS(cusolverDnSgetrs);
EXPORT int cusolverDnCgetrs(void*, int, int, int, const void*, int, const int*, void*, int, int*) SAME_AS(cusolverDnSgetrs);
EXPORT int cusolverDnZgetrs(void*, int, int, int, const void*, int, const int*, void*, int, int*) SAME_AS(cusolverDnSgetrs);

EXPORT int cusolverDnSsytrf_bufferSize(void*, int n, void*, int, int* count) { return fill(count, n * PANEL); }
EXPORT int cusolverDnDsytrf_bufferSize(void*, int, void*, int, int*) SAME_AS(cusolverDnSsytrf_bufferSize);
EXPORT int cusolverDnCsytrf_bufferSize(void*, int, void*, int, int*) SAME_AS(cusolverDnSsytrf_bufferSize);
EXPORT int cusolverDnZsytrf_bufferSize(void*, int, void*, int, int*) SAME_AS(cusolverDnSsytrf_bufferSize);

EXPORT int cusolverDnSsytrf(void*, int, int, void*, int, int*, void*, int, int* status) { return succeed(status); }
EXPORT int cusolverDnDsytrf(void*, int, int, void*, int, int*, void*, int, int*) SAME_AS(cusolverDnSsytrf);
EXPORT int cusolverDnCsytrf(void*, int, int, void*, int, int*, void*, int, int*) SAME_AS(cusolverDnSsytrf);
EXPORT int cusolverDnZsytrf(void*, int, int, void*, int, int*, void*, int, int*) SAME_AS(cusolverDnSsytrf);

EXPORT int cusolverDnXsytrs_bufferSize(void*, int, int64_t n, int64_t right, int type, const void*, int64_t, const int64_t*, int,
                                       void*, int64_t, size_t* device, size_t* host) {
  return fill_bytes(device, host, n * right, type);
}
EXPORT int cusolverDnXsytrs(void*, int, int64_t, int64_t, int, const void*, int64_t, const int64_t*, int, void*, int64_t, void*,
                            size_t, void*, size_t, int* status) {
  return succeed(status);
}

// ---- QR: geqrf, orgqr and ungqr, ormqr and unmqr

EXPORT int cusolverDnSgeqrf_bufferSize(void*, int, int n, void*, int, int* count) { return fill(count, n * PANEL); }
EXPORT int cusolverDnDgeqrf_bufferSize(void*, int, int, void*, int, int*) SAME_AS(cusolverDnSgeqrf_bufferSize);
EXPORT int cusolverDnCgeqrf_bufferSize(void*, int, int, void*, int, int*) SAME_AS(cusolverDnSgeqrf_bufferSize);
EXPORT int cusolverDnZgeqrf_bufferSize(void*, int, int, void*, int, int*) SAME_AS(cusolverDnSgeqrf_bufferSize);

EXPORT int cusolverDnSgeqrf(void*, int, int, void*, int, void*, void*, int, int* status) { return succeed(status); }
EXPORT int cusolverDnDgeqrf(void*, int, int, void*, int, void*, void*, int, int*) SAME_AS(cusolverDnSgeqrf);
EXPORT int cusolverDnCgeqrf(void*, int, int, void*, int, void*, void*, int, int*) SAME_AS(cusolverDnSgeqrf);
EXPORT int cusolverDnZgeqrf(void*, int, int, void*, int, void*, void*, int, int*) SAME_AS(cusolverDnSgeqrf);

EXPORT int cusolverDnXgeqrf_bufferSize(void*, void*, int64_t, int64_t n, int type, const void*, int64_t, int, const void*, int,
                                       size_t* device, size_t* host) {
  return fill_bytes(device, host, n * PANEL, type);
}
EXPORT int cusolverDnXgeqrf(void*, void*, int64_t, int64_t, int, void*, int64_t, int, void*, int, void*, size_t, void*, size_t,
                            int* status) {
  return succeed(status);
}

EXPORT int cusolverDnSorgqr_bufferSize(void*, int, int n, int, const void*, int, const void*, int* count) {
  return fill(count, n * PANEL);
}
EXPORT int cusolverDnDorgqr_bufferSize(void*, int, int, int, const void*, int, const void*, int*)
    SAME_AS(cusolverDnSorgqr_bufferSize);
EXPORT int cusolverDnCungqr_bufferSize(void*, int, int, int, const void*, int, const void*, int*)
    SAME_AS(cusolverDnSorgqr_bufferSize);
EXPORT int cusolverDnZungqr_bufferSize(void*, int, int, int, const void*, int, const void*, int*)
    SAME_AS(cusolverDnSorgqr_bufferSize);

EXPORT int cusolverDnSorgqr(void*, int, int, int, void*, int, const void*, void*, int, int* status) { return succeed(status); }
EXPORT int cusolverDnDorgqr(void*, int, int, int, void*, int, const void*, void*, int, int*) SAME_AS(cusolverDnSorgqr);
EXPORT int cusolverDnCungqr(void*, int, int, int, void*, int, const void*, void*, int, int*) SAME_AS(cusolverDnSorgqr);
EXPORT int cusolverDnZungqr(void*, int, int, int, void*, int, const void*, void*, int, int*) SAME_AS(cusolverDnSorgqr);

EXPORT int cusolverDnSormqr_bufferSize(void*, int, int, int m, int n, int, const void*, int, const void*, const void*, int,
                                       int* count) {
  return fill(count, std::max(m, n) * PANEL);
}
EXPORT int cusolverDnDormqr_bufferSize(void*, int, int, int, int, int, const void*, int, const void*, const void*, int, int*)
    SAME_AS(cusolverDnSormqr_bufferSize);
EXPORT int cusolverDnCunmqr_bufferSize(void*, int, int, int, int, int, const void*, int, const void*, const void*, int, int*)
    SAME_AS(cusolverDnSormqr_bufferSize);
EXPORT int cusolverDnZunmqr_bufferSize(void*, int, int, int, int, int, const void*, int, const void*, const void*, int, int*)
    SAME_AS(cusolverDnSormqr_bufferSize);

EXPORT int cusolverDnSormqr(void*, int, int, int, int, int, const void*, int, const void*, void*, int, void*, int, int* status) {
  return succeed(status);
}
EXPORT int cusolverDnDormqr(void*, int, int, int, int, int, const void*, int, const void*, void*, int, void*, int, int*)
    SAME_AS(cusolverDnSormqr);
EXPORT int cusolverDnCunmqr(void*, int, int, int, int, int, const void*, int, const void*, void*, int, void*, int, int*)
    SAME_AS(cusolverDnSormqr);
EXPORT int cusolverDnZunmqr(void*, int, int, int, int, int, const void*, int, const void*, void*, int, void*, int, int*)
    SAME_AS(cusolverDnSormqr);
