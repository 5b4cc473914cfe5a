// nvJitLink: links modules compiled at run time. The result has no content, as the modules themselves (nvrtc.cpp).
// Declarations after nvJitLink.h of CUDA 12.8, whose functions have the version in their symbols' names.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "interface.h"
#include "libraries/library.h"

namespace {

constexpr int SUCCESS = 0;
const char MODULE[] = "// simulated";

}  // namespace

EXPORT int nvJitLinkCreate(void** linker, uint32_t, const char**) { return simulator::give(linker); }
EXPORT int nvJitLinkDestroy(void** linker) {
  const int status = simulator::take_back(*linker);
  *linker = nullptr;
  return status;
}
EXPORT int nvJitLinkAddData(void*, int, const void*, size_t, const char*) { return SUCCESS; }
EXPORT int nvJitLinkAddFile(void*, int, const char*) { return SUCCESS; }
EXPORT int nvJitLinkComplete(void*) { return SUCCESS; }
EXPORT int nvJitLinkGetLinkedCubinSize(void*, size_t* size) {
  *size = sizeof MODULE;
  return SUCCESS;
}
EXPORT int nvJitLinkGetLinkedCubin(void*, void* place) {
  std::memcpy(place, MODULE, sizeof MODULE);
  return SUCCESS;
}
EXPORT int nvJitLinkGetErrorLogSize(void*, size_t* size) {
  *size = 0;
  return SUCCESS;
}
EXPORT int nvJitLinkGetErrorLog(void*, char*) { return SUCCESS; }
EXPORT int nvJitLinkVersion(unsigned* major, unsigned* minor) {
  *major = SIMULATED_CUDA_VERSION / 1000;
  *minor = SIMULATED_CUDA_VERSION % 1000 / 10;
  return SUCCESS;
}
