// What the simulated CUDA runtime (native/cuda, libcudart.so) offers to the other native libraries of the simulator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

// All libraries are compiled with hidden symbols; what others call is exported by name, in C.
#define EXPORT extern "C" __attribute__((visibility("default")))

// The folder of this rehearsal, where a process may write; nullptr if there is none.
EXPORT const char* simulator_folder();

// Counts a call of a function that is not simulated, and notes the first one in the folder at once.
EXPORT void simulator_missing(const char* function);

// Whether the address lies in simulated device memory.
EXPORT bool simulator_is_device(const void* address);

// A number of this thread: above 0 while an operator with values runs its genuine kernel.
EXPORT int* simulator_depth();

// Whether the stream is being captured into a graph.
EXPORT bool simulator_is_capturing(void* stream);

// The next number of the graph that the stream captures, from 1; from it, seeds that are the same in each capture.
EXPORT uint64_t simulator_capture_order(void* stream);

// Appends work to the graph that the stream captures and takes ownership of it. Without a capture the work runs at once.
EXPORT void simulator_capture(void* stream, std::function<void()>* work);

// Whether a copy of so many bytes to or on a device is made: all are with `all`, otherwise those that are small enough.
EXPORT bool simulator_copies(size_t bytes);

// Lets `count` allocations of device segments fail, beginning with number `first` from now on (0: none), and returns how many
// there were since the last call. Tests call it, with ctypes; SHOESTRING_SIMULATOR_FAIL_AT is the same from the start.
EXPORT uint64_t simulator_fail_at(uint64_t first, uint64_t count);
