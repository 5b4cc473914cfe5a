// Finds functions of the driver by name, as PyTorch, NCCL and Triton do.
#include <dlfcn.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "devices.h"
#include "interface.h"

using namespace simulator;

namespace {

// Functions that PyTorch expects to find and that are refused when called: memory shared with other processes, multicast between
// GPUs, parts of a GPU.
constexpr std::array refused_names = {
    "cuMulticastAddDevice",      "cuMulticastBindMem",        "cuMulticastBindAddr",        "cuMulticastCreate",
    "cuMulticastGetGranularity", "cuMulticastUnbind",         "cuGreenCtxCreate",           "cuGreenCtxDestroy",
    "cuCtxFromGreenCtx",         "cuDeviceGetDevResource",    "cuDevResourceGenerateDesc",  "cuDevSmResourceSplitByCount",
    "cuDevSmResourceSplit",      "cuGreenCtxStreamCreate",    "cuGreenCtxGetDevResource",   "cuMemGetHandleForAddressRange",
    "cuStreamWaitValue32",       "cuStreamWaitValue64",       "cuStreamWriteValue64",       "cuStreamBatchMemOp",
    "cuIpcGetMemHandle",         "cuIpcOpenMemHandle",        "cuIpcCloseMemHandle",        "cuTensorMapEncodeIm2col",
    "cuTensorMapReplaceAddress", "cuCheckpointProcessLock",   "cuCheckpointProcessUnlock",  "cuCheckpointProcessRestore",
};

template <size_t Index>
int refused() {
  simulator_missing(refused_names[Index]);
  return error::not_supported;
}

template <size_t... Indices>
constexpr auto refused_functions(std::index_sequence<Indices...>) {
  return std::array<int (*)(), sizeof...(Indices)>{refused<Indices>...};
}

void* find_refused(std::string_view name) {
  static constexpr auto functions = refused_functions(std::make_index_sequence<refused_names.size()>());
  for (size_t index = 0; index < refused_names.size(); ++index)
    if (name == refused_names[index]) return reinterpret_cast<void*>(functions[index]);
  return nullptr;
}

void* own_library() {
  static void* const handle = [] {
    Dl_info info{};
    dladdr(reinterpret_cast<void*>(&initialize), &info);
    return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  }();
  return handle;
}

void* find_function(const char* name) {
  // cuda.h gives the name without a version the newest one, which is the one that is here.
  for (const char* version : {"", "_v2", "_v3", "_v4"})
    if (void* found = dlsym(own_library(), (std::string(name) + version).c_str())) return found;
  return find_refused(name);
}

// Numbers of cudaDriverEntryPointQueryResult and CUdriverProcAddressQueryResult.
enum QueryResult { found = 0, not_found = 1 };

Error find_entry_point(const char* name, void** function, int* result) {
  *function = find_function(name);
  if (result != nullptr) *result = *function != nullptr ? found : not_found;
  return *function != nullptr ? error::success : error::not_found;
}

}  // namespace

EXPORT int cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long, int* result) {
  // The runtime's form succeeds also if there is no such function, and says so in the result.
  if (find_entry_point(name, function, result) != error::success) {
    const std::string missing = std::string(name) + " (looked up)";
    simulator_missing(missing.c_str());
  }
  return error::success;
}

#if SIMULATED_CUDA_VERSION < 13000
EXPORT int cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long flags, int* result) {
  return cudaGetDriverEntryPointByVersion(name, function, SIMULATED_CUDA_VERSION, flags, result);
}
#endif

EXPORT int cuGetProcAddress(const char* name, void** function, int, uint64_t) {
  return find_entry_point(name, function, nullptr);
}

EXPORT int cuGetProcAddress_v2(const char* name, void** function, int, uint64_t, int* result) {
  return find_entry_point(name, function, result);
}

// Tables of functions without names, which other builds of the runtime ask for.
EXPORT int cuGetExportTable(const void** table, const void*) {
  simulator_missing("cuGetExportTable");
  *table = nullptr;
  return error::not_found;
}
