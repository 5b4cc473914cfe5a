#include "fatbinary.h"

#include <cstddef>
#include <cstdint>

namespace simulator {
namespace {

// fatbinary_section.h of CUDA 12.8 and 13.0: what __cudaRegisterFatBinary gets.
struct Wrapper {
  uint32_t magic;
  uint32_t version;
  const unsigned char* data;
  void* file_or_binaries;
};
constexpr uint32_t wrapper_magic = 0x466243b1;

// The container has no public header. By public descriptions it is a header and then
// entries, each with a header that names kind, sizes and architecture.
struct ContainerHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t bytes;  // of all entries
};
constexpr uint32_t container_magic = 0xba55ed50;

struct EntryHeader {
  uint16_t kind;
  uint16_t version;
  uint32_t header_bytes;
  uint64_t bytes;
  uint32_t compressed_bytes;
  uint32_t options_offset;
  uint16_t minor;
  uint16_t major;
  uint32_t architecture;
};
constexpr uint16_t kind_ptx = 1;
constexpr uint16_t kind_machine_code = 2;

}  // namespace

KernelImage choose_image(const void* fat_binary, int capability) {
  const KernelImage suits{true, capability, capability};
  const auto* wrapper = static_cast<const Wrapper*>(fat_binary);
  if (wrapper == nullptr || wrapper->magic != wrapper_magic || wrapper->data == nullptr) return suits;
  const auto* container = reinterpret_cast<const ContainerHeader*>(wrapper->data);
  if (container->magic != container_magic) return suits;

  int machine_code = 0;
  int ptx = 0;
  const unsigned char* entry_begin = wrapper->data + container->header_bytes;
  const unsigned char* const end = entry_begin + container->bytes;
  while (entry_begin + sizeof(EntryHeader) <= end) {
    const auto* entry = reinterpret_cast<const EntryHeader*>(entry_begin);
    const size_t entry_bytes = entry->header_bytes + entry->bytes;
    if (entry_bytes < sizeof(EntryHeader)) return suits;
    const int architecture = static_cast<int>(entry->architecture);
    const bool is_usable = architecture <= capability;
    if (is_usable && entry->kind == kind_machine_code && architecture / 10 == capability / 10 && architecture > machine_code)
      machine_code = architecture;
    if (is_usable && entry->kind == kind_ptx && architecture > ptx) ptx = architecture;
    entry_begin += entry_bytes;
  }
  if (machine_code > 0) return {true, machine_code, machine_code};
  if (ptx > 0) return {true, capability, ptx};
  return {};
}

}  // namespace simulator
