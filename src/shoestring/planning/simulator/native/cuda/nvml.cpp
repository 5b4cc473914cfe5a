// NVML, the library behind nvidia-smi: what pynvml and PyTorch ask of it. It sees all GPUs, whatever CUDA_VISIBLE_DEVICES says,
// and the memory of all processes. A handle is the GPU's number plus one. Layouts: nvml.h of CUDA 12.8 and 13.0.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "configuration.h"
#include "devices.h"
#include "interface.h"
#include "ledger.h"
#include "limits.h"

using namespace simulator;

namespace {

enum Result { success = 0, invalid_argument = 2, not_supported = 3, not_found = 6, insufficient_size = 7 };

// What a GPU at work shows; nothing here is measured.
constexpr unsigned utilization_percent = 100;
constexpr unsigned temperature_celsius = 60;
constexpr unsigned power_milliwatts = 70000;

int gpu_count() { return std::clamp(configuration().gpus, 0, most_gpus); }
bool is_gpu(int gpu) { return gpu >= 0 && gpu < gpu_count(); }
int gpu_of_handle(void* handle) { return static_cast<int>(reinterpret_cast<uintptr_t>(handle)) - 1; }
void* handle_of(int gpu) { return reinterpret_cast<void*>(static_cast<uintptr_t>(gpu) + 1); }

int give_handle(int gpu, int otherwise, void** handle) {
  if (!is_gpu(gpu)) return otherwise;
  *handle = handle_of(gpu);
  return success;
}

int write_text(char* text, unsigned capacity, const std::string& value) {
  if (value.size() >= capacity) return insufficient_size;
  std::memcpy(text, value.c_str(), value.size() + 1);
  return success;
}

struct Memory {
  unsigned long long total, free, used;
};

struct MemoryV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

Memory memory_of(void* handle) {
  const unsigned long long total = configuration().memory;
  const unsigned long long used = std::min<unsigned long long>(Ledger::get().used(gpu_of_handle(handle)), total);
  return {total, total - used, used};
}

struct ProcessV1 {
  unsigned pid;
  unsigned long long bytes;
};

struct ProcessV2 {
  unsigned pid;
  unsigned long long bytes;
  unsigned gpu_instance;
  unsigned compute_instance;
};

void write_process(ProcessV1* to, const ProcessUse& process) { *to = {static_cast<unsigned>(process.pid), process.bytes}; }

void write_process(ProcessV2* to, const ProcessUse& process) {
  constexpr unsigned none = 0xffffffff;
  *to = {static_cast<unsigned>(process.pid), process.bytes, none, none};
}

template <class Process>
int write_processes(void* handle, unsigned* count, Process* to) {
  if (!is_gpu(gpu_of_handle(handle))) return invalid_argument;
  const auto processes = Ledger::get().processes(gpu_of_handle(handle));
  const unsigned room = *count;
  *count = static_cast<unsigned>(processes.size());
  if (processes.size() > room) return insufficient_size;
  for (size_t index = 0; index < processes.size(); ++index) write_process(&to[index], processes[index]);
  return success;
}

struct Utilization {
  unsigned gpu, memory;
};

struct PciInfo {
  char legacy_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char id[32];
};

int write_number(unsigned* to, unsigned value) {
  *to = value;
  return success;
}

}  // namespace

EXPORT int nvmlInit_v2() { return success; }
EXPORT int nvmlInit() { return success; }
EXPORT int nvmlInitWithFlags(unsigned) { return success; }
EXPORT int nvmlShutdown() { return success; }

EXPORT const char* nvmlErrorString(int result) {
  switch (result) {
    case success:
      return "Success";
    case invalid_argument:
      return "Invalid Argument";
    case not_supported:
      return "Not Supported";
    case not_found:
      return "Not Found";
    case insufficient_size:
      return "Insufficient Size";
    default:
      return "Unknown Error";
  }
}

EXPORT int nvmlSystemGetDriverVersion(char* text, unsigned capacity) {
  return write_text(text, capacity, SIMULATED_CUDA_VERSION >= 13000 ? "580.65.06" : "570.86.15");
}

EXPORT int nvmlSystemGetNVMLVersion(char* text, unsigned capacity) {
  return write_text(text, capacity, SIMULATED_CUDA_VERSION >= 13000 ? "13.580.65.06" : "12.570.86.15");
}

