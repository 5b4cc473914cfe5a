// NCCL over the memory of one machine, for the ranks of a rehearsal.
//
// A communicator is never freed: other threads of a program still ask for its errors after it was destroyed, and captured graphs
// refer
// to it. Its shared memory goes with the last process.
//
// Declarations after nccl.h of versions 2.21 to 2.30.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <vector>

#include "interface.h"
#include "libraries/nccl_group.h"
#include "libraries/nccl_reduction.h"

#ifndef SIMULATED_NCCL_VERSION
#define SIMULATED_NCCL_VERSION (SIMULATED_CUDA_VERSION >= 13000 ? 22907 : 22705)
#endif

// The runtime's (cuda_runtime_api.h).
extern "C" int cudaGetDevice(int* device);
extern "C" int cudaMalloc(void** place, size_t bytes);
extern "C" int cudaFree(void* memory);

using namespace simulator::nccl;

namespace {

// ncclUniqueId
struct Identifier {
  char bytes[128];
};

Ticket ticket_of(const Identifier& identifier) {
  Ticket ticket;
  std::memcpy(&ticket, identifier.bytes, sizeof ticket);
  return ticket;
}

int current_device() {
  int device = 0;
  cudaGetDevice(&device);
  return device;
}

Status initialize(Communicator** place, int ranks, const Identifier& identifier, int rank, int device) {
  if (place == nullptr || ranks < 1 || rank < 0 || rank >= ranks) return INVALID_ARGUMENT;
  if (ranks > MAXIMUM_RANKS) {
    set_last_message("the simulated NCCL has at most 256 ranks");
    return INVALID_USAGE;
  }
  *place = new Communicator(ticket_of(identifier), ranks, rank, device);
  return submit_join(**place);
}

// Operations that programs created. A number stays taken: the operation may be destroyed before a captured graph runs.
class CreatedReductions {
 public:
  int add(const Reduction& reduction) {
    const std::lock_guard<std::mutex> lock(lock_);
    reductions_.push_back(reduction);
    return BUILT_IN_OPERATORS + static_cast<int>(reductions_.size()) - 1;
  }

  bool find(int operation, Reduction& reduction) {
    if (operation >= 0 && operation < BUILT_IN_OPERATORS) {
      reduction.operation = operation;
      return true;
    }
    const std::lock_guard<std::mutex> lock(lock_);
    const auto index = static_cast<size_t>(operation) - BUILT_IN_OPERATORS;
    if (operation < 0 || index >= reductions_.size()) return false;
    reduction = reductions_[index];
    return true;
  }

 private:
  std::mutex lock_;
  std::vector<Reduction> reductions_;
};

CreatedReductions& created_reductions() {
  static auto* const created = new CreatedReductions();
  return *created;
}

Status check(const Communicator* communicator, int type, int peer) {
  if (communicator == nullptr || type < 0 || type >= TYPES || peer < 0 || peer >= communicator->ranks()) return INVALID_ARGUMENT;
  return SUCCESS;
}

Status move(Kind kind, const void* input, void* output, size_t count, int type, int peer, Communicator* communicator,
    void* stream) {
  if (const Status status = check(communicator, type, peer); status != SUCCESS) return status;
  return submit(*communicator, {kind, input, output, count, type, {}, peer}, stream);
}

Status combine(Kind kind, const void* input, void* output, size_t count, int type, int operation, int root,
    Communicator* communicator,
               void* stream) {
  if (const Status status = check(communicator, type, root); status != SUCCESS) return status;
  Reduction reduction;
  if (!can_reduce(type) || !created_reductions().find(operation, reduction)) {
    set_last_message("the simulated NCCL cannot reduce this type with this operation");
    return INVALID_ARGUMENT;
  }
  return submit(*communicator, {kind, input, output, count, type, reduction, root}, stream);
}

Status refuse(const char* function) {
  simulator_missing(function);
  set_last_message(std::string(function) + " is not simulated");
  return INVALID_USAGE;
}

}  // namespace

