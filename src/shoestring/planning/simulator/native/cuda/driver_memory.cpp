// The driver: allocations, copies, fills and the attributes of addresses. Device addresses are integers (CUdeviceptr).
#include <cstdint>

#include "configuration.h"
#include "copies.h"
#include "devices.h"
#include "interface.h"
#include "ledger.h"
#include "memory.h"
#include "pools.h"
#include "streams.h"

EXPORT int cuDevicePrimaryCtxRetain(void** context, int device);

using namespace simulator;

using DeviceAddress = uintptr_t;

namespace {

void* pointer(DeviceAddress address) { return reinterpret_cast<void*>(address); }

Error copy_at_once(void* to, const void* from, size_t bytes) {
  if (const Error refused = refuse_while_capturing()) return refused;
  copy_memory(to, from, bytes);
  return error::success;
}

Error copy_in_stream(void* to, const void* from, size_t bytes, void* stream) {
  submit(stream, NodeKind::copy, [=] { copy_memory(to, from, bytes); });
  return error::success;
}

template <class Element>
Error fill_in_stream(DeviceAddress to, Element value, size_t count, void* stream) {
  submit(stream, NodeKind::fill, [=] { fill_memory(pointer(to), &value, sizeof value, count); });
  return error::success;
}

// Numbers of CUpointer_attribute (cuda.h, CUDA 12.8 and 13.0).
Error write_pointer_attribute(void* data, int attribute, DeviceAddress address) {
  enum { host_memory = 1, device_memory = 2 };
  const auto allocation = find_allocation(pointer(address));
  if (!allocation) return error::invalid_value;
  const bool is_managed = allocation->kind == MemoryKind::managed;
  switch (attribute) {
    case 1:
      return cuDevicePrimaryCtxRetain(static_cast<void**>(data), allocation->device);
    case 2:
      *static_cast<unsigned*>(data) = allocation->is_host() ? host_memory : device_memory;
      return error::success;
    case 3:
      *static_cast<DeviceAddress*>(data) = address;
      return error::success;
    case 4:
      *static_cast<void**>(data) = allocation->is_host() || is_managed ? pointer(address) : nullptr;
      return allocation->is_host() || is_managed ? error::success : error::invalid_value;
    case 6:
      *static_cast<int*>(data) = 0;
      return error::success;
    case 7:
      *static_cast<uint64_t*>(data) = allocation->id;
      return error::success;
    case 8:
      *static_cast<int*>(data) = is_managed ? 1 : 0;
      return error::success;
    case 9:
      *static_cast<int*>(data) = allocation->device;
      return error::success;
    case 10:  // can be shared with another process
      *static_cast<int*>(data) = 0;
      return error::success;
    case 11:
      *static_cast<DeviceAddress*>(data) = allocation->begin;
      return error::success;
    case 12:
      *static_cast<size_t*>(data) = allocation->bytes;
      return error::success;
    case 13:
      *static_cast<int*>(data) = 1;
      return error::success;
    case 14:  // kinds of handles for other processes
      *static_cast<uint64_t*>(data) = 0;
      return error::success;
    case 15:  // GPUDirect RDMA
      *static_cast<int*>(data) = 0;
      return error::success;
    default:
      return error::invalid_value;
  }
}

}  // namespace

EXPORT int cuMemAlloc_v2(DeviceAddress* address, size_t bytes) {
  if (const Error failed = enter_current()) return failed;
  if (const Error refused = refuse_while_capturing()) return refused;
  if (bytes == 0) return error::invalid_value;
  return allocate_device(reinterpret_cast<void**>(address), bytes, current_device());
}

EXPORT int cuMemFree_v2(DeviceAddress address) {
  if (const Error failed = initialize()) return failed;
  if (const Error refused = refuse_while_capturing()) return refused;
  return free_device(pointer(address));
}

EXPORT int cuMemAllocAsync(DeviceAddress* address, size_t bytes, void*) {
  if (const Error failed = enter_current()) return failed;
  return current_pool(current_device())->allocate(reinterpret_cast<void**>(address), bytes);
}

EXPORT int cuMemFreeAsync(DeviceAddress address, void*) {
  Pool* pool = pool_of(pointer(address));
  return pool != nullptr ? pool->free(pointer(address)) : free_device(pointer(address));
}

EXPORT int cuMemAllocManaged(DeviceAddress* address, size_t bytes, unsigned) {
  if (const Error failed = enter_current()) return failed;
  return allocate_managed(reinterpret_cast<void**>(address), bytes, current_device());
}