EXPORT int nvmlSystemGetCudaDriverVersion(int* version) {
  *version = SIMULATED_CUDA_VERSION;
  return success;
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int* version) { return nvmlSystemGetCudaDriverVersion(version); }

EXPORT int nvmlSystemGetProcessName(unsigned pid, char* text, unsigned capacity) {
  char path[64];
  char target[1024];
  std::snprintf(path, sizeof path, "/proc/%u/exe", pid);
  const ssize_t length = readlink(path, target, sizeof target);
  return length < 0 ? not_found : write_text(text, capacity, std::string(target, static_cast<size_t>(length)));
}

EXPORT int nvmlDeviceGetCount_v2(unsigned* count) { return write_number(count, static_cast<unsigned>(gpu_count())); }
EXPORT int nvmlDeviceGetCount(unsigned* count) { return nvmlDeviceGetCount_v2(count); }

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) {
  return give_handle(static_cast<int>(index), invalid_argument, handle);
}

EXPORT int nvmlDeviceGetHandleByIndex(unsigned index, void** handle) { return nvmlDeviceGetHandleByIndex_v2(index, handle); }

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** handle) {
  return give_handle(gpu_of_pci_id(id), not_found, handle);
}

EXPORT int nvmlDeviceGetHandleByPciBusId(const char* id, void** handle) { return nvmlDeviceGetHandleByPciBusId_v2(id, handle); }

EXPORT int nvmlDeviceGetHandleByUUID(const char* uuid, void** handle) {
  for (int gpu = 0; gpu < gpu_count(); ++gpu) {
    char text[64];
    write_uuid_text(gpu, text, sizeof text);
    if (std::strcmp(text, uuid) == 0) return give_handle(gpu, not_found, handle);
  }
  return not_found;
}

EXPORT int nvmlDeviceGetName(void*, char* text, unsigned capacity) { return write_text(text, capacity, configuration().name); }

EXPORT int nvmlDeviceGetUUID(void* handle, char* text, unsigned capacity) {
  char uuid[64];
  write_uuid_text(gpu_of_handle(handle), uuid, sizeof uuid);
  return write_text(text, capacity, uuid);
}

EXPORT int nvmlDeviceGetIndex(void* handle, unsigned* index) {
  return write_number(index, static_cast<unsigned>(gpu_of_handle(handle)));
}

EXPORT int nvmlDeviceGetMinorNumber(void* handle, unsigned* number) { return nvmlDeviceGetIndex(handle, number); }

EXPORT int nvmlDeviceGetPciInfo_v3(void* handle, PciInfo* info) {
  *info = PciInfo{};
  const int gpu = gpu_of_handle(handle);
  write_pci_id(gpu, info->legacy_id, sizeof info->legacy_id);
  std::snprintf(info->id, sizeof info->id, "00000000:%02X:00.0", pci_bus(gpu));
  info->bus = static_cast<unsigned>(pci_bus(gpu));
  return success;
}

