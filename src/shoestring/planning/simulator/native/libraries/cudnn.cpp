// cuDNN: version, handles and errors. Its other parts are in the files cudnn_*.cpp.
// Declarations after cudnn_graph.h of cuDNN 9.10.
#include <cstddef>
#include <cstdio>

#include "interface.h"
#include "libraries/library.h"

// The version that a build of PyTorch was made for; the build gives it if it knows. PyTorch refuses an older one.
#ifndef SIMULATED_CUDNN_VERSION
#define SIMULATED_CUDNN_VERSION (SIMULATED_CUDA_VERSION >= 13000 ? 92000 : 91002)
#endif

namespace {

constexpr int SUCCESS = 0;
constexpr int BAD_PARAM = 2000;
constexpr int VERSION = SIMULATED_CUDNN_VERSION;

struct Handle {
  void* stream = nullptr;
};

}  // namespace

EXPORT size_t cudnnGetVersion() { return VERSION; }
EXPORT size_t cudnnGetMaxDeviceVersion() { return VERSION; }
EXPORT size_t cudnnGetCudartVersion() { return SIMULATED_CUDA_VERSION; }

EXPORT int cudnnGetProperty(int part, int* value) {
  const int parts[] = {VERSION / 10000, VERSION / 100 % 100, VERSION % 100};
  if (part < 0 || part > 2) return BAD_PARAM;
  *value = parts[part];
  return SUCCESS;
}

EXPORT const char* cudnnGetErrorString(int status) {
  return status == SUCCESS ? "CUDNN_STATUS_SUCCESS" : "CUDNN_STATUS_NOT_SUPPORTED (by the simulated cuDNN)";
}

EXPORT void cudnnGetLastErrorString(char* text, size_t bytes) {
  if (bytes > 0) std::snprintf(text, bytes, "not supported by the simulated cuDNN");
}

EXPORT int cudnnCreate(void** handle) { return simulator::give<Handle>(handle); }
EXPORT int cudnnDestroy(void* handle) { return simulator::take_back<Handle>(handle); }

EXPORT int cudnnSetStream(void* handle, void* stream) {
  static_cast<Handle*>(handle)->stream = stream;
  return SUCCESS;
}

EXPORT int cudnnGetStream(void* handle, void** stream) {
  *stream = static_cast<Handle*>(handle)->stream;
  return SUCCESS;
}

// What the parts of the library call to check that they fit each other.
EXPORT int cudnnOpsVersionCheck() { return SUCCESS; }
EXPORT int cudnnCnnVersionCheck() { return SUCCESS; }
EXPORT int cudnnAdvVersionCheck() { return SUCCESS; }
EXPORT int cudnnGraphVersionCheck() { return SUCCESS; }
