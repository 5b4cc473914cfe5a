// The simulated GPUs as this process sees them: which are visible, which is current, and their contexts.
#pragma once

#include <cstdint>

#include "errors.h"

namespace simulator {

// Makes CUDA usable, as cuInit does. An error without a visible GPU, and in a child that was forked after its parent had
// initialized CUDA: there, as with the genuine driver, nothing works.
Error initialize();

int device_count();
bool is_device_number(int device);

// The number of a visible device among all GPUs of the machine.
int gpu_of(int device);

int current_device();
Error set_current_device(int device);

// First use of a device: its context takes memory, and the values' library is loaded.
Error enter(int device);
Error enter_current();
bool has_context(int device);
// Gives back what the context took; the next use makes it anew.
void leave(int device);

// Names of a GPU of the machine. The UUID has the form GPU-8-4-4-4-12.
void write_uuid(int gpu, unsigned char (&bytes)[16]);
void write_uuid_text(int gpu, char* text, int capacity);
int pci_bus(int gpu);
void write_pci_id(int gpu, char* text, int capacity);
// The GPU of an identifier such as 0000:04:00.0; -1 if there is none.
int gpu_of_pci_id(const char* text);

}  // namespace simulator
