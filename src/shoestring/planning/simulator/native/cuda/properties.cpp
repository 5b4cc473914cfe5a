// Properties and attributes of a device.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "configuration.h"
#include "devices.h"
#include "interface.h"
#include "limits.h"
#include "torch_library.h"

using namespace simulator;

namespace {

constexpr int most_blocks_x = 2147483647;
constexpr int most_blocks_yz = 65535;
constexpr int most_pitch = 2147483647;
constexpr int constant_bytes = 65536;
constexpr int texture_alignment = 512;
constexpr int texture_pitch_alignment = 32;
constexpr int copy_engines = 3;

// cudaDeviceProp (driver_types.h). CUDA 13.0 removed the fields of CUDA 12.8 that are marked with 12 and moved what follows;
// textures' and surfaces' sizes, which stay 0, are kept together.
struct DeviceProperties {
  char name[256];
  unsigned char uuid[16];
  char luid[8];
  unsigned luid_device_node_mask;
  size_t memory;
  size_t shared_per_block;
  int registers_per_block;
  int warp_size;
  size_t pitch;
  int threads_per_block;
  int block_dimensions[3];
  int grid_dimensions[3];
#if SIMULATED_CUDA_VERSION < 13000
  int clock_rate;  // 12
#endif
  size_t constant_memory;
  int major;
  int minor;
  size_t texture_alignment;
  size_t texture_pitch_alignment;
#if SIMULATED_CUDA_VERSION < 13000
  int device_overlap;  // 12
#endif
  int multiprocessors;
#if SIMULATED_CUDA_VERSION < 13000
  int kernel_timeout;  // 12
#endif
  int integrated;
  int can_map_host_memory;
#if SIMULATED_CUDA_VERSION < 13000
  int compute_mode;               // 12
  int textures_and_surfaces[40];  // with maxTexture1DLinear
#else
  int textures_and_surfaces[39];
#endif
  size_t surface_alignment;
  int concurrent_kernels;
  int error_correction;
  int pci_bus;
  int pci_device;
  int pci_domain;
  int tesla_driver;
  int copy_engines;
  int unified_addressing;
#if SIMULATED_CUDA_VERSION < 13000
  int memory_clock_rate;  // 12
#endif
  int memory_bus_bits;
  int l2_cache;
  int persisting_l2_cache;
  int threads_per_multiprocessor;
  int stream_priorities;
  int global_l1_cache;
  int local_l1_cache;
  size_t shared_per_multiprocessor;
  int registers_per_multiprocessor;
  int managed_memory;
  int is_multi_gpu_board;
  int multi_gpu_board_group;
  int host_native_atomics;
#if SIMULATED_CUDA_VERSION < 13000
  int single_to_double_ratio;  // 12
#endif
  int pageable_memory_access;
  int concurrent_managed_access;
  int compute_preemption;
  int host_pointer_for_registered_memory;
  int cooperative_launch;
#if SIMULATED_CUDA_VERSION < 13000
  int cooperative_multi_device_launch;  // 12
#endif
  size_t shared_per_block_opt_in;
  int pageable_memory_by_host_page_tables;
  int direct_managed_access;
  int blocks_per_multiprocessor;
  int access_policy_window;
  size_t shared_reserved_per_block;
  int host_register;
  int sparse_arrays;
  int host_register_read_only;
  int timeline_semaphores;
  int memory_pools;
  int gpu_direct;
  unsigned gpu_direct_flush;
  int gpu_direct_ordering;
  unsigned pool_handle_types;
  int deferred_arrays;
  int ipc_events;
  int cluster_launch;
  int unified_functions;
#if SIMULATED_CUDA_VERSION < 13000
  int reserved[63];
#else
  int numa_config;
  int numa_id;
  int mps;
  int host_numa_id;
  unsigned pci_device_id;
  unsigned pci_subsystem_id;
  int host_numa_ipc;
  int reserved[56];
#endif
};
#if SIMULATED_CUDA_VERSION < 13000
static_assert(sizeof(DeviceProperties) == 1032);
#else
static_assert(sizeof(DeviceProperties) == 1008);
#endif

int fill_properties(DeviceProperties* properties, int device) {
  if (const Error failed = initialize()) return report(failed);
  if (!is_device_number(device)) return report(error::invalid_device);
  load_torch_library();  // PyTorch asks for the properties before it uses a device
  const Configuration& gpu = configuration();
  *properties = DeviceProperties{};
  std::snprintf(properties->name, sizeof properties->name, "%s", gpu.name.c_str());
  write_uuid(gpu_of(device), properties->uuid);
  properties->memory = gpu.memory;
  properties->shared_per_block = shared_per_block;
  properties->registers_per_block = registers_per_multiprocessor;
  properties->warp_size = warp;
  properties->pitch = most_pitch;
  properties->threads_per_block = threads_per_block;
  properties->block_dimensions[0] = properties->block_dimensions[1] = threads_per_block;
  properties->block_dimensions[2] = 64;
  properties->grid_dimensions[0] = most_blocks_x;
  properties->grid_dimensions[1] = properties->grid_dimensions[2] = most_blocks_yz;
#if SIMULATED_CUDA_VERSION < 13000
  properties->clock_rate = limits().clock_khz;
  properties->memory_clock_rate = limits().memory_clock_khz;
  properties->device_overlap = 1;
  properties->cooperative_multi_device_launch = 1;
  properties->single_to_double_ratio = 32;
#endif
  properties->constant_memory = constant_bytes;
  properties->major = gpu.capability_major;
  properties->minor = gpu.capability_minor;
  properties->texture_alignment = texture_alignment;
  properties->texture_pitch_alignment = texture_pitch_alignment;
  properties->multiprocessors = gpu.multiprocessors;
  properties->can_map_host_memory = 1;
  properties->surface_alignment = texture_alignment;
  properties->concurrent_kernels = 1;
  properties->error_correction = 1;
  properties->pci_bus = pci_bus(gpu_of(device));
  properties->copy_engines = copy_engines;
  properties->unified_addressing = 1;
  properties->memory_bus_bits = limits().memory_bus_bits;
  properties->l2_cache = limits().l2_cache;
  properties->threads_per_multiprocessor = limits().threads_per_multiprocessor;
  properties->stream_priorities = 1;
  properties->global_l1_cache = properties->local_l1_cache = 1;
  properties->shared_per_multiprocessor = limits().shared_per_multiprocessor;
  properties->registers_per_multiprocessor = registers_per_multiprocessor;
  properties->managed_memory = 1;
  properties->concurrent_managed_access = 1;
  properties->compute_preemption = 1;
  properties->host_pointer_for_registered_memory = 1;
  properties->cooperative_launch = 1;
  properties->shared_per_block_opt_in = limits().shared_per_block_opt_in;
  properties->blocks_per_multiprocessor = limits().blocks_per_multiprocessor;
  properties->shared_reserved_per_block = limits().shared_reserved_per_block;
  properties->host_register = 1;
  properties->memory_pools = 1;
  properties->cluster_launch = gpu.capability_major >= 9;
  return error::success;
}

// Numbers of cudaDeviceAttr and CUdevice_attribute, which are the same (driver_types.h, cuda.h). What is not listed, such as
// textures, fabric handles and multicast, is not offered: 0.
int attribute_value(int attribute, int device) {
  const Configuration& gpu = configuration();
  switch (attribute) {
    case 1: return threads_per_block;
    case 2:
    case 3: return threads_per_block;
    case 4: return 64;
    case 5: return most_blocks_x;
    case 6:
    case 7: return most_blocks_yz;
    case 8: return shared_per_block;
    case 9: return constant_bytes;
    case 10: return warp;
    case 11: return most_pitch;
    case 12: return registers_per_multiprocessor;
    case 13: return limits().clock_khz;
    case 14: return texture_alignment;
    case 15: return 1;  // copies overlap with kernels
    case 16: return gpu.multiprocessors;
    case 19: return 1;  // host memory can be mapped
    case 30: return texture_alignment;
    case 31: return 1;  // concurrent kernels
    case 32: return 1;  // error correction
    case 33: return pci_bus(gpu_of(device));
    case 36: return limits().memory_clock_khz;
    case 37: return limits().memory_bus_bits;
    case 38: return limits().l2_cache;
    case 39: return limits().threads_per_multiprocessor;
    case 40: return copy_engines;
    case 41: return 1;  // unified addressing
    case 51: return texture_pitch_alignment;
    case 75: return gpu.capability_major;
    case 76: return gpu.capability_minor;
    case 78: return 1;  // stream priorities
    case 79:
    case 80: return 1;  // L1 caches
    case 81: return limits().shared_per_multiprocessor;
    case 82: return registers_per_multiprocessor;
    case 83: return 1;  // managed memory
    case 87: return 32;  // ratio of single to double precision
    case 89: return 1;   // concurrent managed access
    case 90: return 1;   // preemption
    case 91: return 1;   // registered memory has the host's address
    case 95:
    case 96: return 1;  // cooperative launch
    case 97: return limits().shared_per_block_opt_in;
    case 98: return 1;
    case 99: return 1;   // host memory can be registered
    case 102: return 1;  // virtual memory management
    case 106: return limits().blocks_per_multiprocessor;
    case 111: return limits().shared_reserved_per_block;
    case 115: return 1;  // memory pools
    case 120: return gpu.capability_major >= 9;  // clusters
    case 126: return 1;  // memory synchronization domains
    case 134: return -1;  // NUMA node of the host
    default: return 0;
  }
}

int device_attribute(int* value, int attribute, int device) {
  if (const Error failed = initialize()) return failed;
  if (!is_device_number(device)) return error::invalid_device;
  *value = attribute_value(attribute, device);
  return error::success;
}

}  // namespace

#if SIMULATED_CUDA_VERSION >= 13000
EXPORT int cudaGetDeviceProperties(DeviceProperties* properties, int device) { return fill_properties(properties, device); }
#else
EXPORT int cudaGetDeviceProperties_v2(DeviceProperties* properties, int device) { return fill_properties(properties, device); }
#endif

EXPORT int cudaDeviceGetAttribute(int* value, int attribute, int device) {
  return report(device_attribute(value, attribute, device));
}

EXPORT int cuDeviceGetAttribute(int* value, int attribute, int device) { return device_attribute(value, attribute, device); }
