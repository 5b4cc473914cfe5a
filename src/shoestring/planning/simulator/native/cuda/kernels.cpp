#include "kernels.h"

#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "arena.h"
#include "configuration.h"
#include "devices.h"
#include "fills.h"
#include "interface.h"
#include "ledger.h"
#include "limits.h"
#include "memory.h"
#include "streams.h"

namespace simulator {
namespace {

struct FatBinary {
  const void* data;
  bool is_chosen = false;
  KernelImage image;
};

struct Kernel {
  const char* name;
  FatBinary* binary;
  bool may_fill;
};

struct Variable {
  size_t bytes;
  void* address[most_gpus];
};

struct Registry {
  std::shared_mutex mutex;
  std::unordered_map<const void*, Kernel> kernels;
  std::unordered_map<const void*, Variable> variables;
};

// Libraries register their kernels while they are loaded, before this one's static objects need exist.
Registry& registry() {
  static auto* const instance = new Registry;
  return *instance;
}

KernelImage image_unlocked(FatBinary* binary) {
  // Read at the first launch: the containers are a large part of PyTorch's files, and most are never used.
  if (!binary->is_chosen) {
    binary->image = choose_image(binary->data, configuration().capability());
    binary->is_chosen = true;
  }
  return binary->image;
}

thread_local struct {
  Dim3 grid, block;
  size_t shared_bytes;
  void* stream;
} pushed_configuration;

}  // namespace

KernelImage image_of(const void* function) {
  const int capability = configuration().capability();
  {
    std::shared_lock<std::shared_mutex> lock(registry().mutex);
    auto found = registry().kernels.find(function);
    if (found == registry().kernels.end()) return {true, capability, capability};
    if (found->second.binary->is_chosen) return found->second.binary->image;
  }
  std::unique_lock<std::shared_mutex> lock(registry().mutex);
  return image_unlocked(registry().kernels.at(function).binary);
}

std::function<void()> kernel_work(const void* function, void** arguments) {
  const char* name = nullptr;
  {
    std::shared_lock<std::shared_mutex> lock(registry().mutex);
    auto found = registry().kernels.find(function);
    if (found == registry().kernels.end() || !found->second.may_fill || arguments == nullptr) return nullptr;
    name = found->second.name;
  }
  return fill_of(name, arguments);
}

Error check_configuration(Dim3 grid, Dim3 block, size_t shared_bytes) {
  const bool is_empty = grid.x == 0 || grid.y == 0 || grid.z == 0 || block.x == 0 || block.y == 0 || block.z == 0;
  const bool is_too_large = static_cast<size_t>(block.x) * block.y * block.z > threads_per_block || block.z > 64 ||
                            grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535;
  if (is_empty || is_too_large) return error::invalid_configuration;
  return shared_bytes > static_cast<size_t>(limits().shared_per_block_opt_in) ? error::invalid_value : error::success;
}

Error launch_kernel(const void* function, Dim3 grid, Dim3 block, void** arguments, size_t shared_bytes, void* stream) {
  if (const Error failed = enter_current()) return failed;
  if (const Error failed = check_configuration(grid, block, shared_bytes)) return failed;
  if (!image_of(function).exists) return error::no_kernel_image;
  submit(stream, NodeKind::kernel, kernel_work(function, arguments));
  return error::success;
}

int blocks_per_multiprocessor(int block_threads, size_t shared_bytes) {
  const int whole_warps = static_cast<int>(round_up(std::max(block_threads, 1), warp));
  int blocks = std::min(limits().threads_per_multiprocessor / whole_warps, limits().blocks_per_multiprocessor);
  const size_t shared = shared_bytes + limits().shared_reserved_per_block;
  if (shared > 0) blocks = std::min<int>(blocks, static_cast<int>(limits().shared_per_multiprocessor / shared));
  return blocks;
}

}  // namespace simulator

using namespace simulator;

EXPORT void** __cudaRegisterFatBinary(void* wrapper) { return reinterpret_cast<void**>(new FatBinary{wrapper, false, {}}); }
EXPORT void __cudaRegisterFatBinaryEnd(void**) {}

// Kernels stay registered: libraries with kernels are unloaded only when the process ends.
EXPORT void __cudaUnregisterFatBinary(void**) {}
EXPORT char __cudaInitModule(void**) { return 1; }

EXPORT void __cudaRegisterFunction(void** binary, const void* function, char*, const char* name, int, void*, void*, void*, void*,
                                   int*) {
  const bool may_fill = __builtin_strstr(name, "FillFunctor") != nullptr;
  std::unique_lock<std::shared_mutex> lock(registry().mutex);
  registry().kernels[function] = {name, reinterpret_cast<FatBinary*>(binary), may_fill};
}

EXPORT void __cudaRegisterVar(void**, const void* variable, char*, const char*, int, size_t bytes, int, int) {
  std::unique_lock<std::shared_mutex> lock(registry().mutex);
  registry().variables[variable] = {bytes, {}};
}

EXPORT void __cudaRegisterManagedVar(void**, void**, char*, const char*, int, size_t, int, int) {}

EXPORT unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared_bytes, void* stream) {
  pushed_configuration = {grid, block, shared_bytes, stream};
  return 0;
}

EXPORT int __cudaPopCallConfiguration(Dim3* grid, Dim3* block, size_t* shared_bytes, void** stream) {
  *grid = pushed_configuration.grid;
  *block = pushed_configuration.block;
  *shared_bytes = pushed_configuration.shared_bytes;
  *stream = pushed_configuration.stream;
  return error::success;
}

EXPORT int cudaGetSymbolAddress(void** address, const void* symbol) {
  if (const Error failed = enter_current()) return report(failed);
  std::unique_lock<std::shared_mutex> lock(registry().mutex);
  auto found = registry().variables.find(symbol);
  if (found == registry().variables.end()) return report(error::invalid_symbol);
  void*& memory = found->second.address[current_device()];
  if (memory == nullptr) memory = allocate_uncounted(found->second.bytes, current_device());
  if (memory == nullptr) return report(error::out_of_memory);
  *address = memory;
  return error::success;
}

EXPORT int cudaGetSymbolSize(size_t* bytes, const void* symbol) {
  std::shared_lock<std::shared_mutex> lock(registry().mutex);
  auto found = registry().variables.find(symbol);
  if (found == registry().variables.end()) return report(error::invalid_symbol);
  *bytes = found->second.bytes;
  return error::success;
}
