// cuSOLVER's eigenvalues and singular values: workspaces (estimates, see cusolver.cpp) and success.
// Declarations after cusolverDn.h of CUDA 12.8 and 13.0.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "interface.h"
#include "libraries/library.h"

namespace {

constexpr int SUCCESS = 0;

int fill(int* place, int64_t count) {
  *place = static_cast<int>(std::clamp<int64_t>(count, 1, INT32_MAX));
  return SUCCESS;
}

int fill_bytes(size_t* device, size_t* host, int64_t count) {
  *device = static_cast<size_t>(std::max<int64_t>(count, 1)) * 16;  // the widest element, a complex number in double precision
  *host = 0;
  return SUCCESS;
}

int succeed(int* statuses, int64_t count = 1) {
  if (statuses != nullptr && count > 0) std::memset(statuses, 0, sizeof(int) * static_cast<size_t>(count));
  return SUCCESS;
}

// LAPACK's divide and conquer needs 1 + 6n + 2n^2 elements for the eigenvectors (dsyevd).
int64_t eigenvector_elements(int64_t n) { return 1 + 6 * n + 2 * n * n; }

// One-sided Jacobi works on copies of the matrix and of both sets of vectors.
int64_t jacobi_elements(int64_t m, int64_t n) { return 2 * m * n + std::min(m, n) * std::min(m, n); }

}  // namespace

// ---- symmetric eigenvalues: syevd and heevd, syevj and heevj

EXPORT int cusolverDnSsyevd_bufferSize(void*, int, int, int n, const void*, int, const void*, int* count) {
  return fill(count, eigenvector_elements(n));
}
EXPORT int cusolverDnDsyevd_bufferSize(void*, int, int, int, const void*, int, const void*, int*)
    SAME_AS(cusolverDnSsyevd_bufferSize);
EXPORT int cusolverDnCheevd_bufferSize(void*, int, int, int, const void*, int, const void*, int*)
    SAME_AS(cusolverDnSsyevd_bufferSize);
EXPORT int cusolverDnZheevd_bufferSize(void*, int, int, int, const void*, int, const void*, int*)
    SAME_AS(cusolverDnSsyevd_bufferSize);

EXPORT int cusolverDnSsyevd(void*, int, int, int, void*, int, void*, void*, int, int* status) { return succeed(status); }
EXPORT int cusolverDnDsyevd(void*, int, int, int, void*, int, void*, void*, int, int*) SAME_AS(cusolverDnSsyevd);
EXPORT int cusolverDnCheevd(void*, int, int, int, void*, int, void*, void*, int, int*) SAME_AS(cusolverDnSsyevd);
EXPORT int cusolverDnZheevd(void*, int, int, int, void*, int, void*, void*, int, int*) SAME_AS(cusolverDnSsyevd);

EXPORT int cusolverDnSsyevj_bufferSize(void*, int, int, int n, const void*, int, const void*, int* count, void*) {
  return fill(count, jacobi_elements(n, n));
}
EXPORT int cusolverDnDsyevj_bufferSize(void*, int, int, int, const void*, int, const void*, int*, void*)
    SAME_AS(cusolverDnSsyevj_bufferSize);
EXPORT int cusolverDnCheevj_bufferSize(void*, int, int, int, const void*, int, const void*, int*, void*)
    SAME_AS(cusolverDnSsyevj_bufferSize);
EXPORT int cusolverDnZheevj_bufferSize(void*, int, int, int, const void*, int, const void*, int*, void*)
    SAME_AS(cusolverDnSsyevj_bufferSize);

EXPORT int cusolverDnSsyevj(void*, int, int, int, void*, int, void*, void*, int, int* status, void*) { return succeed(status); }
EXPORT int cusolverDnDsyevj(void*, int, int, int, void*, int, void*, void*, int, int*, void*) SAME_AS(cusolverDnSsyevj);
EXPORT int cusolverDnCheevj(void*, int, int, int, void*, int, void*, void*, int, int*, void*) SAME_AS(cusolverDnSsyevj);
EXPORT int cusolverDnZheevj(void*, int, int, int, void*, int, void*, void*, int, int*, void*) SAME_AS(cusolverDnSsyevj);

EXPORT int cusolverDnSsyevjBatched_bufferSize(void*, int, int, int n, const void*, int, const void*, int* count, void*, int batch) {
  return fill(count, jacobi_elements(n, n) * batch);
}
EXPORT int cusolverDnDsyevjBatched_bufferSize(void*, int, int, int, const void*, int, const void*, int*, void*, int)
    SAME_AS(cusolverDnSsyevjBatched_bufferSize);
EXPORT int cusolverDnCheevjBatched_bufferSize(void*, int, int, int, const void*, int, const void*, int*, void*, int)
    SAME_AS(cusolverDnSsyevjBatched_bufferSize);
EXPORT int cusolverDnZheevjBatched_bufferSize(void*, int, int, int, const void*, int, const void*, int*, void*, int)
    SAME_AS(cusolverDnSsyevjBatched_bufferSize);