EXPORT int nvmlDeviceGetMemoryInfo(void* handle, Memory* memory) {
  if (!is_gpu(gpu_of_handle(handle))) return invalid_argument;
  *memory = memory_of(handle);
  return success;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(void* handle, MemoryV2* memory) {
  if (!is_gpu(gpu_of_handle(handle))) return invalid_argument;
  const Memory found = memory_of(handle);
  *memory = {memory->version, found.total, 0, found.free, found.used};
  return success;
}

EXPORT int nvmlDeviceGetBAR1MemoryInfo(void*, Memory* memory) {
  constexpr unsigned long long bytes = 256ull << 20;
  *memory = {bytes, bytes, 0};
  return success;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses(void* handle, unsigned* count, ProcessV1* processes) {
  return write_processes(handle, count, processes);
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(void* handle, unsigned* count, ProcessV2* processes) {
  return write_processes(handle, count, processes);
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void* handle, unsigned* count, ProcessV2* processes) {
  return write_processes(handle, count, processes);
}

EXPORT int nvmlDeviceGetGraphicsRunningProcesses(void*, unsigned* count, void*) { return write_number(count, 0); }
EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v2(void*, unsigned* count, void*) { return write_number(count, 0); }
EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(void*, unsigned* count, void*) { return write_number(count, 0); }

EXPORT int nvmlDeviceGetUtilizationRates(void* handle, Utilization* utilization) {
  const bool is_used = Ledger::get().used(gpu_of_handle(handle)) > 0;
  *utilization = is_used ? Utilization{utilization_percent, utilization_percent / 2} : Utilization{0, 0};
  return success;
}

EXPORT int nvmlDeviceGetTemperature(void*, int, unsigned* celsius) { return write_number(celsius, temperature_celsius); }
EXPORT int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) { return write_number(milliwatts, power_milliwatts); }
EXPORT int nvmlDeviceGetEnforcedPowerLimit(void*, unsigned* milliwatts) { return write_number(milliwatts, power_milliwatts); }

EXPORT int nvmlDeviceGetPowerManagementLimit(void*, unsigned* milliwatts) {
  return write_number(milliwatts, power_milliwatts);
}

EXPORT int nvmlDeviceGetPowerManagementDefaultLimit(void*, unsigned* milliwatts) {
  return write_number(milliwatts, power_milliwatts);
}

EXPORT int nvmlDeviceGetPerformanceState(void*, int* state) {
  *state = 0;
  return success;
}

EXPORT int nvmlDeviceGetClockInfo(void*, int type, unsigned* megahertz) {
  constexpr int memory_clock = 2;
  const int khz = type == memory_clock ? limits().memory_clock_khz : limits().clock_khz;
  return write_number(megahertz, static_cast<unsigned>(khz) / 1000);
}

EXPORT int nvmlDeviceGetMaxClockInfo(void* handle, int type, unsigned* megahertz) {
  return nvmlDeviceGetClockInfo(handle, type, megahertz);
}

EXPORT int nvmlDeviceGetCudaComputeCapability(void*, int* major, int* minor) {
  *major = configuration().capability_major;
  *minor = configuration().capability_minor;
  return success;
}

EXPORT int nvmlDeviceGetMemoryBusWidth(void*, unsigned* bits) {
  return write_number(bits, static_cast<unsigned>(limits().memory_bus_bits));
}

EXPORT int nvmlDeviceGetComputeMode(void*, int* mode) {
  *mode = 0;
  return success;
}

EXPORT int nvmlDeviceGetPersistenceMode(void*, int* mode) {
  *mode = 1;
  return success;
}

EXPORT int nvmlDeviceGetEccMode(void*, int* current, int* pending) {
  *current = *pending = 1;
  return success;
}

EXPORT int nvmlDeviceGetP2PStatus(void*, void*, int, int* status) {
  constexpr int chipset_not_supported = 1;
  *status = chipset_not_supported;
  return success;
}

EXPORT int nvmlDeviceGetTopologyCommonAncestor(void*, void*, int* level) {
  constexpr int same_host_bridge = 30;
  *level = same_host_bridge;
  return success;
}

// The beginning of nvmlGpuFabricInfoV_t, the same in its versions 2 and 3.
struct FabricInfo {
  unsigned version;
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state;
};

// The call succeeds on a GPU that is part of no fabric, and the state says so.
EXPORT int nvmlDeviceGetGpuFabricInfoV(void*, FabricInfo* info) {
  constexpr unsigned char state_not_supported = 0;
  std::memset(info->cluster, 0, sizeof info->cluster);
  info->status = not_supported;
  info->clique = 0;
  info->state = state_not_supported;
  return success;
}

// What the simulated GPUs lack.
EXPORT int nvmlDeviceGetFanSpeed(void*, unsigned*) { return not_supported; }
EXPORT int nvmlDeviceGetMigMode(void*, unsigned*, unsigned*) { return not_supported; }
EXPORT int nvmlDeviceGetNvLinkState(void*, unsigned, int*) { return not_supported; }
EXPORT int nvmlDeviceGetNvLinkCapability(void*, unsigned, int, unsigned*) { return not_supported; }
EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, int*) { return not_supported; }
EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) { return not_supported; }
EXPORT int nvmlDeviceGetProcessUtilization(void*, void*, unsigned*, unsigned long long) { return not_supported; }
EXPORT int nvmlDeviceGetTotalEnergyConsumption(void*, unsigned long long*) { return not_supported; }
EXPORT int nvmlDeviceGetCpuAffinity(void*, unsigned, unsigned long*) { return not_supported; }
EXPORT int nvmlDeviceGetSerial(void*, char*, unsigned) { return not_supported; }
