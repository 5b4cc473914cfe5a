// Which architectures a fat binary, the container of a source file's compiled kernels, has code for.
#pragma once

namespace simulator {

// The code of a fat binary that a GPU runs. The numbers are as in cudaFuncAttributes: major * 10 + minor.
struct KernelImage {
  bool exists = false;
  int binary_version = 0;  // of the machine code; the GPU's own if it is compiled from PTX
  int ptx_version = 0;
};

// Chooses as CUDA does: the machine code of the same major and the highest minor version that is not above the GPU's, otherwise
// the PTX of the highest version that is not above it. A container of unknown form is taken to suit.
KernelImage choose_image(const void* fat_binary, int capability);

}  // namespace simulator
