// The driver: initialization, devices, contexts, streams and events. A context is the primary one of its device; there are no
// others, and its handle is an address in a table.
#include <cstdio>
#include <cstring>
#include <vector>

#include "configuration.h"
#include "devices.h"
#include "interface.h"
#include "ledger.h"
#include "pools.h"
#include "streams.h"

using namespace simulator;

namespace {

char contexts[most_gpus];
thread_local std::vector<void*> context_stack;

void* context_of(int device) { return &contexts[device]; }
int device_of(const void* context) { return static_cast<int>(static_cast<const char*>(context) - contexts); }

}  // namespace

EXPORT int cuInit(unsigned) { return initialize(); }

EXPORT int cuDriverGetVersion(int* version) {
  *version = SIMULATED_CUDA_VERSION;
  return error::success;
}

EXPORT int cuDeviceGetCount(int* count) {
  *count = device_count();
  return error::success;
}

EXPORT int cuDeviceGet(int* device, int number) {
  if (const Error failed = initialize()) return failed;
  if (!is_device_number(number)) return error::invalid_device;
  *device = number;
  return error::success;
}

EXPORT int cuDeviceGetName(char* text, int capacity, int device) {
  if (!is_device_number(device)) return error::invalid_device;
  std::snprintf(text, capacity, "%s", configuration().name.c_str());
  return error::success;
}

EXPORT int cuDeviceGetUuid(unsigned char (*uuid)[16], int device) {
  if (!is_device_number(device)) return error::invalid_device;
  write_uuid(gpu_of(device), *uuid);
  return error::success;
}

EXPORT int cuDeviceGetUuid_v2(unsigned char (*uuid)[16], int device) { return cuDeviceGetUuid(uuid, device); }

EXPORT int cuDeviceGetLuid(char* luid, unsigned* node_mask, int) {
  std::memset(luid, 0, 8);
  *node_mask = 0;
  return error::success;
}

EXPORT int cuDeviceTotalMem_v2(size_t* bytes, int device) {
  if (!is_device_number(device)) return error::invalid_device;
  *bytes = configuration().memory;
  return error::success;
}

EXPORT int cuDeviceComputeCapability(int* major, int* minor, int device) {
  if (!is_device_number(device)) return error::invalid_device;
  *major = configuration().capability_major;
  *minor = configuration().capability_minor;
  return error::success;
}

EXPORT int cuDeviceGetPCIBusId(char* text, int capacity, int device) {
  if (!is_device_number(device)) return error::invalid_device;
  write_pci_id(gpu_of(device), text, capacity);
  return error::success;
}

EXPORT int cuDeviceGetByPCIBusId(int* device, const char* text) {
  const int gpu = gpu_of_pci_id(text);
  for (int candidate = 0; candidate < device_count(); ++candidate) {
    if (gpu_of(candidate) != gpu) continue;
    *device = candidate;
    return error::success;
  }
  return error::invalid_device;
}

EXPORT int cuDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return error::success;
}

EXPORT int cuDeviceGetP2PAttribute(int* value, int, int, int) {
  *value = 0;
  return error::success;
}

EXPORT int cuDeviceGetDefaultMemPool(void** pool, int device) {
  if (!is_device_number(device)) return error::invalid_device;
  *pool = default_pool(device);
  return error::success;
}

EXPORT int cuDevicePrimaryCtxRetain(void** context, int device) {
  if (const Error failed = enter(device)) return failed;
  *context = context_of(device);
  return error::success;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int) { return error::success; }
EXPORT int cuDevicePrimaryCtxSetFlags_v2(int, unsigned) { return error::success; }

EXPORT int cuDevicePrimaryCtxReset_v2(int device) {
  leave(device);
  return error::success;
}

EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* is_active) {
  if (const Error failed = initialize()) return failed;
  if (!is_device_number(device)) return error::invalid_device;
  if (flags != nullptr) *flags = 0;
  *is_active = has_context(device) ? 1 : 0;
  return error::success;
}

EXPORT int cuCtxGetCurrent(void** context) {
  if (const Error failed = initialize()) return failed;
  *context = has_context(current_device()) ? context_of(current_device()) : nullptr;
  return error::success;
}

EXPORT int cuCtxSetCurrent(void* context) {
  if (context == nullptr) return error::success;
  return set_current_device(device_of(context));
}

EXPORT int cuCtxPushCurrent_v2(void* context) {
  context_stack.push_back(context_of(current_device()));
  return cuCtxSetCurrent(context);
}

EXPORT int cuCtxPopCurrent_v2(void** context) {
  if (context != nullptr) *context = context_of(current_device());
  if (context_stack.empty()) return error::invalid_context;
  void* previous = context_stack.back();
  context_stack.pop_back();
  return cuCtxSetCurrent(previous);
}

