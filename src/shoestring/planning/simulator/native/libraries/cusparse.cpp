// cuSPARSE: descriptors with their sizes, workspaces, and conversions of indices. Products and solutions are kernels, which do
// nothing.
//
// The workspaces are estimates: the library's own sizes are not documented. How many elements a sparse product has depends on
// values;
// the answer here is what independent positions would give.
//
// Declarations after cusparse.h of CUDA 12.8.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "interface.h"
#include "libraries/library.h"

namespace {

constexpr int SUCCESS = 0;

struct SparseMatrix {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stored = 0;  // elements
};

SparseMatrix& matrix(void* description) { return *static_cast<SparseMatrix*>(description); }
const SparseMatrix& matrix(const void* description) { return *static_cast<const SparseMatrix*>(description); }

int give_matrix(void** place, int64_t rows, int64_t columns, int64_t stored) {
  *place = new SparseMatrix{rows, columns, stored};
  return SUCCESS;
}

// The elements of a product: each element of the first meets a row of the second.
int64_t product_elements(const SparseMatrix& first, const SparseMatrix& second) {
  const double met = static_cast<double>(first.stored) * second.stored / std::max<int64_t>(second.rows, 1);
  const double dense = static_cast<double>(first.rows) * second.columns;
  return static_cast<int64_t>(std::min(met, dense));
}

// Memory for one index and one value in double precision for each element.
size_t workspace(int64_t elements) { return 16 * static_cast<size_t>(std::max<int64_t>(elements, 1)); }

}  // namespace

EXPORT int cusparseCreate(void** handle) { return simulator::give(handle); }
EXPORT int cusparseDestroy(void* handle) { return simulator::take_back(handle); }
EXPORT int cusparseSetStream(void*, void*) { return SUCCESS; }
EXPORT int cusparseSetPointerMode(void*, int) { return SUCCESS; }
EXPORT int cusparseGetVersion(void*, int* version) {
  *version = SIMULATED_CUDA_VERSION >= 13000 ? 12600 : 12500;
  return SUCCESS;
}
EXPORT const char* cusparseGetErrorName(int status) {
  return status == SUCCESS ? "CUSPARSE_STATUS_SUCCESS" : "CUSPARSE_STATUS_NOT_SUPPORTED";
}
EXPORT const char* cusparseGetErrorString(int status) {
  return status == SUCCESS ? "success" : "not supported by the simulated cuSPARSE";
}

// ---- descriptors

EXPORT int cusparseCreateMatDescr(void** description) { return simulator::give(description); }
EXPORT int cusparseDestroyMatDescr(void* description) { return simulator::take_back(description); }
EXPORT int cusparseSetMatType(void*, int) { return SUCCESS; }
EXPORT int cusparseSetMatIndexBase(void*, int) { return SUCCESS; }
EXPORT int cusparseSetMatFillMode(void*, int) { return SUCCESS; }
EXPORT int cusparseSetMatDiagType(void*, int) { return SUCCESS; }

EXPORT int cusparseCreateCsr(void** description, int64_t rows, int64_t columns, int64_t stored, void*, void*, void*, int, int, int,
                             int) {
  return give_matrix(description, rows, columns, stored);
}
EXPORT int cusparseCreateConstCsr(void**, int64_t, int64_t, int64_t, void*, void*, void*, int, int, int, int)
    SAME_AS(cusparseCreateCsr);
EXPORT int cusparseCreateCsc(void**, int64_t, int64_t, int64_t, void*, void*, void*, int, int, int, int) SAME_AS(cusparseCreateCsr);
EXPORT int cusparseCreateCoo(void** description, int64_t rows, int64_t columns, int64_t stored, void*, void*, void*, int, int,
                             int) {
  return give_matrix(description, rows, columns, stored);
}
EXPORT int cusparseCreateBsr(void** description, int64_t block_rows, int64_t block_columns, int64_t blocks, int64_t height,
                             int64_t width, void*, void*, void*, int, int, int, int, int) {
  return give_matrix(description, block_rows * height, block_columns * width, blocks * height * width);
}
EXPORT int cusparseDestroySpMat(void* description) { return simulator::take_back<SparseMatrix>(description); }
EXPORT int cusparseCsrSetPointers(void*, void*, void*, void*) { return SUCCESS; }
EXPORT int cusparseCsrSetStridedBatch(void*, int, int64_t, int64_t) { return SUCCESS; }
EXPORT int cusparseCooSetStridedBatch(void*, int, int64_t) { return SUCCESS; }
EXPORT int cusparseSpMatSetAttribute(void*, int, void*, size_t) { return SUCCESS; }
EXPORT int cusparseSpMatGetSize(void* description, int64_t* rows, int64_t* columns, int64_t* stored) {
  *rows = matrix(description).rows;
  *columns = matrix(description).columns;
  *stored = matrix(description).stored;
  return SUCCESS;
}