EXPORT int cuMemHostAlloc(void** address, size_t bytes, unsigned) {
  if (const Error failed = enter_current()) return failed;
  return allocate_host(address, bytes, current_device());
}

EXPORT int cuMemAllocHost_v2(void** address, size_t bytes) { return cuMemHostAlloc(address, bytes, 0); }
EXPORT int cuMemFreeHost(void* address) { return free_host(address); }

EXPORT int cuMemHostRegister_v2(void* address, size_t bytes, unsigned) {
  if (const Error failed = enter_current()) return failed;
  return register_host(address, bytes, current_device());
}

EXPORT int cuMemHostUnregister(void* address) { return unregister_host(address); }

EXPORT int cuMemHostGetDevicePointer_v2(DeviceAddress* device_address, void* address, unsigned) {
  *device_address = reinterpret_cast<DeviceAddress>(address);
  return error::success;
}

EXPORT int cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  if (const Error failed = enter_current()) return failed;
  const size_t used = Ledger::get().used(gpu_of(current_device()));
  *total_bytes = configuration().memory;
  *free_bytes = used < *total_bytes ? *total_bytes - used : 0;
  return error::success;
}

EXPORT int cuMemGetAddressRange_v2(DeviceAddress* begin, size_t* bytes, DeviceAddress address) {
  const auto allocation = find_allocation(pointer(address));
  if (!allocation) return error::not_found;
  if (begin != nullptr) *begin = allocation->begin;
  if (bytes != nullptr) *bytes = allocation->bytes;
  return error::success;
}

EXPORT int cuPointerGetAttribute(void* data, int attribute, DeviceAddress address) {
  if (const Error failed = initialize()) return failed;
  return write_pointer_attribute(data, attribute, address);
}

EXPORT int cuPointerGetAttributes(unsigned count, const int* attributes, void** data, DeviceAddress address) {
  if (const Error failed = initialize()) return failed;
  for (unsigned index = 0; index < count; ++index) write_pointer_attribute(data[index], attributes[index], address);
  return error::success;
}

EXPORT int cuPointerSetAttribute(const void*, int, DeviceAddress) { return error::success; }

EXPORT int cuMemcpy(DeviceAddress to, DeviceAddress from, size_t bytes) {
  return copy_at_once(pointer(to), pointer(from), bytes);
}

EXPORT int cuMemcpyHtoD_v2(DeviceAddress to, const void* from, size_t bytes) { return copy_at_once(pointer(to), from, bytes); }
EXPORT int cuMemcpyDtoH_v2(void* to, DeviceAddress from, size_t bytes) { return copy_at_once(to, pointer(from), bytes); }

EXPORT int cuMemcpyDtoD_v2(DeviceAddress to, DeviceAddress from, size_t bytes) {
  return copy_at_once(pointer(to), pointer(from), bytes);
}

EXPORT int cuMemcpyAsync(DeviceAddress to, DeviceAddress from, size_t bytes, void* stream) {
  return copy_in_stream(pointer(to), pointer(from), bytes, stream);
}

EXPORT int cuMemcpyHtoDAsync_v2(DeviceAddress to, const void* from, size_t bytes, void* stream) {
  return copy_in_stream(pointer(to), from, bytes, stream);
}

EXPORT int cuMemcpyDtoHAsync_v2(void* to, DeviceAddress from, size_t bytes, void* stream) {
  return copy_in_stream(to, pointer(from), bytes, stream);
}

EXPORT int cuMemcpyDtoDAsync_v2(DeviceAddress to, DeviceAddress from, size_t bytes, void* stream) {
  return copy_in_stream(pointer(to), pointer(from), bytes, stream);
}

EXPORT int cuMemsetD8_v2(DeviceAddress to, unsigned char value, size_t count) {
  return fill_in_stream(to, value, count, nullptr);
}

EXPORT int cuMemsetD16_v2(DeviceAddress to, unsigned short value, size_t count) {
  return fill_in_stream(to, value, count, nullptr);
}

EXPORT int cuMemsetD32_v2(DeviceAddress to, unsigned value, size_t count) { return fill_in_stream(to, value, count, nullptr); }

EXPORT int cuMemsetD8Async(DeviceAddress to, unsigned char value, size_t count, void* stream) {
  return fill_in_stream(to, value, count, stream);
}

EXPORT int cuMemsetD16Async(DeviceAddress to, unsigned short value, size_t count, void* stream) {
  return fill_in_stream(to, value, count, stream);
}

EXPORT int cuMemsetD32Async(DeviceAddress to, unsigned value, size_t count, void* stream) {
  return fill_in_stream(to, value, count, stream);
}
