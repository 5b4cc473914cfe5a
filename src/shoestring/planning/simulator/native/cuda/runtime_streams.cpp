// Streams and events of the runtime.
#include "devices.h"
#include "interface.h"
#include "pools.h"
#include "streams.h"

using namespace simulator;

namespace {
constexpr unsigned external_event = 1;  // cudaEventRecordExternal, cudaEventWaitExternal
}

EXPORT int cudaStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  if (const Error failed = enter_current()) return report(failed);
  *stream = new_stream(flags, priority);
  return error::success;
}

EXPORT int cudaStreamCreate(void** stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
EXPORT int cudaStreamCreateWithFlags(void** stream, unsigned flags) { return cudaStreamCreateWithPriority(stream, flags, 0); }

EXPORT int cudaStreamDestroy(void* handle) {
  Stream* stream = stream_of(handle);
  if (stream != handle) return report(error::invalid_handle);  // default streams are not destroyed
  delete_stream(stream);
  return error::success;
}

EXPORT int cudaStreamGetPriority(void* stream, int* priority) {
  *priority = stream_of(stream)->priority;
  return error::success;
}

EXPORT int cudaStreamGetFlags(void* stream, unsigned* flags) {
  *flags = stream_of(stream)->flags;
  return error::success;
}

EXPORT int cudaStreamGetId(void* stream, unsigned long long* id) {
  *id = stream_of(stream)->id;
  return error::success;
}

EXPORT int cudaStreamGetDevice(void* stream, int* device) {
  *device = stream_of(stream)->device;
  return error::success;
}

EXPORT int cudaStreamQuery(void* stream) {
  if (const Error failed = initialize()) return report(failed);
  return report(refuse_wait(stream_of(stream)));
}

EXPORT int cudaStreamSynchronize(void* stream) {
  if (const Error failed = initialize()) return report(failed);
  if (const Error refused = refuse_wait(stream_of(stream))) return report(refused);
  trim_pools();
  return error::success;
}

EXPORT int cudaStreamWaitEvent(void* stream, void* event, unsigned flags) {
  if (event == nullptr) return report(error::invalid_handle);
  if ((flags & external_event) && is_capturing(stream)) {
    submit(stream, NodeKind::wait_event, nullptr);
    return error::success;
  }
  return report(wait_for_event(stream_of(stream), *static_cast<Event*>(event)));
}

EXPORT int cudaStreamAddCallback(void* stream, void (*callback)(void*, int, void*), void* data, unsigned) {
  if (const Error refused = refuse_wait(stream_of(stream))) return report(refused);
  callback(stream, error::success, data);
  return error::success;
}

EXPORT int cudaLaunchHostFunc(void* stream, void (*function)(void*), void* data) {
  submit(stream, NodeKind::host, [=] { function(data); });
  return error::success;
}

EXPORT int cudaStreamAttachMemAsync(void*, void*, size_t, unsigned) { return error::success; }
EXPORT int cudaStreamCopyAttributes(void*, void*) { return error::success; }
EXPORT int cudaStreamSetAttribute(void*, int, const void*) { return error::success; }
EXPORT int cudaStreamGetAttribute(void*, int, void*) { return not_simulated("cudaStreamGetAttribute"); }
EXPORT int cudaCtxResetPersistingL2Cache() { return error::success; }

EXPORT int cudaEventCreateWithFlags(void** event, unsigned flags) {
  if (const Error failed = enter_current()) return report(failed);
  auto* created = new Event;
  created->flags = flags;
  *event = created;
  return error::success;
}

EXPORT int cudaEventCreate(void** event) { return cudaEventCreateWithFlags(event, 0); }

EXPORT int cudaEventDestroy(void* event) {
  if (event == nullptr) return report(error::invalid_handle);
  delete static_cast<Event*>(event);
  return error::success;
}

EXPORT int cudaEventRecord(void* event, void* stream) {
  if (event == nullptr) return report(error::invalid_handle);
  if (const Error failed = initialize()) return report(failed);
  return report(record_event(static_cast<Event*>(event), stream_of(stream)));
}

EXPORT int cudaEventRecordWithFlags(void* event, void* stream, unsigned flags) {
  if (event == nullptr || !(flags & external_event) || !is_capturing(stream)) return cudaEventRecord(event, stream);
  // An external event is recorded by each replay of the graph.
  submit(stream, NodeKind::record_event, [event] { record_event(static_cast<Event*>(event), stream_of(nullptr)); });
  return error::success;
}

EXPORT int cudaEventQuery(void* event) {
  if (event == nullptr) return report(error::invalid_handle);
  if (const Error failed = initialize()) return report(failed);
  return report(query_event(*static_cast<Event*>(event)));
}

EXPORT int cudaEventSynchronize(void* event) {
  const Error result = cudaEventQuery(event);
  if (result == error::success) trim_pools();
  return result;
}

EXPORT int cudaEventElapsedTime(float* milliseconds, void* from, void* to) {
  const auto* begin = static_cast<Event*>(from);
  const auto* end = static_cast<Event*>(to);
  if (begin == nullptr || end == nullptr || !begin->is_recorded || !end->is_recorded) return report(error::invalid_handle);
  if ((begin->flags | end->flags) & event_without_timing) return report(error::invalid_handle);
  *milliseconds = static_cast<float>(end->milliseconds - begin->milliseconds);
  return error::success;
}

EXPORT int cudaEventElapsedTime_v2(float* milliseconds, void* from, void* to) {
  return cudaEventElapsedTime(milliseconds, from, to);
}
