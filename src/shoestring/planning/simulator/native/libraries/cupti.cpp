// CUPTI: PyTorch's profiler starts and stops, and finds no activity of a GPU, since nothing runs on one.
// Declarations after cupti_activity.h, cupti_callbacks.h and cupti_result.h of CUDA 13.0.
#include <cstddef>
#include <cstdint>

#include "interface.h"
#include "libraries/library.h"

namespace {

constexpr int SUCCESS = 0;
constexpr int MAX_LIMIT_REACHED = 12;  // CUPTI_ERROR_MAX_LIMIT_REACHED: no more records
constexpr int QUEUE_EMPTY = 18;        // CUPTI_ERROR_QUEUE_EMPTY

// Identifiers are pushed and popped on a stack of each thread and kind; only the depth matters without records.
thread_local uint64_t last_identifier = 0;
thread_local int identifiers = 0;

}  // namespace

// CUPTI_API_VERSION: the toolkit's version since 12.6, with a digit for updates; 12.5 and earlier count up to 24.
EXPORT int cuptiGetVersion(uint32_t* version) {
  *version = SIMULATED_CUDA_VERSION >= 12060 ? SIMULATED_CUDA_VERSION * 10 : 22;
  return SUCCESS;
}

EXPORT int cuptiGetResultString(int result, const char** text) {
  *text = result == SUCCESS ? "CUPTI_SUCCESS" : "not supported by the simulated CUPTI";
  return SUCCESS;
}

EXPORT int cuptiGetTimestamp(uint64_t* time) {
  *time = 0;
  return SUCCESS;
}

EXPORT int cuptiSubscribe(void** subscriber, void*, void*) { return simulator::give(subscriber); }
EXPORT int cuptiUnsubscribe(void* subscriber) { return simulator::take_back(subscriber); }
EXPORT int cuptiEnableCallback(uint32_t, void*, int, uint32_t) { return SUCCESS; }
EXPORT int cuptiEnableDomain(uint32_t, void*, int) { return SUCCESS; }
EXPORT int cuptiGetCallbackName(int, uint32_t, const char** name) {
  *name = "unknown";
  return SUCCESS;
}

EXPORT int cuptiActivityRegisterCallbacks(void*, void*) { return SUCCESS; }
EXPORT int cuptiActivityRegisterTimestampCallback(void*) { return SUCCESS; }
EXPORT int cuptiActivityEnable(int) { return SUCCESS; }
EXPORT int cuptiActivityDisable(int) { return SUCCESS; }
EXPORT int cuptiActivityEnableRuntimeApi(uint32_t, uint8_t) { return SUCCESS; }
EXPORT int cuptiActivityEnableDriverApi(uint32_t, uint8_t) { return SUCCESS; }
EXPORT int cuptiActivityEnableCudaEventDeviceTimestamps(uint8_t) { return SUCCESS; }
EXPORT int cuptiActivityEnableLatencyTimestamps(uint8_t) { return SUCCESS; }
EXPORT int cuptiActivityEnableHWTrace(uint8_t) { return SUCCESS; }
EXPORT int cuptiActivitySetAttribute(int, size_t*, void*) { return SUCCESS; }
EXPORT int cuptiActivityFlushAll(uint32_t) { return SUCCESS; }
EXPORT int cuptiActivityGetNextRecord(uint8_t*, size_t, void**) { return MAX_LIMIT_REACHED; }
EXPORT int cuptiActivityGetNumDroppedRecords(void*, uint32_t, size_t* dropped) {
  *dropped = 0;
  return SUCCESS;
}

EXPORT int cuptiActivityPushExternalCorrelationId(int, uint64_t identifier) {
  last_identifier = identifier;
  ++identifiers;
  return SUCCESS;
}

EXPORT int cuptiActivityPopExternalCorrelationId(int, uint64_t* identifier) {
  if (identifiers == 0) return QUEUE_EMPTY;
  --identifiers;
  if (identifier != nullptr) *identifier = last_identifier;
  return SUCCESS;
}

EXPORT int cuptiFinalize() { return SUCCESS; }