EXPORT int ncclGetVersion(int* version) {
  *version = SIMULATED_NCCL_VERSION;
  return SUCCESS;
}

EXPORT const char* ncclGetErrorString(int status) {
  switch (status) {
    case SUCCESS: return "no error";
    case SYSTEM_ERROR: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case INVALID_ARGUMENT: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case INVALID_USAGE: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case REMOTE_ERROR: return "remote process exited or there was a network error";
    case 7: return "NCCL operation in progress";
    default: return "internal error - please report this issue to the NCCL developers";
  }
}

EXPORT const char* ncclGetLastError(Communicator*) { return last_message(); }

// ---- communicators

EXPORT int ncclGetUniqueId(Identifier* identifier) {
  Ticket ticket;
  if (!create_segment(ticket)) return SYSTEM_ERROR;
  std::memset(identifier, 0, sizeof *identifier);
  std::memcpy(identifier->bytes, &ticket, sizeof ticket);
  return SUCCESS;
}

EXPORT int ncclCommInitRank(Communicator** place, int ranks, Identifier identifier, int rank) {
  return initialize(place, ranks, identifier, rank, current_device());
}

EXPORT int ncclCommInitRankConfig(Communicator** place, int ranks, Identifier identifier, int rank, void*) {
  return initialize(place, ranks, identifier, rank, current_device());
}

EXPORT int ncclCommInitRankScalable(Communicator** place, int ranks, int rank, int identifiers, Identifier* identifier, void*) {
  if (identifiers < 1) return INVALID_ARGUMENT;
  return initialize(place, ranks, identifier[0], rank, current_device());
}

EXPORT int ncclCommInitAll(Communicator** places, int ranks, const int* devices) {
  Identifier identifier;
  if (const int status = ncclGetUniqueId(&identifier); status != SUCCESS) return status;
  start_group();
  for (int rank = 0; rank < ranks; ++rank) initialize(&places[rank], ranks, identifier, rank,
      devices != nullptr ? devices[rank] : rank);
  return end_group();
}

EXPORT int ncclCommSplit(Communicator* communicator, int color, int key, Communicator** place, void*) {
  if (communicator == nullptr || place == nullptr) return INVALID_ARGUMENT;
  {
    const std::lock_guard<std::mutex> lock(communicator->running());
    const Status status = communicator->error() != SUCCESS ? communicator->error() : communicator->split(color, key, *place);
    if (status != SUCCESS) {
      set_last_message(communicator->message());
      return status;
    }
  }
  return *place != nullptr ? submit_join(**place) : SUCCESS;
}

EXPORT int ncclCommShrink(Communicator*, int*, int, Communicator**, void*, int) { return refuse("ncclCommShrink"); }

EXPORT int ncclCommFinalize(Communicator*) { return SUCCESS; }

EXPORT int ncclCommDestroy(Communicator* communicator) {
  if (communicator != nullptr) communicator->leave();
  return SUCCESS;
}

EXPORT int ncclCommAbort(Communicator* communicator) {
  if (communicator != nullptr) communicator->abort();
  return SUCCESS;
}

EXPORT int ncclCommCount(const Communicator* communicator, int* ranks) {
  if (communicator == nullptr) return INVALID_ARGUMENT;
  *ranks = communicator->ranks();
  return SUCCESS;
}

EXPORT int ncclCommUserRank(const Communicator* communicator, int* rank) {
  if (communicator == nullptr) return INVALID_ARGUMENT;
  *rank = communicator->rank();
  return SUCCESS;
}

EXPORT int ncclCommCuDevice(const Communicator* communicator, int* device) {
  if (communicator == nullptr) return INVALID_ARGUMENT;
  *device = communicator->device();
  return SUCCESS;
}

EXPORT int ncclCommGetAsyncError(Communicator* communicator, int* status) {
  if (communicator == nullptr) return INVALID_ARGUMENT;
  *status = communicator->error();
  return SUCCESS;
}

// ---- memory

EXPORT int ncclMemAlloc(void** place, size_t bytes) { return cudaMalloc(place, bytes) == 0 ? SUCCESS : 1; }  // 1: an error of CUDA
EXPORT int ncclMemFree(void* memory) { return cudaFree(memory) == 0 ? SUCCESS : 1; }

