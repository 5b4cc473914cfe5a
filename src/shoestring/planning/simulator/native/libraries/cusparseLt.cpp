// cuSPARSELt: products with two of four elements kept. It tells how large a compressed matrix is; products do nothing.
// Declarations after cusparseLt.h of version 0.7 and 0.8, where descriptors are memory of the caller, 11,024 bytes each.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "interface.h"

namespace {

constexpr int SUCCESS = 0;

// What is remembered in the caller's memory.
struct Matrix {
  int64_t rows;
  int64_t columns;
  int type;
};

size_t element_bytes(int type) {
  switch (type) {                       // cudaDataType_t, library_types.h
    case 0: case 10: return 4;          // CUDA_R_32F, CUDA_R_32I
    case 2: case 14: return 2;          // CUDA_R_16F, CUDA_R_16BF
    default: return 1;                  // eight bits: CUDA_R_8I, CUDA_R_8F_E4M3
  }
}

int describe(void* description, int64_t rows, int64_t columns, int type) {
  const Matrix matrix{rows, columns, type};
  std::memcpy(description, &matrix, sizeof matrix);
  return SUCCESS;
}

// Half of the elements, and for each of them two bits that say which of four it was.
size_t compressed_bytes(const void* description) {
  Matrix matrix;
  std::memcpy(&matrix, description, sizeof matrix);
  const size_t kept = static_cast<size_t>(matrix.rows) * static_cast<size_t>(matrix.columns) / 2;
  return kept * element_bytes(matrix.type) + kept / 4;
}

}  // namespace

EXPORT int cusparseLtInit(void*) { return SUCCESS; }
EXPORT int cusparseLtDestroy(void*) { return SUCCESS; }

EXPORT int cusparseLtStructuredDescriptorInit(void*, void* description, int64_t rows, int64_t columns, int64_t, uint32_t, int type,
                                              int, int) {
  return describe(description, rows, columns, type);
}
EXPORT int cusparseLtDenseDescriptorInit(void*, void* description, int64_t rows, int64_t columns, int64_t, uint32_t, int type,
                                         int) {
  return describe(description, rows, columns, type);
}
EXPORT int cusparseLtMatDescriptorDestroy(void*) { return SUCCESS; }

EXPORT int cusparseLtMatmulDescriptorInit(void*, void*, int, int, const void*, const void*, const void*, const void*, int) {
  return SUCCESS;
}
EXPORT int cusparseLtMatmulDescSetAttribute(void*, void*, int, const void*, size_t) { return SUCCESS; }
EXPORT int cusparseLtMatmulAlgSelectionInit(void*, void*, const void*, int) { return SUCCESS; }
EXPORT int cusparseLtMatmulAlgSetAttribute(void*, void*, int, const void*, size_t) { return SUCCESS; }
EXPORT int cusparseLtMatmulAlgGetAttribute(void*, const void*, int, void* value, size_t bytes) {
  std::memset(value, 0, bytes);
  return SUCCESS;
}
EXPORT int cusparseLtMatmulPlanInit(void*, void*, const void*, const void*) { return SUCCESS; }
EXPORT int cusparseLtMatmulPlanDestroy(void*) { return SUCCESS; }
EXPORT int cusparseLtMatmulGetWorkspace(void*, const void*, size_t* bytes) {
  *bytes = 0;
  return SUCCESS;
}
EXPORT int cusparseLtMatmul(void*, const void*, const void*, const void*, const void*, const void*, const void*, void*, void*,
                            void**,
                            int32_t) {
  return SUCCESS;
}
EXPORT int cusparseLtMatmulSearch(void*, void*, const void*, const void*, const void*, const void*, const void*, void*, void*,
                                  void**,
                                  int32_t) {
  return SUCCESS;
}

EXPORT int cusparseLtSpMMACompressedSize2(void*, const void* description, size_t* compressed, size_t* workspace) {
  *compressed = compressed_bytes(description);
  *workspace = 0;
  return SUCCESS;
}
EXPORT int cusparseLtSpMMACompress2(void*, const void*, int, int, const void*, void*, void*, void*) { return SUCCESS; }
