// Copies and fills of the runtime. The kind of a copy is not needed: an address says whether it is on a device.
#include "copies.h"
#include "devices.h"
#include "interface.h"
#include "streams.h"

using namespace simulator;

namespace {

Error copy_at_once(void* to, const void* from, size_t bytes) {
  if (const Error failed = enter_current()) return failed;
  if (const Error refused = refuse_while_capturing()) return refused;
  copy_memory(to, from, bytes);
  return error::success;
}

Error copy_in_stream(void* to, const void* from, size_t bytes, void* stream) {
  if (const Error failed = enter_current()) return failed;
  submit(stream, NodeKind::copy, [=] { copy_memory(to, from, bytes); });
  return error::success;
}

struct PitchedAddress {  // cudaPitchedPtr (driver_types.h)
  void* address;
  size_t pitch;
  size_t width;
  size_t height;
};

struct Position {  // cudaPos: x in bytes without arrays
  size_t x, y, z;
};

struct Extent {  // cudaExtent
  size_t width, height, depth;
};

struct Copy3d {  // cudaMemcpy3DParms
  void* from_array;
  Position from_position;
  PitchedAddress from;
  void* to_array;
  Position to_position;
  PitchedAddress to;
  Extent extent;
  int kind;
};

struct PeerCopy3d {  // cudaMemcpy3DPeerParms
  void* from_array;
  Position from_position;
  PitchedAddress from;
  int from_device;
  void* to_array;
  Position to_position;
  PitchedAddress to;
  int to_device;
  Extent extent;
};

char* slice(const PitchedAddress& memory, const Position& position, size_t layer) {
  const size_t row = (position.z + layer) * memory.height + position.y;
  return static_cast<char*>(memory.address) + row * memory.pitch + position.x;
}

template <class Parameters>
Error copy_3d(const Parameters& copy, void* stream, const char* function) {
  if (const Error failed = enter_current()) return failed;
  if (copy.from_array != nullptr || copy.to_array != nullptr) return not_simulated(function);  // textures' arrays
  submit(stream, NodeKind::copy, [copy] {
    for (size_t layer = 0; layer < copy.extent.depth; ++layer)
      copy_rows(slice(copy.to, copy.to_position, layer), copy.to.pitch, slice(copy.from, copy.from_position, layer),
                copy.from.pitch, copy.extent.width, copy.extent.height);
  });
  return error::success;
}

Error copy_batch(void* const* to, void* const* from, const size_t* bytes, size_t count, void* stream) {
  for (size_t index = 0; index < count; ++index)
    if (const Error failed = copy_in_stream(to[index], from[index], bytes[index], stream)) return failed;
  return error::success;
}

}  // namespace

EXPORT int cudaMemcpy(void* to, const void* from, size_t bytes, int) { return report(copy_at_once(to, from, bytes)); }

EXPORT int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, void* stream) {
  return report(copy_in_stream(to, from, bytes, stream));
}

EXPORT int cudaMemcpyPeer(void* to, int, const void* from, int, size_t bytes) {
  return report(copy_at_once(to, from, bytes));
}

EXPORT int cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, void* stream) {
  return report(copy_in_stream(to, from, bytes, stream));
}

EXPORT int cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, int,
                             void* stream) {
  if (const Error failed = enter_current()) return report(failed);
  if (width > to_pitch || width > from_pitch) return report(error::invalid_value);
  submit(stream, NodeKind::copy, [=] { copy_rows(to, to_pitch, from, from_pitch, width, height); });
  return error::success;
}

EXPORT int cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, int kind) {
  if (const Error refused = refuse_while_capturing()) return report(refused);
  return cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, nullptr);
}

EXPORT int cudaMemcpy3D(const Copy3d* copy) { return report(copy_3d(*copy, nullptr, "cudaMemcpy3D")); }
EXPORT int cudaMemcpy3DAsync(const Copy3d* copy, void* stream) { return report(copy_3d(*copy, stream, "cudaMemcpy3DAsync")); }
EXPORT int cudaMemcpy3DPeer(const PeerCopy3d* copy) { return report(copy_3d(*copy, nullptr, "cudaMemcpy3DPeer")); }
EXPORT int cudaMemcpy3DPeerAsync(const PeerCopy3d* copy, void* stream) {
  return report(copy_3d(*copy, stream, "cudaMemcpy3DPeerAsync"));
}

#if SIMULATED_CUDA_VERSION >= 13000
EXPORT int cudaMemcpyBatchAsync(void* const* to, void* const* from, const size_t* bytes, size_t count, void*, size_t*, size_t,
                                void* stream) {
  return report(copy_batch(to, from, bytes, count, stream));
}
#else
EXPORT int cudaMemcpyBatchAsync(void* const* to, void* const* from, const size_t* bytes, size_t count, void*, size_t*, size_t,
                                size_t* failed_index, void* stream) {
  if (failed_index != nullptr) *failed_index = 0;
  return report(copy_batch(to, from, bytes, count, stream));
}
#endif

EXPORT int cudaMemsetAsync(void* to, int value, size_t bytes, void* stream) {
  if (const Error failed = enter_current()) return report(failed);
  const auto byte = static_cast<unsigned char>(value);
  submit(stream, NodeKind::fill, [=] { fill_memory(to, &byte, 1, bytes); });
  return error::success;
}

EXPORT int cudaMemset(void* to, int value, size_t bytes) {
  if (const Error refused = refuse_while_capturing()) return report(refused);
  return cudaMemsetAsync(to, value, bytes, nullptr);
}

EXPORT int cudaMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height, void* stream) {
  if (const Error failed = enter_current()) return report(failed);
  const auto byte = static_cast<unsigned char>(value);
  submit(stream, NodeKind::fill, [=] {
    for (size_t row = 0; row < height; ++row) fill_memory(static_cast<char*>(to) + row * pitch, &byte, 1, width);
  });
  return error::success;
}

EXPORT int cudaMemset2D(void* to, size_t pitch, int value, size_t width, size_t height) {
  return cudaMemset2DAsync(to, pitch, value, width, height, nullptr);
}
