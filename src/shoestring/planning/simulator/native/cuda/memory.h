// Memory that the simulated CUDA gave out or was told about.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "errors.h"

namespace simulator {

enum class MemoryKind { device, host, registered_host, managed, reserved, pool };

struct Allocation {
  uintptr_t begin;
  size_t bytes;
  int device;
  MemoryKind kind;
  uint64_t id;  // unique in this process

  bool is_host() const { return kind == MemoryKind::host || kind == MemoryKind::registered_host; }
};

// Counted device memory with CUDA's rounding: 2 MiB, which requests of at most 1 MiB share.
Error allocate_device(void** address, size_t bytes, int device);
Error free_device(void* address);

// Device memory that is not counted, for what belongs to a context, such as the variables of a module.
void* allocate_uncounted(size_t bytes, int device);

Error allocate_managed(void** address, size_t bytes, int device);

Error allocate_host(void** address, size_t bytes, int device);
Error free_host(void* address);
Error register_host(void* address, size_t bytes, int device);
Error unregister_host(void* address);

// Entries for memory that others manage: reserved addresses and allocations of pools.
void note_allocation(void* address, size_t bytes, int device, MemoryKind kind);
bool forget_allocation(void* address);

// The allocation that an address lies in.
std::optional<Allocation> find_allocation(const void* address);

// Whether the next allocation of a device segment is to fail (`simulator_fail_at`). PyTorch asks a second time for the
// same size, after it emptied its cache, so such a repetition fails as well.
bool fails_by_request(size_t bytes);

// Takes device memory that nothing frees singly, as pools and virtual memory do.
Error take_device_bytes(int device, size_t bytes);
void give_device_bytes(int device, size_t bytes);

void free_all_of_device(int device);

}  // namespace simulator
