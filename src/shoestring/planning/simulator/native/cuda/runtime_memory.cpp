// Memory of the runtime: allocation, pointers, memory of other processes.
#include "arena.h"
#include "configuration.h"
#include "devices.h"
#include "interface.h"
#include "ledger.h"
#include "memory.h"
#include "pools.h"
#include "streams.h"

using namespace simulator;

EXPORT int cudaMalloc(void** address, size_t bytes) {
  if (const Error failed = enter_current()) return report(failed);
  if (const Error refused = refuse_while_capturing()) return report(refused);
  return report(allocate_device(address, bytes, current_device()));
}

EXPORT int cudaMallocManaged(void** address, size_t bytes, unsigned) {
  if (const Error failed = enter_current()) return report(failed);
  return report(allocate_managed(address, bytes, current_device()));
}

EXPORT int cudaMallocPitch(void** address, size_t* pitch, size_t width, size_t height) {
  constexpr size_t pitch_alignment = 512;
  *pitch = round_up(width, pitch_alignment);
  return cudaMalloc(address, *pitch * height);
}

EXPORT int cudaFree(void* address) {
  // PyTorch and others call it with nullptr to make a context.
  if (const Error failed = enter_current()) return report(failed);
  if (address == nullptr) return error::success;
  if (const Error refused = refuse_while_capturing()) return report(refused);
  if (Pool* pool = pool_of(address)) return report(pool->free(address));
  return report(free_device(address));
}

EXPORT int cudaHostAlloc(void** address, size_t bytes, unsigned) {
  if (const Error failed = enter_current()) return report(failed);
  return report(allocate_host(address, bytes, current_device()));
}

EXPORT int cudaMallocHost(void** address, size_t bytes) { return cudaHostAlloc(address, bytes, 0); }

EXPORT int cudaFreeHost(void* address) {
  if (const Error failed = initialize()) return report(failed);
  return report(free_host(address));
}

EXPORT int cudaHostRegister(void* address, size_t bytes, unsigned) {
  if (const Error failed = enter_current()) return report(failed);
  return report(register_host(address, bytes, current_device()));
}

EXPORT int cudaHostUnregister(void* address) {
  if (const Error failed = initialize()) return report(failed);
  return report(unregister_host(address));
}

EXPORT int cudaHostGetDevicePointer(void** device_address, void* address, unsigned) {
  const auto allocation = find_allocation(address);
  if (!allocation || !allocation->is_host()) return report(error::invalid_value);
  *device_address = address;
  return error::success;
}

EXPORT int cudaHostGetFlags(unsigned* flags, void* address) {
  const auto allocation = find_allocation(address);
  if (!allocation || !allocation->is_host()) return report(error::invalid_value);
  constexpr unsigned mapped = 2;  // cudaHostAllocMapped
  *flags = mapped;
  return error::success;
}

EXPORT int cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  if (const Error failed = enter_current()) return report(failed);
  const size_t total = configuration().memory;
  const size_t used = Ledger::get().used(gpu_of(current_device()));
  *total_bytes = total;
  *free_bytes = used < total ? total - used : 0;
  return error::success;
}

// cudaPointerAttributes (driver_types.h): CUDA 13 added the reserved words.
struct PointerAttributes {
  int type;
  int device;
  void* device_address;
  void* host_address;
#if SIMULATED_CUDA_VERSION >= 13000
  long reserved[8];
#endif
};

EXPORT int cudaPointerGetAttributes(PointerAttributes* attributes, const void* address) {
  if (const Error failed = initialize()) return report(failed);
  enum Type { unregistered = 0, host = 1, device = 2, managed = 3 };
  *attributes = PointerAttributes{};
  void* const same = const_cast<void*>(address);
  const auto allocation = find_allocation(address);
  if (!allocation) {
    constexpr int no_device = -2;  // cudaInvalidDeviceId
    attributes->type = unregistered;
    attributes->device = no_device;
    attributes->host_address = same;
    return error::success;
  }
  const bool is_managed = allocation->kind == MemoryKind::managed;
  attributes->type = allocation->is_host() ? host : is_managed ? managed : device;
  attributes->device = allocation->device;
  attributes->device_address = same;
  attributes->host_address = allocation->is_host() || is_managed ? same : nullptr;
  return error::success;
}

// Managed memory is where it is used, so advice about its place changes nothing.
#if SIMULATED_CUDA_VERSION >= 13000
struct Location {  // cudaMemLocation (driver_types.h)
  int type;
  int id;
};
EXPORT int cudaMemPrefetchAsync(const void*, size_t, Location, unsigned, void*) { return error::success; }
EXPORT int cudaMemAdvise(const void*, size_t, int, Location) { return error::success; }
#else
EXPORT int cudaMemPrefetchAsync(const void*, size_t, int, void*) { return error::success; }
EXPORT int cudaMemAdvise(const void*, size_t, int, int) { return error::success; }
#endif

// Memory of another process: two processes share no simulated device memory.
EXPORT int cudaIpcGetMemHandle(void*, void*) { return not_simulated("cudaIpcGetMemHandle"); }
EXPORT int cudaIpcOpenMemHandle() { return not_simulated("cudaIpcOpenMemHandle"); }
EXPORT int cudaIpcCloseMemHandle(void*) { return not_simulated("cudaIpcCloseMemHandle"); }
EXPORT int cudaIpcGetEventHandle(void*, void*) { return not_simulated("cudaIpcGetEventHandle"); }
EXPORT int cudaIpcOpenEventHandle() { return not_simulated("cudaIpcOpenEventHandle"); }
EXPORT int cudaMemPoolExportToShareableHandle() { return not_simulated("cudaMemPoolExportToShareableHandle"); }
EXPORT int cudaMemPoolImportFromShareableHandle() { return not_simulated("cudaMemPoolImportFromShareableHandle"); }
