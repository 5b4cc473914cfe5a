// The driver: modules, that is kernels compiled while a script runs (NVRTC, Triton), and launches. Such kernels do nothing.
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "configuration.h"
#include "devices.h"
#include "interface.h"
#include "kernels.h"
#include "limits.h"
#include "memory.h"
#include "streams.h"

using namespace simulator;

namespace {

constexpr size_t variable_bytes = 65536;  // of a module's variable, whose size is not known

struct Module {
  std::map<std::string, ModuleFunction> functions;
  std::map<std::string, void*> variables;
};

std::mutex modules_mutex;

Error load_module(void** module) {
  if (const Error failed = enter_current()) return failed;
  *module = new Module;
  return error::success;
}

Error find_function(void** function, void* module, const char* name) {
  std::lock_guard<std::mutex> guard(modules_mutex);
  auto& functions = static_cast<Module*>(module)->functions;
  const auto entry = functions.try_emplace(name).first;
  entry->second.name = entry->first.c_str();
  *function = &entry->second;
  return error::success;
}

Error launch(const void* function, Dim3 grid, Dim3 block, void** arguments, size_t shared_bytes, void* stream) {
  const Error result = launch_kernel(function, grid, block, arguments, shared_bytes, stream);
  return result == error::invalid_configuration ? error::invalid_value : result;
}

// CUlaunchConfig (cuda.h, CUDA 12.8 and 13.0).
struct LaunchConfiguration {
  Dim3 grid;
  Dim3 block;
  unsigned shared_bytes;
  void* stream;
  void* attributes;
  unsigned attribute_count;
};

}  // namespace

EXPORT int cuModuleLoad(void** module, const char*) { return load_module(module); }
EXPORT int cuModuleLoadData(void** module, const void*) { return load_module(module); }
EXPORT int cuModuleLoadDataEx(void** module, const void*, unsigned, int*, void**) { return load_module(module); }
EXPORT int cuModuleLoadFatBinary(void** module, const void*) { return load_module(module); }

EXPORT int cuModuleUnload(void* module) {
  delete static_cast<Module*>(module);
  return error::success;
}

EXPORT int cuModuleGetFunction(void** function, void* module, const char* name) { return find_function(function, module, name); }

EXPORT int cuModuleGetGlobal_v2(uintptr_t* address, size_t* bytes, void* module, const char* name) {
  std::lock_guard<std::mutex> guard(modules_mutex);
  void*& memory = static_cast<Module*>(module)->variables[name];
  if (memory == nullptr) memory = allocate_uncounted(variable_bytes, current_device());
  if (memory == nullptr) return error::out_of_memory;
  if (address != nullptr) *address = reinterpret_cast<uintptr_t>(memory);
  if (bytes != nullptr) *bytes = variable_bytes;
  return error::success;
}

EXPORT int cuModuleGetLoadingMode(int* mode) {
  *mode = 2;  // CU_MODULE_LAZY_LOADING
  return error::success;
}

// A library is a module that belongs to no context.
EXPORT int cuLibraryLoadData(void** library, const void*, int*, void**, unsigned, int*, void**, unsigned) {
  return load_module(library);
}

EXPORT int cuLibraryUnload(void* library) { return cuModuleUnload(library); }
EXPORT int cuLibraryGetKernel(void** kernel, void* library, const char* name) { return find_function(kernel, library, name); }

EXPORT int cuLibraryGetModule(void** module, void* library) {
  *module = library;
  return error::success;
}

EXPORT int cuKernelGetFunction(void** function, void* kernel) {
  *function = kernel;
  return error::success;
}

// Linking gives an image without content: no one reads it but this driver.
EXPORT int cuLinkCreate_v2(unsigned, int*, void**, void** state) {
  *state = new uint64_t{0};
  return error::success;
}

EXPORT int cuLinkAddData_v2(void*, int, void*, size_t, const char*, unsigned, int*, void**) { return error::success; }
EXPORT int cuLinkAddFile_v2(void*, int, const char*, unsigned, int*, void**) { return error::success; }

EXPORT int cuLinkComplete(void* state, void** image, size_t* bytes) {
  *image = state;
  *bytes = sizeof(uint64_t);
  return error::success;
}

EXPORT int cuLinkDestroy(void* state) {
  delete static_cast<uint64_t*>(state);
  return error::success;
}

// Numbers of CUfunction_attribute (cuda.h).
EXPORT int cuFuncGetAttribute(int* value, int attribute, const void* function) {
  const KernelImage image = image_of(function);
  switch (attribute) {
    case 0:
      *value = threads_per_block;
      break;
    case 4:
      *value = 32;  // registers
      break;
    case 5:
      *value = image.ptx_version;
      break;
    case 6:
      *value = image.binary_version;
      break;
    case 8:
      *value = shared_per_block;
      break;
    case 9:
      *value = -1;
      break;
    default:
      *value = 0;
  }
  return error::success;
}

EXPORT int cuFuncSetAttribute(const void*, int attribute, int value) {
  constexpr int largest_dynamic_shared = 8;
  const bool is_too_large = attribute == largest_dynamic_shared && value > limits().shared_per_block_opt_in;
  return is_too_large ? error::invalid_value : error::success;
}

EXPORT int cuKernelGetAttribute(int* value, int attribute, void* kernel, int) {
  return cuFuncGetAttribute(value, attribute, kernel);
}

EXPORT int cuKernelSetAttribute(int attribute, int value, void* kernel, int) {
  return cuFuncSetAttribute(kernel, attribute, value);
}

EXPORT int cuFuncGetName(const char** name, void* function) {
  *name = static_cast<ModuleFunction*>(function)->name;
  return error::success;
}

EXPORT int cuFuncSetCacheConfig(const void*, int) { return error::success; }
EXPORT int cuFuncLoad(void*) { return error::success; }

EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int block_threads, size_t shared_bytes) {
  *blocks = blocks_per_multiprocessor(block_threads, shared_bytes);
  return error::success;
}

EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int block_threads,
                                                                size_t shared_bytes, unsigned) {
  *blocks = blocks_per_multiprocessor(block_threads, shared_bytes);
  return error::success;
}

EXPORT int cuOccupancyMaxPotentialBlockSize(int* least_blocks, int* block_threads, void*, void*, size_t shared_bytes, int) {
  constexpr int usual_block = 256;
  *block_threads = usual_block;
  *least_blocks = configuration().multiprocessors * blocks_per_multiprocessor(usual_block, shared_bytes);
  return error::success;
}

EXPORT int cuOccupancyMaxActiveClusters(int* clusters, void*, const LaunchConfiguration*) {
  *clusters = 1;
  return error::success;
}

EXPORT int cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                          unsigned block_z, unsigned shared_bytes, void* stream, void** arguments, void**) {
  return launch(function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, arguments, shared_bytes, stream);
}

EXPORT int cuLaunchCooperativeKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                     unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream, void** arguments) {
  return launch(function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, arguments, shared_bytes, stream);
}

EXPORT int cuLaunchKernelEx(const LaunchConfiguration* config, void* function, void** arguments, void**) {
  return launch(function, config->grid, config->block, arguments, config->shared_bytes, config->stream);
}

// Descriptions of tensors for copies that kernels make on capability 9.0 (128 bytes, opaque).
EXPORT int cuTensorMapEncodeTiled(void* tensor_map) {
  std::memset(tensor_map, 0, 128);
  return error::success;
}