EXPORT int cusolverDnSsyevjBatched(void*, int, int, int, void*, int, void*, void*, int, int* statuses, void*, int batch) {
  return succeed(statuses, batch);
}
EXPORT int cusolverDnDsyevjBatched(void*, int, int, int, void*, int, void*, void*, int, int*, void*, int)
    SAME_AS(cusolverDnSsyevjBatched);
EXPORT int cusolverDnCheevjBatched(void*, int, int, int, void*, int, void*, void*, int, int*, void*, int)
    SAME_AS(cusolverDnSsyevjBatched);
EXPORT int cusolverDnZheevjBatched(void*, int, int, int, void*, int, void*, void*, int, int*, void*, int)
    SAME_AS(cusolverDnSsyevjBatched);

EXPORT int cusolverDnXsyevd_bufferSize(void*, void*, int, int, int64_t n, int, const void*, int64_t, int, const void*, int,
                                       size_t* device, size_t* host) {
  return fill_bytes(device, host, eigenvector_elements(n));
}
EXPORT int cusolverDnXsyevd(void*, void*, int, int, int64_t, int, void*, int64_t, int, void*, int, void*, size_t, void*, size_t,
                            int* status) {
  return succeed(status);
}

EXPORT int cusolverDnXsyevBatched_bufferSize(void*, void*, int, int, int64_t n, int, const void*, int64_t, int, const void*, int,
                                             size_t* device, size_t* host, int64_t batch) {
  return fill_bytes(device, host, eigenvector_elements(n) * batch);
}
EXPORT int cusolverDnXsyevBatched(void*, void*, int, int, int64_t, int, void*, int64_t, int, void*, int, void*, size_t, void*,
                                  size_t,
                                  int* statuses, int64_t batch) {
  return succeed(statuses, batch);
}

// ---- general eigenvalues: geev

EXPORT int cusolverDnXgeev_bufferSize(void*, void*, int, int, int64_t n, int, const void*, int64_t, int, const void*, int,
                                      const void*,
                                      int64_t, int, const void*, int64_t, int, size_t* device, size_t* host) {
  return fill_bytes(device, host, eigenvector_elements(n));
}
EXPORT int cusolverDnXgeev(void*, void*, int, int, int64_t, int, void*, int64_t, int, void*, int, void*, int64_t, int, void*,
                           int64_t,
                           int, void*, size_t, void*, size_t, int* status) {
  return succeed(status);
}

// ---- singular values: gesvd, gesvdj, gesvda

EXPORT int cusolverDnSgesvd_bufferSize(void*, int m, int n, int* count) { return fill(count, jacobi_elements(m, n)); }
EXPORT int cusolverDnDgesvd_bufferSize(void*, int, int, int*) SAME_AS(cusolverDnSgesvd_bufferSize);
EXPORT int cusolverDnCgesvd_bufferSize(void*, int, int, int*) SAME_AS(cusolverDnSgesvd_bufferSize);
EXPORT int cusolverDnZgesvd_bufferSize(void*, int, int, int*) SAME_AS(cusolverDnSgesvd_bufferSize);

EXPORT int cusolverDnSgesvd(void*, signed char, signed char, int, int, void*, int, void*, void*, int, void*, int, void*, int, void*,
                            int* status) {
  return succeed(status);
}
EXPORT int cusolverDnDgesvd(void*, signed char, signed char, int, int, void*, int, void*, void*, int, void*, int, void*, int, void*,
                            int*) SAME_AS(cusolverDnSgesvd);
EXPORT int cusolverDnCgesvd(void*, signed char, signed char, int, int, void*, int, void*, void*, int, void*, int, void*, int, void*,
                            int*) SAME_AS(cusolverDnSgesvd);
EXPORT int cusolverDnZgesvd(void*, signed char, signed char, int, int, void*, int, void*, void*, int, void*, int, void*, int, void*,
                            int*) SAME_AS(cusolverDnSgesvd);

EXPORT int cusolverDnSgesvdj_bufferSize(void*, int, int, int m, int n, const void*, int, const void*, const void*, int, const void*,
                                        int, int* count, void*) {
  return fill(count, jacobi_elements(m, n));
}
EXPORT int cusolverDnDgesvdj_bufferSize(void*, int, int, int, int, const void*, int, const void*, const void*, int, const void*,
                                        int,
                                        int*, void*) SAME_AS(cusolverDnSgesvdj_bufferSize);
EXPORT int cusolverDnCgesvdj_bufferSize(void*, int, int, int, int, const void*, int, const void*, const void*, int, const void*,
                                        int,
                                        int*, void*) SAME_AS(cusolverDnSgesvdj_bufferSize);
EXPORT int cusolverDnZgesvdj_bufferSize(void*, int, int, int, int, const void*, int, const void*, const void*, int, const void*,
                                        int,
                                        int*, void*) SAME_AS(cusolverDnSgesvdj_bufferSize);

EXPORT int cusolverDnSgesvdj(void*, int, int, int, int, void*, int, void*, void*, int, void*, int, void*, int, int* status, void*) {
  return succeed(status);
}
EXPORT int cusolverDnDgesvdj(void*, int, int, int, int, void*, int, void*, void*, int, void*, int, void*, int, int*, void*)
    SAME_AS(cusolverDnSgesvdj);