EXPORT int cusparseCreateDnMat(void** description, int64_t, int64_t, int64_t, void*, int, int) {
  return simulator::give(description);
}
EXPORT int cusparseDestroyDnMat(void* description) { return simulator::take_back(description); }
EXPORT int cusparseDnMatSetStridedBatch(void*, int, int64_t) { return SUCCESS; }
EXPORT int cusparseCreateDnVec(void** description, int64_t, void*, int) { return simulator::give(description); }
EXPORT int cusparseDestroyDnVec(void* description) { return simulator::take_back(description); }

EXPORT int cusparseCreateBsrsv2Info(void** information) { return simulator::give(information); }
EXPORT int cusparseDestroyBsrsv2Info(void* information) { return simulator::take_back(information); }
EXPORT int cusparseCreateBsrsm2Info(void** information) { return simulator::give(information); }
EXPORT int cusparseDestroyBsrsm2Info(void* information) { return simulator::take_back(information); }
EXPORT int cusparseSpSV_createDescr(void** description) { return simulator::give(description); }
EXPORT int cusparseSpSV_destroyDescr(void* description) { return simulator::take_back(description); }
EXPORT int cusparseSpSM_createDescr(void** description) { return simulator::give(description); }
EXPORT int cusparseSpSM_destroyDescr(void* description) { return simulator::take_back(description); }
EXPORT int cusparseSpGEMM_createDescr(void** description) { return simulator::give(description); }
EXPORT int cusparseSpGEMM_destroyDescr(void* description) { return simulator::take_back(description); }

// ---- products and solutions: workspaces

EXPORT int cusparseSpMV_bufferSize(void*, int, const void*, const void* sparse, const void*, const void*, const void*, int, int,
                                   size_t* bytes) {
  *bytes = 8 * static_cast<size_t>(matrix(sparse).rows);
  return SUCCESS;
}

EXPORT int cusparseSpMM_bufferSize(void*, int, int, const void*, const void* sparse, const void*, const void*, const void*, int,
                                   int,
                                   size_t* bytes) {
  *bytes = 8 * static_cast<size_t>(matrix(sparse).rows);
  return SUCCESS;
}

EXPORT int cusparseSDDMM_bufferSize(void*, int, int, const void*, const void*, const void*, const void*, const void* sparse, int,
                                    int,
                                    size_t* bytes) {
  *bytes = 8 * static_cast<size_t>(matrix(sparse).rows);
  return SUCCESS;
}

EXPORT int cusparseSpSV_bufferSize(void*, int, const void*, const void* sparse, const void*, const void*, int, int, void*,
                                   size_t* bytes) {
  *bytes = workspace(matrix(sparse).stored);
  return SUCCESS;
}

EXPORT int cusparseSpSM_bufferSize(void*, int, int, const void*, const void* sparse, const void*, const void*, int, int, void*,
                                   size_t* bytes) {
  *bytes = workspace(matrix(sparse).stored);
  return SUCCESS;
}

// Both steps of a product of two sparse matrices are called first without memory, to ask for the size.
EXPORT int cusparseSpGEMM_workEstimation(void*, int, int, const void*, const void* first, const void* second, const void*, void*,
                                         int,
                                         int, void*, size_t* bytes, void* memory) {
  if (memory == nullptr) *bytes = workspace(matrix(first).stored + matrix(second).stored);
  return SUCCESS;
}

EXPORT int cusparseSpGEMM_compute(void*, int, int, const void*, const void* first, const void* second, const void*, void* product,
                                  int,
                                  int, void*, size_t* bytes, void* memory) {
  matrix(product).stored = product_elements(matrix(first), matrix(second));
  if (memory == nullptr) *bytes = workspace(matrix(product).stored);
  return SUCCESS;
}

EXPORT int cusparseXbsrsv2_zeroPivot(void*, void*, int* position) {
  *position = -1;  // none
  return SUCCESS;
}
EXPORT int cusparseXbsrsm2_zeroPivot(void*, void*, int*) SAME_AS(cusparseXbsrsv2_zeroPivot);

EXPORT int cusparseSbsrsv2_bufferSize(void*, int, int, int, int blocks, void*, void*, const int*, const int*, int block, void*,
                                      int* bytes) {
  *bytes = static_cast<int>(std::min<size_t>(workspace(static_cast<int64_t>(blocks) * block), INT32_MAX));
  return SUCCESS;
}
EXPORT int cusparseDbsrsv2_bufferSize(void*, int, int, int, int, void*, void*, const int*, const int*, int, void*, int*)
    SAME_AS(cusparseSbsrsv2_bufferSize);
