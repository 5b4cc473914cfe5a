// The driver's management of virtual memory, from which PyTorch's expandable segments are made: addresses are reserved, device
// memory is created, mapped there, and made accessible.
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>

#include "arena.h"
#include "devices.h"
#include "interface.h"
#include "memory.h"

using namespace simulator;

using DeviceAddress = uintptr_t;

namespace {

// CUmemAllocationProp (cuda.h, CUDA 12.8 and 13.0).
struct AllocationProperties {
  int type;
  int handle_types;
  int location_type;
  int location;
  void* windows_data;
  unsigned char flags[8];
};

// Device memory without an address (CUmemGenericAllocationHandle). The handle and each mapping hold it.
struct PhysicalMemory {
  size_t bytes;
  int device;
  int holders;
  AllocationProperties properties;
};

struct Mapping {
  size_t bytes;
  PhysicalMemory* memory;
};

struct State {
  std::mutex mutex;
  std::map<DeviceAddress, Mapping> mappings;
};

State& state() {
  static auto* const instance = new State;
  return *instance;
}

void* pointer(DeviceAddress address) { return reinterpret_cast<void*>(address); }

void drop_unlocked(PhysicalMemory* memory) {
  if (--memory->holders > 0) return;
  give_device_bytes(memory->device, memory->bytes);
  delete memory;
}

}  // namespace

EXPORT int cuMemGetAllocationGranularity(size_t* bytes, const AllocationProperties*, int) {
  *bytes = granule;
  return error::success;
}

EXPORT int cuMemAddressReserve(DeviceAddress* address, size_t bytes, size_t, DeviceAddress wanted, unsigned long long) {
  if (const Error failed = enter_current()) return failed;
  if (bytes == 0 || bytes % granule != 0) return error::invalid_value;
  void* reserved = nullptr;
  if (wanted != 0 && Arena::get().reserve_at(pointer(wanted), bytes)) reserved = pointer(wanted);
  if (reserved == nullptr) reserved = Arena::get().reserve(bytes);
  if (reserved == nullptr) return error::out_of_memory;
  note_allocation(reserved, bytes, current_device(), MemoryKind::reserved);
  *address = reinterpret_cast<DeviceAddress>(reserved);
  return error::success;
}

EXPORT int cuMemAddressFree(DeviceAddress address, size_t bytes) {
  if (!forget_allocation(pointer(address))) return error::invalid_value;
  Arena::get().release(pointer(address), bytes);
  return error::success;
}

EXPORT int cuMemCreate(uint64_t* handle, size_t bytes, const AllocationProperties* properties, unsigned long long) {
  constexpr int on_device = 1;  // CU_MEM_LOCATION_TYPE_DEVICE
  if (properties->location_type != on_device) return error::not_supported;
  // PyTorch asks for memory that it could give to another process as a file, though it seldom does; only doing so is refused.
  constexpr int as_file = 1;  // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
  if ((properties->handle_types & ~as_file) != 0) return error::not_supported;
  const int device = properties->location;
  if (const Error failed = enter(device)) return failed;
  if (bytes == 0 || bytes % granule != 0) return error::invalid_value;
  if (fails_by_request(bytes)) return error::out_of_memory;
  if (const Error failed = take_device_bytes(device, bytes)) return failed;
  *handle = reinterpret_cast<uint64_t>(new PhysicalMemory{bytes, device, 1, *properties});
  return error::success;
}

EXPORT int cuMemRelease(uint64_t handle) {
  std::lock_guard<std::mutex> guard(state().mutex);
  drop_unlocked(reinterpret_cast<PhysicalMemory*>(handle));
  return error::success;
}

EXPORT int cuMemMap(DeviceAddress address, size_t bytes, size_t, uint64_t handle, unsigned long long) {
  auto* memory = reinterpret_cast<PhysicalMemory*>(handle);
  if (bytes > memory->bytes) return error::invalid_value;
  std::lock_guard<std::mutex> guard(state().mutex);
  if (!state().mappings.emplace(address, Mapping{bytes, memory}).second) return error::invalid_value;
  ++memory->holders;
  return error::success;
}

EXPORT int cuMemUnmap(DeviceAddress address, size_t bytes) {
  std::lock_guard<std::mutex> guard(state().mutex);
  auto& mappings = state().mappings;
  for (auto mapping = mappings.lower_bound(address); mapping != mappings.end() && mapping->first < address + bytes;) {
    drop_unlocked(mapping->second.memory);
    mapping = mappings.erase(mapping);
  }
  Arena::get().drop_pages(pointer(address), bytes);
  return error::success;
}

EXPORT int cuMemSetAccess(DeviceAddress address, size_t bytes, const void*, size_t) {
  return Arena::get().open(pointer(address), bytes) ? error::success : error::out_of_memory;
}

EXPORT int cuMemGetAccess(unsigned long long* flags, const void*, DeviceAddress) {
  *flags = 3;  // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
  return error::success;
}

EXPORT int cuMemRetainAllocationHandle(uint64_t* handle, void* address) {
  std::lock_guard<std::mutex> guard(state().mutex);
  const auto value = reinterpret_cast<DeviceAddress>(address);
  auto mapping = state().mappings.upper_bound(value);
  if (mapping == state().mappings.begin()) return error::invalid_value;
  --mapping;
  if (value >= mapping->first + mapping->second.bytes) return error::invalid_value;
  ++mapping->second.memory->holders;
  *handle = reinterpret_cast<uint64_t>(mapping->second.memory);
  return error::success;
}

EXPORT int cuMemGetAllocationPropertiesFromHandle(AllocationProperties* properties, uint64_t handle) {
  *properties = reinterpret_cast<PhysicalMemory*>(handle)->properties;
  return error::success;
}

EXPORT int cuMemExportToShareableHandle() {
  simulator_missing("cuMemExportToShareableHandle");
  return error::not_supported;
}

EXPORT int cuMemImportFromShareableHandle() {
  simulator_missing("cuMemImportFromShareableHandle");
  return error::not_supported;
}
