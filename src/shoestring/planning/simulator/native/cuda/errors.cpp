#include "errors.h"

#include "interface.h"

namespace simulator {
namespace {

thread_local Error last_error = error::success;

struct Description {
  Error code;
  const char* runtime_name;
  const char* driver_name;
  const char* text;
};

// Names and texts as CUDA's own, because scripts and PyTorch look for words in them.
constexpr Description descriptions[] = {
    {error::success, "cudaSuccess", "CUDA_SUCCESS", "no error"},
    {error::invalid_value, "cudaErrorInvalidValue", "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {error::out_of_memory, "cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {error::not_initialized, "cudaErrorInitializationError", "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {error::invalid_configuration, "cudaErrorInvalidConfiguration", "CUDA_ERROR_UNKNOWN", "invalid configuration argument"},
    {error::invalid_symbol, "cudaErrorInvalidSymbol", "CUDA_ERROR_UNKNOWN", "invalid device symbol"},
    {error::invalid_device_function, "cudaErrorInvalidDeviceFunction", "CUDA_ERROR_UNKNOWN", "invalid device function"},
    {error::no_device, "cudaErrorNoDevice", "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {error::invalid_device, "cudaErrorInvalidDevice", "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {error::invalid_context, "cudaErrorDeviceUninitialized", "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {error::no_kernel_image, "cudaErrorNoKernelImageForDevice", "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {error::peer_access_unsupported, "cudaErrorPeerAccessUnsupported", "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
     "peer access is not supported between these two devices"},
    {error::invalid_handle, "cudaErrorInvalidResourceHandle", "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {error::not_found, "cudaErrorSymbolNotFound", "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "cudaErrorNotReady", "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "cudaErrorIllegalAddress", "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "cudaErrorLaunchOutOfResources", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {error::peer_access_already_enabled, "cudaErrorPeerAccessAlreadyEnabled", "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
     "peer access is already enabled"},
    {error::peer_access_not_enabled, "cudaErrorPeerAccessNotEnabled", "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED",
     "peer access has not been enabled"},
    {error::host_memory_already_registered, "cudaErrorHostMemoryAlreadyRegistered", "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {error::host_memory_not_registered, "cudaErrorHostMemoryNotRegistered", "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {719, "cudaErrorLaunchFailure", "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {error::not_supported, "cudaErrorNotSupported", "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {error::capture_unsupported, "cudaErrorStreamCaptureUnsupported", "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {error::capture_invalidated, "cudaErrorStreamCaptureInvalidated", "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {error::capture_merge, "cudaErrorStreamCaptureMerge", "CUDA_ERROR_STREAM_CAPTURE_MERGE",
     "operation would result in a merge of separate capture sequences"},
    {error::capture_unmatched, "cudaErrorStreamCaptureUnmatched", "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
     "capture was not ended in the same stream as it began"},
    {error::capture_unjoined, "cudaErrorStreamCaptureUnjoined", "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
     "capturing stream has unjoined work"},
    {905, "cudaErrorStreamCaptureIsolation", "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "dependency created on uncaptured work in another stream"},
    {906, "cudaErrorStreamCaptureImplicit", "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {error::captured_event, "cudaErrorCapturedEvent", "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in a capturing stream"},
    {error::capture_wrong_thread, "cudaErrorStreamCaptureWrongThread", "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "attempt to terminate a thread-local capture sequence from another thread"},
};

constexpr Description unknown = {999, "cudaErrorUnknown", "CUDA_ERROR_UNKNOWN", "unknown error"};

const Description& describe(Error code) {
  for (const Description& description : descriptions)
    if (description.code == code) return description;
  return unknown;
}

}  // namespace

Error report(Error code) {
  if (code != error::success) last_error = code;
  return code;
}

Error not_simulated(const char* function) {
  simulator_missing(function);
  return report(error::not_supported);
}

const char* runtime_error_name(Error code) { return describe(code).runtime_name; }
const char* driver_error_name(Error code) { return describe(code).driver_name; }
const char* error_text(Error code) { return describe(code).text; }

}  // namespace simulator

using namespace simulator;

EXPORT const char* cudaGetErrorName(int code) { return runtime_error_name(code); }
EXPORT const char* cudaGetErrorString(int code) { return error_text(code); }

EXPORT int cudaGetLastError() {
  const Error code = last_error;
  last_error = error::success;
  return code;
}

EXPORT int cudaPeekAtLastError() { return last_error; }

EXPORT int cuGetErrorName(int code, const char** name) {
  *name = driver_error_name(code);
  return error::success;
}

EXPORT int cuGetErrorString(int code, const char** text) {
  *text = error_text(code);
  return error::success;
}