EXPORT int cusparseCbsrsv2_bufferSize(void*, int, int, int, int, void*, void*, const int*, const int*, int, void*, int*)
    SAME_AS(cusparseSbsrsv2_bufferSize);
EXPORT int cusparseZbsrsv2_bufferSize(void*, int, int, int, int, void*, void*, const int*, const int*, int, void*, int*)
    SAME_AS(cusparseSbsrsv2_bufferSize);

EXPORT int cusparseSbsrsm2_bufferSize(void*, int, int, int, int, int, int blocks, void*, void*, const int*, const int*, int block,
                                      void*, int* bytes) {
  *bytes = static_cast<int>(std::min<size_t>(workspace(static_cast<int64_t>(blocks) * block), INT32_MAX));
  return SUCCESS;
}
EXPORT int cusparseDbsrsm2_bufferSize(void*, int, int, int, int, int, int, void*, void*, const int*, const int*, int, void*, int*)
    SAME_AS(cusparseSbsrsm2_bufferSize);
EXPORT int cusparseCbsrsm2_bufferSize(void*, int, int, int, int, int, int, void*, void*, const int*, const int*, int, void*, int*)
    SAME_AS(cusparseSbsrsm2_bufferSize);
EXPORT int cusparseZbsrsm2_bufferSize(void*, int, int, int, int, int, int, void*, void*, const int*, const int*, int, void*, int*)
    SAME_AS(cusparseSbsrsm2_bufferSize);

// ---- sums of sparse matrices

EXPORT int cusparseScsrgeam2_bufferSizeExt(void*, int, int, const void*, void*, int first, const void*, const int*, const int*,
                                           const void*, void*, int second, const void*, const int*, const int*, void*, const void*,
                                           const int*, const int*, size_t* bytes) {
  *bytes = workspace(static_cast<int64_t>(first) + second);
  return SUCCESS;
}
EXPORT int cusparseDcsrgeam2_bufferSizeExt(void*, int, int, const void*, void*, int, const void*, const int*, const int*,
                                           const void*,
                                           void*, int, const void*, const int*, const int*, void*, const void*, const int*,
                                           const int*,
                                           size_t*) SAME_AS(cusparseScsrgeam2_bufferSizeExt);
EXPORT int cusparseCcsrgeam2_bufferSizeExt(void*, int, int, const void*, void*, int, const void*, const int*, const int*,
                                           const void*,
                                           void*, int, const void*, const int*, const int*, void*, const void*, const int*,
                                           const int*,
                                           size_t*) SAME_AS(cusparseScsrgeam2_bufferSizeExt);
EXPORT int cusparseZcsrgeam2_bufferSizeExt(void*, int, int, const void*, void*, int, const void*, const int*, const int*,
                                           const void*,
                                           void*, int, const void*, const int*, const int*, void*, const void*, const int*,
                                           const int*,
                                           size_t*) SAME_AS(cusparseScsrgeam2_bufferSizeExt);

// At most this many: positions that both have count twice.
EXPORT int cusparseXcsrgeam2Nnz(void*, int, int, void*, int first, const int*, const int*, void*, int second, const int*,
                                const int*,
                                void*, int*, int* total, void*) {
  *total = first + second;
  return SUCCESS;
}

// ---- conversions of indices

EXPORT int cusparseXcoosort_bufferSizeExt(void*, int, int, int stored, const int*, const int*, size_t* bytes) {
  *bytes = workspace(stored);
  return SUCCESS;
}
EXPORT int cusparseXcsrsort_bufferSizeExt(void*, int, int, int, const int*, const int*, size_t*)
    SAME_AS(cusparseXcoosort_bufferSizeExt);

// These are computed, so that what uses indices later does not meet some that lie outside.
EXPORT int cusparseXcoo2csr(void*, const int* rows, int stored, int row_count, int* offsets, int base) {
  if (!simulator_copies(sizeof(int) * static_cast<size_t>(std::max(stored, row_count + 1)))) return SUCCESS;
  int element = 0;
  for (int row = 0; row <= row_count; ++row) {
    while (element < stored && rows[element] - base < row) ++element;
    offsets[row] = element + base;
  }
  return SUCCESS;
}

EXPORT int cusparseCreateIdentityPermutation(void*, int count, int* permutation) {
  if (!simulator_copies(sizeof(int) * static_cast<size_t>(count))) return SUCCESS;
  for (int index = 0; index < count; ++index) permutation[index] = index;
  return SUCCESS;
}
