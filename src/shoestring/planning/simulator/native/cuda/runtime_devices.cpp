// Devices of the runtime: which there are, which is current, what they may do with each other.
#include <cstdint>

#include "configuration.h"
#include "devices.h"
#include "interface.h"
#include "memory.h"
#include "pools.h"
#include "streams.h"

using namespace simulator;

EXPORT int cudaGetDeviceCount(int* count) {
  *count = 0;
  if (const Error failed = initialize()) return report(failed);
  *count = device_count();
  return error::success;
}

EXPORT int cudaGetDevice(int* device) {
  if (const Error failed = initialize()) return report(failed);
  *device = current_device();
  return error::success;
}

EXPORT int cudaSetDevice(int device) {
  if (const Error failed = set_current_device(device)) return report(failed);
  return report(enter(device));
}

EXPORT int cudaInitDevice(int device, unsigned, unsigned) { return report(enter(device)); }
EXPORT int cudaSetValidDevices(int*, int) { return error::success; }

EXPORT int cudaChooseDevice(int* device, const void*) {
  *device = current_device();
  return error::success;
}

EXPORT int cudaSetDeviceFlags(unsigned) { return error::success; }

EXPORT int cudaGetDeviceFlags(unsigned* flags) {
  *flags = 0;
  return error::success;
}

EXPORT int cudaDeviceSynchronize() {
  if (const Error failed = enter_current()) return report(failed);
  if (const Error refused = refuse_while_capturing()) return report(refused);
  trim_pools();
  return error::success;
}

EXPORT int cudaDeviceReset() {
  if (const Error failed = initialize()) return report(failed);
  const int device = current_device();
  free_all_of_device(device);
  current_pool(device)->trim(0);
  leave(device);
  return error::success;
}

EXPORT int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return error::success;
}

EXPORT int cudaDeviceGetPCIBusId(char* text, int capacity, int device) {
  if (const Error failed = initialize()) return report(failed);
  if (!is_device_number(device)) return report(error::invalid_device);
  write_pci_id(gpu_of(device), text, capacity);
  return error::success;
}

EXPORT int cudaDeviceGetByPCIBusId(int* device, const char* text) {
  if (const Error failed = initialize()) return report(failed);
  const int gpu = gpu_of_pci_id(text);
  for (int candidate = 0; candidate < device_count(); ++candidate) {
    if (gpu_of(candidate) != gpu) continue;
    *device = candidate;
    return error::success;
  }
  return report(error::invalid_value);
}

// The GPUs are behind PCIe without peer access, as two T4 are: copies between them go through the host.
EXPORT int cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (const Error failed = initialize()) return report(failed);
  if (!is_device_number(device) || !is_device_number(peer)) return report(error::invalid_device);
  *can = 0;
  return error::success;
}

EXPORT int cudaDeviceEnablePeerAccess(int, unsigned) { return report(error::peer_access_unsupported); }
EXPORT int cudaDeviceDisablePeerAccess(int) { return report(error::peer_access_not_enabled); }

EXPORT int cudaDeviceGetP2PAttribute(int* value, int, int, int) {
  *value = 0;
  return error::success;
}

namespace {
// Numbers of cudaLimit (driver_types.h); the values are CUDA's defaults.
size_t device_limits[] = {1024, size_t{1} << 20, size_t{8} << 20, 2, 2048, 64, 0};
constexpr int limit_count = sizeof device_limits / sizeof *device_limits;
}  // namespace

EXPORT int cudaDeviceGetLimit(size_t* value, int limit) {
  if (limit < 0 || limit >= limit_count) return report(215);  // cudaErrorUnsupportedLimit
  *value = device_limits[limit];
  return error::success;
}

EXPORT int cudaDeviceSetLimit(int limit, size_t value) {
  if (limit < 0 || limit >= limit_count) return report(215);
  device_limits[limit] = value;
  return error::success;
}

EXPORT int cudaDeviceGetCacheConfig(int* preference) {
  *preference = 0;
  return error::success;
}

EXPORT int cudaDeviceSetCacheConfig(int) { return error::success; }

EXPORT int cudaDriverGetVersion(int* version) {
  *version = SIMULATED_CUDA_VERSION;
  return error::success;
}

EXPORT int cudaRuntimeGetVersion(int* version) {
  *version = SIMULATED_CUDA_VERSION;
  return error::success;
}

EXPORT int cudaProfilerStart() { return error::success; }
EXPORT int cudaProfilerStop() { return error::success; }
