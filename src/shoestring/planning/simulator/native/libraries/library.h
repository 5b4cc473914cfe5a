// What the libraries in place of CUDA's have in common: objects behind opaque handles, and functions that differ by name only.
#pragma once

// A function whose other names differ in the types of pointers only, such as the one for double precision.
#define SAME_AS(function) __attribute__((alias(#function)))

namespace simulator {

// What stands behind a handle whose content nobody asks for. Not empty, so that each has an address of its own.
struct Opaque {
  char unused = 0;
};

// Gives out a new object, as the functions named Create do. The status 0 is success in every library.
template <typename Object = Opaque>
int give(void** place) {
  *place = new Object();
  return 0;
}

template <typename Object = Opaque>
int take_back(void* object) {
  delete static_cast<Object*>(object);
  return 0;
}

}  // namespace simulator