// Registration is an optimization. Windows are not: kernels reach other ranks' memory through them.
EXPORT int ncclCommRegister(const Communicator*, void* buffer, size_t, void** handle) {
  *handle = buffer;
  return SUCCESS;
}
EXPORT int ncclCommDeregister(const Communicator*, void*) { return SUCCESS; }
EXPORT int ncclCommWindowRegister(Communicator*, void*, size_t, void**, int) { return refuse("ncclCommWindowRegister"); }
EXPORT int ncclCommWindowDeregister(Communicator*, void*) { return refuse("ncclCommWindowDeregister"); }

// ---- created reductions

EXPORT int ncclRedOpCreatePreMulSum(int* operation, void* scale, int type, int residence, Communicator*) {
  if (!can_reduce(type)) return INVALID_ARGUMENT;
  Reduction reduction;
  reduction.is_scaled = true;
  if (residence == 0) {  // ncclScalarDevice: read when the collective runs
    reduction.device_scale = scale;
  } else {
    reduction.scale = read_number(scale, type);
  }
  *operation = created_reductions().add(reduction);
  return SUCCESS;
}

EXPORT int ncclRedOpDestroy(int, Communicator*) { return SUCCESS; }

// ---- collectives

EXPORT int ncclAllReduce(const void* input, void* output, size_t count, int type, int operation, Communicator* communicator,
                         void* stream) {
  return combine(Kind::all_reduce, input, output, count, type, operation, 0, communicator, stream);
}

EXPORT int ncclReduce(const void* input, void* output, size_t count, int type, int operation, int root, Communicator* communicator,
                      void* stream) {
  return combine(Kind::reduce, input, output, count, type, operation, root, communicator, stream);
}

EXPORT int ncclReduceScatter(const void* input, void* output, size_t count, int type, int operation, Communicator* communicator,
                             void* stream) {
  return combine(Kind::reduce_scatter, input, output, count, type, operation, 0, communicator, stream);
}

EXPORT int ncclBroadcast(const void* input, void* output, size_t count, int type, int root, Communicator* communicator,
                         void* stream) {
  return move(Kind::broadcast, input, output, count, type, root, communicator, stream);
}

EXPORT int ncclBcast(void* buffer, size_t count, int type, int root, Communicator* communicator, void* stream) {
  return move(Kind::broadcast, buffer, buffer, count, type, root, communicator, stream);
}

EXPORT int ncclAllGather(const void* input, void* output, size_t count, int type, Communicator* communicator, void* stream) {
  return move(Kind::all_gather, input, output, count, type, 0, communicator, stream);
}

EXPORT int ncclAlltoAll(const void* input, void* output, size_t count, int type, Communicator* communicator, void* stream) {
  return move(Kind::all_to_all, input, output, count, type, 0, communicator, stream);
}

EXPORT int ncclGather(const void* input, void* output, size_t count, int type, int root, Communicator* communicator, void* stream) {
  return move(Kind::gather, input, output, count, type, root, communicator, stream);
}

EXPORT int ncclScatter(const void* input, void* output, size_t count, int type, int root, Communicator* communicator,
                       void* stream) {
  return move(Kind::scatter, input, output, count, type, root, communicator, stream);
}

EXPORT int ncclSend(const void* input, size_t count, int type, int peer, Communicator* communicator, void* stream) {
  return move(Kind::send, input, nullptr, count, type, peer, communicator, stream);
}

EXPORT int ncclRecv(void* output, size_t count, int type, int peer, Communicator* communicator, void* stream) {
  return move(Kind::receive, nullptr, output, count, type, peer, communicator, stream);
}

// ---- groups

EXPORT int ncclGroupStart() {
  start_group();
  return SUCCESS;
}

EXPORT int ncclGroupEnd() { return end_group(); }
EXPORT int ncclGroupSimulateEnd(void*) { return refuse("ncclGroupSimulateEnd"); }
