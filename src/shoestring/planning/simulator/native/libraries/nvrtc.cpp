// NVRTC: a program compiled at run time. Each compiles, to a module without content; the simulated driver loads it, and its kernels
// do
// nothing as all others.
// Declarations after nvrtc.h of CUDA 12.8.
#include <cstddef>
#include <cstring>
#include <deque>
#include <string>

#include "interface.h"
#include "libraries/library.h"

namespace {

constexpr int SUCCESS = 0;
const char MODULE[] = "// simulated";

struct Program {
  std::deque<std::string> names;  // a deque: what was given out stays where it is
};

int give_size(size_t* size) {
  *size = sizeof MODULE;
  return SUCCESS;
}

int give_module(char* place) {
  std::memcpy(place, MODULE, sizeof MODULE);
  return SUCCESS;
}

}  // namespace

EXPORT const char* nvrtcGetErrorString(int status) { return status == SUCCESS ? "NVRTC_SUCCESS" : "NVRTC_ERROR_INTERNAL_ERROR"; }

EXPORT int nvrtcVersion(int* major, int* minor) {
  *major = SIMULATED_CUDA_VERSION / 1000;
  *minor = SIMULATED_CUDA_VERSION % 1000 / 10;
  return SUCCESS;
}

// Asked for what it can compile for; the answer is what CUDA 12 and 13 both can.
EXPORT int nvrtcGetNumSupportedArchs(int* count) {
  *count = 6;
  return SUCCESS;
}
EXPORT int nvrtcGetSupportedArchs(int* capabilities) {
  const int supported[] = {75, 80, 86, 89, 90, 100};
  std::memcpy(capabilities, supported, sizeof supported);
  return SUCCESS;
}

EXPORT int nvrtcCreateProgram(void** program, const char*, const char*, int, const char* const*, const char* const*) {
  return simulator::give<Program>(program);
}
EXPORT int nvrtcDestroyProgram(void** program) {
  const int status = simulator::take_back<Program>(*program);
  *program = nullptr;
  return status;
}
EXPORT int nvrtcCompileProgram(void*, int, const char* const*) { return SUCCESS; }
EXPORT int nvrtcAddNameExpression(void*, const char*) { return SUCCESS; }

EXPORT int nvrtcGetLoweredName(void* program, const char* expression, const char** name) {
  auto& names = static_cast<Program*>(program)->names;
  names.emplace_back(expression);
  *name = names.back().c_str();
  return SUCCESS;
}

EXPORT int nvrtcGetPTXSize(void*, size_t* size) { return give_size(size); }
EXPORT int nvrtcGetPTX(void*, char* place) { return give_module(place); }
EXPORT int nvrtcGetCUBINSize(void*, size_t* size) { return give_size(size); }
EXPORT int nvrtcGetCUBIN(void*, char* place) { return give_module(place); }
EXPORT int nvrtcGetLTOIRSize(void*, size_t* size) { return give_size(size); }
EXPORT int nvrtcGetLTOIR(void*, char* place) { return give_module(place); }

EXPORT int nvrtcGetProgramLogSize(void*, size_t* size) {
  *size = 1;
  return SUCCESS;
}
EXPORT int nvrtcGetProgramLog(void*, char* place) {
  *place = '\0';
  return SUCCESS;
}
