// cuFile: files read into and written from memory of the device, which here is memory of this process.
// Declarations after cufile.h of CUDA 12.8.
#include <sys/types.h>
#include <unistd.h>

#include <cstddef>

#include "interface.h"

namespace {

// CUfileError_t
struct Status {
  int error;
  int driver_error;
};

// CUfileDescr_t, for handles of Linux (CU_FILE_HANDLE_TYPE_OPAQUE_FD)
struct Description {
  int type;
  union {
    int file;
    void* handle;
  };
  const void* operations;
};

constexpr Status SUCCESS{0, 0};

// A handle is the file's descriptor plus one, so that none is a null pointer.
void* handle_of(int file) { return reinterpret_cast<void*>(static_cast<intptr_t>(file) + 1); }
int file_of(void* handle) { return static_cast<int>(reinterpret_cast<intptr_t>(handle) - 1); }

}  // namespace

EXPORT Status cuFileDriverOpen() { return SUCCESS; }
EXPORT Status cuFileDriverClose() { return SUCCESS; }
EXPORT Status cuFileDriverClose_v2() { return SUCCESS; }

EXPORT Status cuFileHandleRegister(void** handle, Description* description) {
  *handle = handle_of(description->file);
  return SUCCESS;
}
EXPORT void cuFileHandleDeregister(void*) {}

EXPORT Status cuFileBufRegister(const void*, size_t, int) { return SUCCESS; }
EXPORT Status cuFileBufDeregister(const void*) { return SUCCESS; }

EXPORT ssize_t cuFileRead(void* handle, void* base, size_t size, off_t file_offset, off_t memory_offset) {
  if (!simulator_copies(size)) return static_cast<ssize_t>(size);
  return pread(file_of(handle), static_cast<char*>(base) + memory_offset, size, file_offset);
}

EXPORT ssize_t cuFileWrite(void* handle, const void* base, size_t size, off_t file_offset, off_t memory_offset) {
  return pwrite(file_of(handle), static_cast<const char*>(base) + memory_offset, size, file_offset);
}
