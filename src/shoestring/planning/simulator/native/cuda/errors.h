// Error codes, which CUDA's runtime (cudaError_t) and driver (CUresult) share for what is used here, and the last error of a
// thread.
// Source of the numbers: driver_types.h of CUDA 12.8 and 13.0.
#pragma once

namespace simulator {

using Error = int;

namespace error {
constexpr Error success = 0;
constexpr Error invalid_value = 1;
constexpr Error out_of_memory = 2;
constexpr Error not_initialized = 3;
constexpr Error invalid_configuration = 9;
constexpr Error invalid_symbol = 13;
constexpr Error invalid_device_function = 98;
constexpr Error no_device = 100;
constexpr Error invalid_device = 101;
constexpr Error invalid_context = 201;
constexpr Error no_kernel_image = 209;
constexpr Error peer_access_unsupported = 217;
constexpr Error invalid_handle = 400;
constexpr Error not_found = 500;
constexpr Error peer_access_already_enabled = 704;
constexpr Error peer_access_not_enabled = 705;
constexpr Error host_memory_already_registered = 712;
constexpr Error host_memory_not_registered = 713;
constexpr Error not_supported = 801;
constexpr Error capture_unsupported = 900;
constexpr Error capture_invalidated = 901;
constexpr Error capture_merge = 902;
constexpr Error capture_unmatched = 903;
constexpr Error capture_unjoined = 904;
constexpr Error captured_event = 907;
constexpr Error capture_wrong_thread = 908;
}  // namespace error

// Remembers an error as the last one of this thread, which cudaGetLastError returns, and passes it on.
Error report(Error code);

// The error that a function of the runtime returns because it is not simulated; counts the call.
Error not_simulated(const char* function);

const char* runtime_error_name(Error code);
const char* driver_error_name(Error code);
const char* error_text(Error code);

}  // namespace simulator