EXPORT int cusolverDnCgesvdj(void*, int, int, int, int, void*, int, void*, void*, int, void*, int, void*, int, int*, void*)
    SAME_AS(cusolverDnSgesvdj);
EXPORT int cusolverDnZgesvdj(void*, int, int, int, int, void*, int, void*, void*, int, void*, int, void*, int, int*, void*)
    SAME_AS(cusolverDnSgesvdj);

EXPORT int cusolverDnSgesvdjBatched_bufferSize(void*, int, int m, int n, const void*, int, const void*, const void*, int,
                                               const void*,
                                               int, int* count, void*, int batch) {
  return fill(count, jacobi_elements(m, n) * batch);
}
EXPORT int cusolverDnDgesvdjBatched_bufferSize(void*, int, int, int, const void*, int, const void*, const void*, int, const void*,
                                               int,
                                               int*, void*, int) SAME_AS(cusolverDnSgesvdjBatched_bufferSize);
EXPORT int cusolverDnCgesvdjBatched_bufferSize(void*, int, int, int, const void*, int, const void*, const void*, int, const void*,
                                               int,
                                               int*, void*, int) SAME_AS(cusolverDnSgesvdjBatched_bufferSize);
EXPORT int cusolverDnZgesvdjBatched_bufferSize(void*, int, int, int, const void*, int, const void*, const void*, int, const void*,
                                               int,
                                               int*, void*, int) SAME_AS(cusolverDnSgesvdjBatched_bufferSize);

EXPORT int cusolverDnSgesvdjBatched(void*, int, int, int, void*, int, void*, void*, int, void*, int, void*, int, int* statuses,
                                    void*,
                                    int batch) {
  return succeed(statuses, batch);
}
EXPORT int cusolverDnDgesvdjBatched(void*, int, int, int, void*, int, void*, void*, int, void*, int, void*, int, int*, void*, int)
    SAME_AS(cusolverDnSgesvdjBatched);
EXPORT int cusolverDnCgesvdjBatched(void*, int, int, int, void*, int, void*, void*, int, void*, int, void*, int, int*, void*, int)
    SAME_AS(cusolverDnSgesvdjBatched);
EXPORT int cusolverDnZgesvdjBatched(void*, int, int, int, void*, int, void*, void*, int, void*, int, void*, int, int*, void*, int)
    SAME_AS(cusolverDnSgesvdjBatched);

EXPORT int cusolverDnSgesvdaStridedBatched_bufferSize(void*, int, int, int m, int n, const void*, int, long long, const void*,
                                                      long long, const void*, int, long long, const void*, int, long long,
                                                      int* count,
                                                      int batch) {
  return fill(count, jacobi_elements(m, n) * batch);
}
EXPORT int cusolverDnDgesvdaStridedBatched_bufferSize(void*, int, int, int, int, const void*, int, long long, const void*,
                                                      long long,
                                                      const void*, int, long long, const void*, int, long long, int*, int)
    SAME_AS(cusolverDnSgesvdaStridedBatched_bufferSize);
EXPORT int cusolverDnCgesvdaStridedBatched_bufferSize(void*, int, int, int, int, const void*, int, long long, const void*,
                                                      long long,
                                                      const void*, int, long long, const void*, int, long long, int*, int)
    SAME_AS(cusolverDnSgesvdaStridedBatched_bufferSize);
EXPORT int cusolverDnZgesvdaStridedBatched_bufferSize(void*, int, int, int, int, const void*, int, long long, const void*,
                                                      long long,
                                                      const void*, int, long long, const void*, int, long long, int*, int)
    SAME_AS(cusolverDnSgesvdaStridedBatched_bufferSize);

EXPORT int cusolverDnSgesvdaStridedBatched(void*, int, int, int, int, const void*, int, long long, void*, long long, void*, int,
                                           long long, void*, int, long long, void*, int, int* statuses, double* residuals,
                                           int batch) {
  if (residuals != nullptr) std::fill_n(residuals, batch, 0.0);  // in memory of the host
  return succeed(statuses, batch);
}
EXPORT int cusolverDnDgesvdaStridedBatched(void*, int, int, int, int, const void*, int, long long, void*, long long, void*, int,
                                           long long, void*, int, long long, void*, int, int*, double*, int)
    SAME_AS(cusolverDnSgesvdaStridedBatched);
EXPORT int cusolverDnCgesvdaStridedBatched(void*, int, int, int, int, const void*, int, long long, void*, long long, void*, int,
                                           long long, void*, int, long long, void*, int, int*, double*, int)
    SAME_AS(cusolverDnSgesvdaStridedBatched);
EXPORT int cusolverDnZgesvdaStridedBatched(void*, int, int, int, int, const void*, int, long long, void*, long long, void*, int,
                                           long long, void*, int, long long, void*, int, int*, double*, int)
    SAME_AS(cusolverDnSgesvdaStridedBatched);
