// Launches, attributes and occupancy of kernels in the runtime, and copies to variables of kernels.
#include <cstring>

#include "copies.h"
#include "devices.h"
#include "interface.h"
#include "kernels.h"
#include "limits.h"
#include "streams.h"

EXPORT int cudaGetSymbolAddress(void** address, const void* symbol);

using namespace simulator;

namespace {

// Numbers of cudaFuncAttribute (driver_types.h).
constexpr int attribute_largest_dynamic_shared = 8;

// cudaFuncAttributes (driver_types.h, CUDA 12.8 and 13.0).
struct FunctionAttributes {
  size_t shared_bytes;
  size_t constant_bytes;
  size_t local_bytes;
  int most_threads;
  int registers;
  int ptx_version;
  int binary_version;
  int caches_globals;
  int largest_dynamic_shared;
  int preferred_carveout;
  int needs_cluster_size;
  int cluster_width;
  int cluster_height;
  int cluster_depth;
  int cluster_policy;
  int allows_large_clusters;
  int reserved[16];
};

// cudaLaunchConfig_t (driver_types.h).
struct LaunchConfiguration {
  Dim3 grid;
  Dim3 block;
  size_t shared_bytes;
  void* stream;
  void* attributes;
  unsigned attribute_count;
};

Error set_function_attribute(int attribute, int value) {
  // A kernel that asks for more shared memory than the GPU has fails here, before its launch.
  const bool is_too_large = attribute == attribute_largest_dynamic_shared && value > limits().shared_per_block_opt_in;
  return is_too_large ? error::invalid_value : error::success;
}

}  // namespace

EXPORT int __cudaGetKernel(void** kernel, const void* function) {
  *kernel = const_cast<void*>(function);
  return error::success;
}

EXPORT int cudaGetKernel(void** kernel, const void* function) { return __cudaGetKernel(kernel, function); }

EXPORT int cudaGetFuncBySymbol(void** function, const void* symbol) {
  *function = const_cast<void*>(symbol);
  return error::success;
}

EXPORT int cudaLaunchKernel(const void* function, Dim3 grid, Dim3 block, void** arguments, size_t shared_bytes, void* stream) {
  return report(launch_kernel(function, grid, block, arguments, shared_bytes, stream));
}

EXPORT int __cudaLaunchKernel(void* kernel, Dim3 grid, Dim3 block, void** arguments, size_t shared_bytes, void* stream) {
  return report(launch_kernel(kernel, grid, block, arguments, shared_bytes, stream));
}

EXPORT int cudaLaunchCooperativeKernel(const void* function, Dim3 grid, Dim3 block, void** arguments, size_t shared_bytes,
                                       void* stream) {
  return report(launch_kernel(function, grid, block, arguments, shared_bytes, stream));
}

EXPORT int cudaLaunchKernelExC(const LaunchConfiguration* launch, const void* function, void** arguments) {
  return report(launch_kernel(function, launch->grid, launch->block, arguments, launch->shared_bytes, launch->stream));
}

EXPORT int cudaFuncGetAttributes(FunctionAttributes* attributes, const void* function) {
  if (const Error failed = enter_current()) return report(failed);
  const KernelImage image = image_of(function);
  if (!image.exists) return report(error::no_kernel_image);
  *attributes = FunctionAttributes{};
  attributes->most_threads = threads_per_block;
  attributes->registers = 32;
  attributes->ptx_version = image.ptx_version;
  attributes->binary_version = image.binary_version;
  attributes->largest_dynamic_shared = shared_per_block;
  attributes->preferred_carveout = -1;
  return error::success;
}

EXPORT int cudaFuncSetAttribute(const void*, int attribute, int value) {
  if (const Error failed = enter_current()) return report(failed);
  return report(set_function_attribute(attribute, value));
}

EXPORT int cudaKernelSetAttributeForDevice(void*, int attribute, int value, int) {
  return report(set_function_attribute(attribute, value));
}

EXPORT int cudaFuncSetCacheConfig(const void*, int) { return error::success; }
EXPORT int cudaFuncSetSharedMemConfig(const void*, int) { return error::success; }

EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int block_threads, size_t shared_bytes) {
  *blocks = blocks_per_multiprocessor(block_threads, shared_bytes);
  return error::success;
}

EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int block_threads,
                                                                  size_t shared_bytes, unsigned) {
  *blocks = blocks_per_multiprocessor(block_threads, shared_bytes);
  return error::success;
}

EXPORT int cudaOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, const void*, int blocks, int) {
  *bytes = static_cast<size_t>(limits().shared_per_multiprocessor / (blocks > 0 ? blocks : 1) - limits().shared_reserved_per_block);
  return error::success;
}

EXPORT int cudaOccupancyMaxActiveClusters(int* clusters, const void*, const LaunchConfiguration*) {
  *clusters = 1;
  return error::success;
}

EXPORT int cudaOccupancyMaxPotentialClusterSize(int* size, const void*, const LaunchConfiguration*) {
  *size = 8;
  return error::success;
}

EXPORT int cudaMemcpyToSymbolAsync(const void* symbol, const void* from, size_t bytes, size_t offset, int, void* stream) {
  void* address = nullptr;
  if (const Error failed = cudaGetSymbolAddress(&address, symbol)) return failed;
  char* to = static_cast<char*>(address) + offset;
  submit(stream, NodeKind::copy, [=] { copy_memory(to, from, bytes); });
  return error::success;
}

EXPORT int cudaMemcpyToSymbol(const void* symbol, const void* from, size_t bytes, size_t offset, int kind) {
  return cudaMemcpyToSymbolAsync(symbol, from, bytes, offset, kind, nullptr);
}

EXPORT int cudaMemcpyFromSymbolAsync(void* to, const void* symbol, size_t bytes, size_t offset, int, void* stream) {
  void* address = nullptr;
  if (const Error failed = cudaGetSymbolAddress(&address, symbol)) return failed;
  const char* from = static_cast<const char*>(address) + offset;
  submit(stream, NodeKind::copy, [=] { copy_memory(to, from, bytes); });
  return error::success;
}

EXPORT int cudaMemcpyFromSymbol(void* to, const void* symbol, size_t bytes, size_t offset, int kind) {
  return cudaMemcpyFromSymbolAsync(to, symbol, bytes, offset, kind, nullptr);
}

// Libraries of kernels that are compiled while a script runs: their kernels do nothing, and nothing is known of them.
EXPORT int cudaLibraryLoadData(void** library, const void*, void*, void**, unsigned, void*, void**, unsigned) {
  if (const Error failed = enter_current()) return report(failed);
  *library = new char;
  return error::success;
}

EXPORT int cudaLibraryUnload(void* library) {
  delete static_cast<char*>(library);
  return error::success;
}

EXPORT int cudaLibraryGetKernel(void** kernel, void*, const char* name) {
  *kernel = new ModuleFunction{::strdup(name)};  // kept: a kernel has no end of its own
  return error::success;
}
