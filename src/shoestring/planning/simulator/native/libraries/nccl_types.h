// Constants of NCCL and what a collective is told.
// After nccl.h of versions 2.21 to 2.30; the configuration of a communicator, whose size differs between them, is not read.
#pragma once

#include <cstddef>

namespace simulator::nccl {

// ncclResult_t
enum Status {
  SUCCESS = 0,
  SYSTEM_ERROR = 2,
  INTERNAL_ERROR = 3,
  INVALID_ARGUMENT = 4,
  INVALID_USAGE = 5,
  REMOTE_ERROR = 6,
};

// ncclDataType_t
enum Type {
  INT8,
  UINT8,
  INT32,
  UINT32,
  INT64,
  UINT64,
  FLOAT16,
  FLOAT32,
  FLOAT64,
  BFLOAT16,
  FLOAT8_E4M3,
  FLOAT8_E5M2,
  TYPES,
};

inline size_t element_bytes(int type) {
  switch (type) {
    case INT8: case UINT8: case FLOAT8_E4M3: case FLOAT8_E5M2: return 1;
    case FLOAT16: case BFLOAT16: return 2;
    case INT64: case UINT64: case FLOAT64: return 8;
    default: return 4;
  }
}

inline bool is_whole_number(int type) { return type <= UINT64; }

// ncclRedOp_t. Higher numbers are operations that a program created.
enum Operator { SUM, PRODUCT, MAXIMUM, MINIMUM, AVERAGE, BUILT_IN_OPERATORS };

// How elements of several ranks become one.
struct Reduction {
  int operation = SUM;
  bool is_scaled = false;
  double scale = 1;                    // each element is multiplied with it first
  const void* device_scale = nullptr;  // where the scale lies, if it is read when the collective runs
};

enum class Kind { all_reduce, broadcast, reduce, all_gather, reduce_scatter, all_to_all, gather, scatter, send, receive };

struct Operation {
  Kind kind = Kind::all_reduce;
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;  // elements, as NCCL counts them for this kind
  int type = FLOAT32;
  Reduction reduction;
  int peer = 0;  // the root, or the other rank
};

inline const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::all_reduce: return "ncclAllReduce";
    case Kind::broadcast: return "ncclBroadcast";
    case Kind::reduce: return "ncclReduce";
    case Kind::all_gather: return "ncclAllGather";
    case Kind::reduce_scatter: return "ncclReduceScatter";
    case Kind::all_to_all: return "ncclAlltoAll";
    case Kind::gather: return "ncclGather";
    case Kind::scatter: return "ncclScatter";
    case Kind::send: return "ncclSend";
    default: return "ncclRecv";
  }
}

}  // namespace simulator::nccl