EXPORT int cuCtxGetDevice(int* device) {
  if (const Error failed = initialize()) return failed;
  *device = current_device();
  return error::success;
}

EXPORT int cuCtxCreate_v2(void** context, unsigned, int device) {
  if (const Error failed = cuDevicePrimaryCtxRetain(context, device)) return failed;
  return set_current_device(device);
}

EXPORT int cuCtxDestroy_v2(void*) { return error::success; }
EXPORT int cuCtxSynchronize() {
  if (const Error refused = refuse_while_capturing()) return refused;
  trim_pools();
  return error::success;
}

EXPORT int cuCtxGetApiVersion(void*, unsigned* version) {
  *version = 3020;
  return error::success;
}

EXPORT int cuCtxGetFlags(unsigned* flags) {
  *flags = 0;
  return error::success;
}

EXPORT int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return error::success;
}

EXPORT int cudaDeviceGetLimit(size_t* value, int limit);
EXPORT int cudaDeviceSetLimit(int limit, size_t value);

// The driver and the runtime number limits alike.
EXPORT int cuCtxGetLimit(size_t* value, int limit) { return cudaDeviceGetLimit(value, limit); }
EXPORT int cuCtxSetLimit(int limit, size_t value) { return cudaDeviceSetLimit(limit, value); }
EXPORT int cuCtxEnablePeerAccess(void*, unsigned) { return error::peer_access_unsupported; }

EXPORT int cuStreamCreate(void** stream, unsigned flags) {
  if (const Error failed = enter_current()) return failed;
  *stream = new_stream(flags, 0);
  return error::success;
}

EXPORT int cuStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  if (const Error failed = enter_current()) return failed;
  *stream = new_stream(flags, priority);
  return error::success;
}

EXPORT int cuStreamDestroy_v2(void* stream) {
  if (stream_of(stream) != stream) return error::invalid_handle;
  delete_stream(static_cast<Stream*>(stream));
  return error::success;
}

EXPORT int cuStreamQuery(void* stream) { return refuse_wait(stream_of(stream)); }
EXPORT int cuStreamSynchronize(void* stream) { return refuse_wait(stream_of(stream)); }

EXPORT int cuStreamGetCtx(void* stream, void** context) {
  *context = context_of(stream_of(stream)->device);
  return error::success;
}

EXPORT int cuStreamGetPriority(void* stream, int* priority) {
  *priority = stream_of(stream)->priority;
  return error::success;
}

EXPORT int cuStreamGetFlags(void* stream, unsigned* flags) {
  *flags = stream_of(stream)->flags;
  return error::success;
}

EXPORT int cuStreamGetId(void* stream, unsigned long long* id) {
  *id = stream_of(stream)->id;
  return error::success;
}

EXPORT int cuStreamIsCapturing(void* stream, int* status) {
  *status = static_cast<int>(capture_status(*stream_of(stream)));
  return error::success;
}

EXPORT int cuStreamWaitEvent(void* stream, void* event, unsigned) {
  return wait_for_event(stream_of(stream), *static_cast<Event*>(event));
}

EXPORT int cuStreamWriteValue32_v2(void* stream, uintptr_t address, uint32_t value, unsigned) {
  submit(stream, NodeKind::fill, [=] { *reinterpret_cast<uint32_t*>(address) = value; });
  return error::success;
}

EXPORT int cuLaunchHostFunc(void* stream, void (*function)(void*), void* data) {
  submit(stream, NodeKind::host, [=] { function(data); });
  return error::success;
}

EXPORT int cuEventCreate(void** event, unsigned flags) {
  if (const Error failed = enter_current()) return failed;
  auto* created = new Event;
  created->flags = flags;
  *event = created;
  return error::success;
}

EXPORT int cuEventDestroy_v2(void* event) {
  delete static_cast<Event*>(event);
  return error::success;
}

EXPORT int cuEventRecord(void* event, void* stream) {
  return record_event(static_cast<Event*>(event), stream_of(stream));
}

EXPORT int cuEventQuery(void* event) { return query_event(*static_cast<Event*>(event)); }
EXPORT int cuEventSynchronize(void* event) { return query_event(*static_cast<Event*>(event)); }

EXPORT int cuEventElapsedTime(float* milliseconds, void* from, void* to) {
  const auto* begin = static_cast<Event*>(from);
  const auto* end = static_cast<Event*>(to);
  if (!begin->is_recorded || !end->is_recorded) return error::invalid_handle;
  *milliseconds = static_cast<float>(end->milliseconds - begin->milliseconds);
  return error::success;
}

EXPORT int cuProfilerStart() { return error::success; }
EXPORT int cuProfilerStop() { return error::success; }
